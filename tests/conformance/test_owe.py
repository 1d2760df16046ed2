"""Owing: one row for each (tenant, kind, key), however often it is owed."""

from __future__ import annotations

import asyncio
from contextvars import Context
from itertools import pairwise
from uuid import UUID

import pytest

from mainspring.ids import new_id
from mainspring.spine.effects import AlreadyOwed, Done, EffectState, NewEffect, Owed, Retry
from mainspring.spine.errors import Misuse
from tests.conformance.hands import LEASE, Hands

DAY = 86_400.0


async def test_an_owed_effect_is_a_pending_row_with_all_that_was_given(hands: Hands):
    tenant, rule = await hands.tenant(), new_id()
    [owed] = await hands.owe(
        tenant,
        NewEffect("mail", key="42", payload={"to": ["a", None]}, event_seq=9, rule_id=rule, rule_version=3, target="smtp"),
    )  # fmt: skip
    row = await hands.row((tenant, owed.id))
    assert (row.tenant_id, row.id, row.kind, row.key, row.family) == (
        tenant,
        owed.id,
        "mail",
        "42",
        "executed",
    )
    assert (row.payload, row.event_seq, row.rule_id, row.rule_version, row.target) == (
        {"to": ["a", None]}, 9, rule, 3, "smtp",
    )  # fmt: skip
    assert (row.state, row.attempts, row.crashes, row.deferrals, row.epoch) == (
        EffectState.PENDING,
        0,
        0,
        0,
        0,
    )
    assert (row.claim_id, row.worker, row.lease_until, row.settled_at) == (None, None, None, None)
    assert (row.outcome, row.error, row.cancel_requested) == (None, None, False)
    assert row.not_before is not None


async def test_owing_twice_is_one_row_and_says_where_it_stands(hands: Hands):
    tenant = await hands.tenant()
    again = NewEffect("mail", key="1", payload={"to": "a"})
    [first] = await hands.owe(tenant, again)
    assert await hands.owe(tenant, again) == [AlreadyOwed(first.id, EffectState.PENDING)]
    effect = await hands.claim_one()
    assert await hands.owe(tenant, again) == [AlreadyOwed(first.id, EffectState.CLAIMED)]
    assert await hands.settles(effect, Retry("busy"))
    assert await hands.owe(tenant, again) == [AlreadyOwed(first.id, EffectState.PENDING)]
    assert len(await hands.rows(tenant)) == 1


@pytest.mark.parametrize("order", [0, 1])
async def test_one_batch_owes_new_and_standing_effects_and_answers_in_the_order_given(
    hands: Hands, order: int
):
    tenant = await hands.tenant()
    standing = await hands.owe_one(tenant, key="b")
    effects = [NewEffect("mail", key=key) for key in ("c", "b", "a")]
    answers = await hands.owe(tenant, *(effects[::-1] if order else effects))
    if order:
        answers.reverse()
    assert isinstance(answers[0], Owed)
    assert answers[1] == AlreadyOwed(standing, EffectState.PENDING)
    assert isinstance(answers[2], Owed)
    assert {row.id: row.key for row in await hands.rows(tenant)} == {
        answers[0].id: "c", standing: "b", answers[2].id: "a",
    }  # fmt: skip


async def test_the_same_effect_twice_in_one_batch_is_one_row(hands: Hands):
    tenant = await hands.tenant()
    one, other = await hands.owe(tenant, NewEffect("mail", key="1"), NewEffect("mail", key="1"))
    assert {type(one), type(other)} == {Owed, AlreadyOwed}
    assert one.id == other.id
    assert len(await hands.rows(tenant)) == 1


async def test_the_same_key_for_two_kinds_is_two_rows(hands: Hands):
    # otherwise "mail the receipt of 42" would swallow "ship parcel 42"
    tenant = await hands.tenant()
    mail, ship = await hands.owe(tenant, NewEffect("mail", key="42"), NewEffect("ship", key="42"))
    assert isinstance(mail, Owed)
    assert isinstance(ship, Owed)
    assert {row.kind for row in await hands.rows(tenant)} == {"mail", "ship"}


async def test_the_same_key_for_two_tenants_is_two_rows(hands: Hands):
    one, other = await hands.tenant(), await hands.tenant()
    await hands.owe_one(one)
    await hands.owe_one(other)
    assert len(await hands.rows(one)) == len(await hands.rows(other)) == 1


@pytest.mark.parametrize(
    ("payload", "other"),
    [({"to": "a"}, {"to": "b"}), ({}, {"to": None}), ({"n": 1}, {"n": "1"}), ({"n": 1}, {"n": True}), ({"l": [1, 2]}, {"l": [2, 1]})],
)  # fmt: skip
async def test_another_payload_under_the_same_key_is_misuse(hands: Hands, payload: dict, other: dict):
    tenant = await hands.tenant()
    await hands.owe_one(tenant, payload=payload)
    with pytest.raises(Misuse, match="payload"):
        await hands.owe(tenant, NewEffect("mail", key="1", payload=other))
    [row] = await hands.rows(tenant)
    assert row.payload == payload


