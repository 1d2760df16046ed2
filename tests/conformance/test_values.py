"""Values: what a store keeps as it was given, and what every store refuses in the same words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainspring.ids import new_id
from mainspring.spine.effects import Done, Failed, NewEffect, Retry, resolve
from mainspring.spine.errors import BadData, Misuse, SpineError
from mainspring.spine.events import Cause, NewEvent
from tests.conformance.hands import MAIL, Hands

NUL, HALF = "a\x00b", "a\ud800b"
BAD_TEXT = pytest.mark.parametrize("bad", [NUL, HALF], ids=["NUL", "half a surrogate pair"])
BAD_JSON = pytest.mark.parametrize(
    "bad",
    [{"x": NUL}, {"x": HALF}, {NUL: 1}, {HALF: 1}, {"x": [{"y": NUL}]}, {"x": object()}, {"x": {(1, 2): 3}}],
    ids=["NUL", "half", "NUL key", "half key", "deep NUL", "object", "tuple key"],
)


@BAD_JSON
async def test_an_event_whose_data_cannot_be_stored_is_bad_data_and_nothing_is_written(
    hands: Hands, bad: dict
):
    tenant = await hands.tenant()
    with pytest.raises(BadData):
        await hands.append(tenant, NewEvent("order.paid"), NewEvent("order.paid", data=bad))
    assert await hands.head(tenant) == 0
    assert await hands.append(tenant, "order.paid") == (1,)


@BAD_TEXT
async def test_an_event_whose_texts_cannot_be_stored_is_bad_data(hands: Hands, bad: str):
    tenant = await hands.tenant()
    for event in (NewEvent("order.paid", subject=bad), NewEvent("order.paid", traceparent=bad)):
        with pytest.raises(BadData):
            await hands.append(tenant, event)
    assert await hands.head(tenant) == 0


@pytest.mark.parametrize(
    "event",
    [
        NewEvent("k" * 101),
        NewEvent("order.paid", cause=Cause(seq=2**63)),
        NewEvent("order.paid", cause=Cause(depth=2**31)),
        NewEvent("order.paid", cause=Cause(depth=-1)),
    ],
    ids=["long kind", "cause beyond a bigint", "depth beyond an integer", "negative depth"],
)
async def test_an_event_out_of_range_is_bad_data(hands: Hands, event: NewEvent):
    tenant = await hands.tenant()
    with pytest.raises(BadData):
        await hands.append(tenant, event)
    assert await hands.head(tenant) == 0


@BAD_JSON
async def test_an_effect_whose_payload_cannot_be_stored_is_bad_data(hands: Hands, bad: dict):
    tenant = await hands.tenant()
    with pytest.raises(BadData):
        await hands.owe(tenant, NewEffect("mail", key="1"), NewEffect("mail", key="2", payload=bad))
    with pytest.raises(BadData):
        async with hands.store.system("test") as tx:
            await hands.store.owe_drained(tx, [(tenant, NewEffect("mail", key="2", payload=bad))])
    assert await hands.rows(tenant) == []


@BAD_TEXT
@pytest.mark.parametrize("field", ["kind", "key", "target"])
async def test_an_effect_whose_texts_cannot_be_stored_is_bad_data(hands: Hands, field: str, bad: str):
    tenant = await hands.tenant()
    with pytest.raises(BadData):
        await hands.owe(tenant, NewEffect(**({"kind": "mail", "key": "1"} | {field: bad})))
    assert await hands.rows(tenant) == []


@pytest.mark.parametrize(
    "more",
    [
        {"event_seq": 2**63},
        {"rule_version": 2**31},
    ],
    ids=["event beyond a bigint", "version beyond an integer"],
)
async def test_an_effect_out_of_range_is_bad_data(hands: Hands, more: dict[str, Any]):
    tenant = await hands.tenant()
    with pytest.raises(BadData):
        await hands.owe(tenant, NewEffect("mail", key="1", **more))
    assert await hands.rows(tenant) == []


@pytest.mark.parametrize("name", ["", "n" * 201, NUL, HALF], ids=["empty", "long", "NUL", "half"])
async def test_a_tenant_whose_name_cannot_be_stored_is_not_born(hands: Hands, name: str):
    tenant = new_id()
    with pytest.raises(BadData):
        async with hands.store.system("test") as tx:
            await hands.store.create_tenant(tx, tenant, name)
    async with hands.store.system("test") as tx:
        assert await hands.store.create_tenant(tx, tenant, "acme")


@BAD_TEXT
async def test_the_reason_of_a_discard_is_a_text_too(hands: Hands, bad: str):
    tenant = await hands.tenant()
    dead = await hands.dead(tenant)
    with pytest.raises(BadData):
        await hands.discard(tenant, [dead.id], reason=bad)
    assert (await hands.row(dead)).state == "dead"


@BAD_TEXT
@pytest.mark.parametrize(
    "outcome", [lambda bad: Done(bad), lambda bad: Retry(bad, after_seconds=0), lambda bad: Failed(bad)]
)
async def test_an_outcome_that_quotes_hostile_text_is_settled_all_the_same(
    hands: Hands, outcome: Callable[[str], Any], bad: str
):
    tenant = await hands.tenant()
    await hands.owe_one(tenant)
    effect = await hands.claim_one()
    assert await hands.settles(effect, outcome(bad))
    row = await hands.row(effect)
    quoted = row.error if row.error is not None else row.outcome
    assert quoted is not None
    assert quoted.startswith("a")
    assert quoted.endswith("b")


async def test_a_long_text_is_kept_whole_where_it_may_be_long(hands: Hands):
    tenant = await hands.tenant()
    event = NewEvent("k" * 100, subject="日" * 200, data={"text": "x" * 300_000})
    await hands.append(tenant, event)
    [kept] = await hands.read(tenant)
    assert (kept.kind, kept.subject, len(kept.data["text"])) == ("k" * 100, "日" * 200, 300_000)
    key = "🦜" * 300
    await hands.owe_one(tenant, key=key)
    assert (await hands.claim_one()).key == key


# what survives the journey ------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
numbers = st.integers(-(2**70), 2**70) | st.floats(-1e12, 1e12)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
payloads = st.dictionaries(texts, json_values, max_size=3)


@given(payload=payloads)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_json_value_comes_back_as_it_was(hands: Hands, payload: dict[str, Any]):
    tenant, key = await hands.tenant(), str(new_id())
    await hands.append(tenant, NewEvent("order.paid", data=payload))
    [event] = await hands.read(tenant)
    assert event.data == payload
    await hands.owe_one(tenant, key=key, payload=payload)
    [effect] = await hands.claim()
    assert effect.payload == payload
    assert await hands.settles(effect)


@pytest.mark.parametrize("number", [1e300, -1.7e308, 6.553065347288318e16, 5e-324, -0.0])
async def test_a_number_of_any_size_comes_back_as_near_as_a_float_can_tell(hands: Hands, number: float):
    # a database may write 1e300 as 301 digits; an event that could not be read again would stop its tenant
    tenant = await hands.tenant()
    await hands.append(tenant, NewEvent("order.paid", data={"x": number}))
    [event] = await hands.read(tenant)
    assert float(event.data["x"]) == number


# transactions -------------------------------------------------------------------------------------------------

Act = Callable[[Any], Awaitable[Any]]


async def test_a_savepoint_undoes_only_its_block(hands: Hands):
    tenant = await hands.tenant()
    store = hands.store
    async with store.tenant(tenant) as tx:
        await store.owe(tx, [(tenant, NewEffect("mail", key="before"))])
        with pytest.raises(ZeroDivisionError):
            async with store.savepoint(tx):
                await store.owe(tx, [(tenant, NewEffect("mail", key="undone"))])
                raise ZeroDivisionError
        await store.owe(tx, [(tenant, NewEffect("mail", key="after"))])
    assert [row.key for row in await hands.rows(tenant)] == ["before", "after"]


async def test_a_savepoint_makes_a_refused_value_bearable(hands: Hands):
    tenant = await hands.tenant()
    store = hands.store
    async with store.tenant(tenant) as tx:
        with pytest.raises(BadData):
            async with store.savepoint(tx):
                await store.owe(tx, [(tenant, NewEffect("mail", key="fine"))])
                await store.owe(tx, [(tenant, NewEffect("mail", key=NUL))])
        await store.owe(tx, [(tenant, NewEffect("mail", key="after"))])
        assert await store.append(tx, tenant, [NewEvent("order.paid")]) == (1,)
    assert [row.key for row in await hands.rows(tenant)] == ["after"]
    assert await hands.head(tenant) == 1


async def test_savepoints_nest(hands: Hands):
    tenant = await hands.tenant()
    store = hands.store
    async with store.tenant(tenant) as tx:
        with pytest.raises(ZeroDivisionError):
            async with store.savepoint(tx):
                async with store.savepoint(tx):
                    await store.owe(tx, [(tenant, NewEffect("mail", key="inner"))])
                raise ZeroDivisionError
        async with store.savepoint(tx):
            with pytest.raises(ZeroDivisionError):
                async with store.savepoint(tx):
                    await store.owe(tx, [(tenant, NewEffect("mail", key="undone"))])
                    raise ZeroDivisionError
            await store.owe(tx, [(tenant, NewEffect("mail", key="outer"))])
    assert [row.key for row in await hands.rows(tenant)] == ["outer"]


async def test_undoing_a_savepoint_puts_back_what_it_changed_and_removed(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe_one(tenant, key="claimed")
    effect = await hands.claim_one()
    dead = await hands.dead(tenant, key="dead")
    gone = await hands.dead(tenant, key="gone")
    await hands.discard(tenant, [gone.id])
    before = await hands.rows(tenant)
    [read] = [row for row in before if row.id == dead.id]
    store = hands.store
    async with store.system("test") as tx:
        with pytest.raises(ZeroDivisionError):
            async with store.savepoint(tx):
                await store.settle(tx, [resolve(effect, Retry("x"), MAIL, random=0.5)])
                await store.replay(tx, tenant, [(read, True)])
                assert await store.trim(tx, done_seconds=-1, limit=10) == 1
                raise ZeroDivisionError
    assert await hands.rows(tenant) == before
    assert len(await hands.attempts(gone)) == 1


async def test_a_transaction_in_which_a_value_was_refused_never_seems_to_commit(hands: Hands):
    # the database has undone everything already: leaving quietly would lose what came before, and say nothing
    tenant = await hands.tenant()
    with pytest.raises(Exception, match=r"(?i)fail|abort|roll"):
        async with hands.store.tenant(tenant) as tx:
            await hands.store.owe(tx, [(tenant, NewEffect("mail", key="1"))])
            with pytest.raises(BadData):
                await hands.store.owe(tx, [(tenant, NewEffect("mail", key=NUL))])
    assert await hands.rows(tenant) == []


async def test_a_transaction_is_over_when_its_block_is(hands: Hands):
    tenant = await hands.tenant()
    async with hands.store.tenant(tenant) as tx:
        pass
    with pytest.raises(SpineError):
        await hands.store.head(tx, tenant)


async def test_scopes_do_not_nest(hands: Hands):
    tenant = await hands.tenant()
    acts: dict[str, Act] = {
        "tenant": lambda store: _enter(store.tenant(tenant)),
        "system": lambda store: _enter(store.system("inner")),
        "claim": lambda _: hands.claim(),
        "renew": lambda store: store.renew([(tenant, new_id(), new_id(), 1.0)]),
        "due": lambda store: store.due(["mail"]),
    }
    for act in acts.values():
        async with hands.store.tenant(tenant):
            with pytest.raises(Misuse):
                await act(hands.store)


async def _enter(scope: Any) -> None:
    async with scope:
        pass


# adopting the caller's own transaction ------------------------------------------------------------------------


async def test_an_adopted_connection_commits_when_the_block_ends(hands: Hands):
    if not hands.subject.adopts:
        pytest.skip("the server opens its scopes itself")
    tenant = await hands.tenant()
    async with hands.subject.connection() as connection:
        async with hands.store.adopt(connection, tenant) as tx:
            await hands.store.owe(tx, [(tenant, NewEffect("mail", key="1"))])
        with pytest.raises(ZeroDivisionError):
            async with hands.store.adopt(connection, tenant) as tx:
                await hands.store.owe(tx, [(tenant, NewEffect("mail", key="2"))])
                raise ZeroDivisionError
    assert [row.key for row in await hands.rows(tenant)] == ["1"]