@pytest.mark.parametrize(
    ("payload", "same"),
    [({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({"n": 1}, {"n": 1.0}), ({"t": (1,)}, {"t": [1]})],
)
async def test_a_payload_is_compared_by_what_it_means(hands: Hands, payload: dict, same: dict):
    tenant = await hands.tenant()
    await hands.owe_one(tenant, payload=payload)
    assert isinstance((await hands.owe(tenant, NewEffect("mail", key="1", payload=same)))[0], AlreadyOwed)


async def test_what_is_owed_in_a_transaction_that_is_undone_is_not_owed(hands: Hands):
    tenant = await hands.tenant()
    with pytest.raises(ZeroDivisionError):
        async with hands.store.tenant(tenant) as tx:
            await hands.store.owe(tx, [(tenant, NewEffect("mail", key="1"))])
            raise ZeroDivisionError
    assert await hands.claim() == []
    await hands.owe_one(tenant)
    await hands.claim_one()


async def test_a_done_effect_is_not_owed_again_for_as_long_as_its_row_is_kept(hands: Hands):
    tenant = await hands.tenant()
    first = await hands.owe_one(tenant)
    assert await hands.settles(await hands.claim_one(), Done())
    await hands.age(6 * DAY)
    assert await hands.trim(done_seconds=7 * DAY) == 0
    assert await hands.owe(tenant, NewEffect("mail", key="1")) == [AlreadyOwed(first, EffectState.DONE)]
    await hands.age(2 * DAY)
    assert await hands.trim(done_seconds=7 * DAY) == 1
    assert await hands.owe_one(tenant) != first


async def test_a_delayed_effect_is_claimed_when_its_time_has_come(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe_one(tenant, delay_seconds=90)
    assert await hands.claim() == []
    await hands.age(60)
    assert await hands.claim() == []
    await hands.age(31)
    effect = await hands.claim_one()
    assert 0 < effect.waited_seconds < 10


async def test_owing_sooner_than_all_others_of_the_tenant_is_found_at_once(hands: Hands):
    # the index of due tenants has seen only the late one, and a claim has looked there already
    tenant = await hands.tenant()
    await hands.owe_one(tenant, key="late", delay_seconds=3600)
    assert await hands.claim() == []
    await hands.owe_one(tenant, key="now")
    assert [effect.key for effect in await hands.claim()] == ["now"]
    await hands.age(3601)
    assert sorted(effect.key for effect in await hands.claim(lease=LEASE * 1000)) == ["late", "now"]


async def test_an_effect_that_commits_after_others_looked_in_vain_is_found(hands: Hands):
    # whoever looks meanwhile notes that the tenant has nothing due: the commit must undo that
    if not hands.subject.concurrent:
        pytest.skip("nobody can look while a transaction is open here")
    tenant = await hands.tenant()
    await hands.owe_one(tenant, key="later", delay_seconds=3600)
    async with hands.store.tenant(tenant) as tx:
        [owed] = await hands.store.owe(tx, [(tenant, NewEffect("mail", key="1"))])
        assert await asyncio.create_task(hands.claim(), context=Context()) == []
        await hands.store.make_due(tx, [(tenant, owed.id)])
        assert await asyncio.create_task(hands.claim(), context=Context()) == []
    assert (await hands.claim_one()).key == "1"


# owed by a drain ----------------------------------------------------------------------------------------------


async def owe_drained(hands: Hands, *owed: tuple[UUID, NewEffect]) -> int:
    async with hands.store.system("test") as tx:
        return await hands.store.owe_drained(tx, owed)


async def test_a_drain_owes_for_many_tenants_and_counts_what_is_new(hands: Hands):
    one, other = await hands.tenant(), await hands.tenant()
    await hands.owe_one(one, key="b")
    owed = [(tenant, NewEffect("mail", key=key, event_seq=1)) for tenant in (one, other) for key in "ab"]
    assert await owe_drained(hands, *owed) == 3
    assert await owe_drained(hands, *owed) == 0
    assert len(await hands.claim()) == 4


async def test_a_drain_leaves_a_standing_row_alone_whatever_its_payload(hands: Hands):
    tenant = await hands.tenant()
    await hands.owe_one(tenant, payload={"first": True})
    assert await owe_drained(hands, (tenant, NewEffect("mail", key="1", payload={"first": False}))) == 0
    [row] = await hands.rows(tenant)
    assert row.payload == {"first": True}


async def test_owing_nothing_is_nothing(hands: Hands):
    tenant = await hands.tenant()
    assert await hands.owe(tenant) == []
    assert await owe_drained(hands) == 0


# reading rows -------------------------------------------------------------------------------------------------


async def test_rows_are_listed_oldest_first_by_state_kind_and_event(hands: Hands):
    tenant = await hands.tenant()
    ids = [await hands.owe_one(tenant, kind, key=f"{n}", event_seq=n % 2 + 1) for n, kind in enumerate(["mail", "ship"] * 3)]  # fmt: skip
    await hands.owe_one(await hands.tenant())
    assert [row.id for row in await hands.rows(tenant)] == ids
    assert all(one < other for one, other in pairwise(ids))
    assert [row.id for row in await hands.rows(tenant, limit=2)] == ids[:2]
    assert [row.id for row in await hands.rows(tenant, after=ids[1], limit=3)] == ids[2:5]
    assert [row.id for row in await hands.rows(tenant, kind="ship")] == ids[1::2]
    assert [row.id for row in await hands.rows(tenant, event_seq=1)] == ids[::2]
    claimed = {effect.id for effect in await hands.claim(limit=9) if effect.tenant_id == tenant}
    assert {row.id for row in await hands.rows(tenant, state=EffectState.CLAIMED)} == claimed
    assert [
        row.id for row in await hands.rows(tenant, state=EffectState.PENDING, kind="ship", limit=2)
    ] == ids[1:5:2]


async def test_another_tenants_row_is_not_there(hands: Hands):
    mine, theirs = await hands.tenant(), await hands.tenant()
    effect = await hands.owe_one(theirs)
    async with hands.store.tenant(mine) as tx:
        assert await hands.store.effect(tx, mine, effect) is None
        assert await hands.store.effects_by_id(tx, mine, [effect]) == []
        assert await hands.store.attempts(tx, mine, effect) == []
        assert await hands.store.cancel(tx, mine, effect) is None
    assert (await hands.row((theirs, effect))).state == EffectState.PENDING
