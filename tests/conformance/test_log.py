"""The log: gapless, in the order of commits, written with the transaction or not at all."""

from __future__ import annotations

from uuid import UUID

import pytest

from mainspring.ids import new_id
from mainspring.spine.errors import Misuse
from mainspring.spine.events import Cause, NewEvent, Trust
from tests.conformance.hands import Hands


async def test_a_tenant_is_born_once_with_an_empty_log(hands: Hands):
    tenant = new_id()
    async with hands.store.system("test") as tx:
        assert await hands.store.create_tenant(tx, tenant, "acme") is True
    async with hands.store.system("test") as tx:
        assert await hands.store.create_tenant(tx, tenant, "another name") is False
    assert await hands.head(tenant) == 0
    assert await hands.read(tenant) == []
    assert await hands.lagging() == []


async def test_being_born_twice_leaves_the_log_alone(hands: Hands):
    tenant = await hands.tenant()
    await hands.append(tenant, "order.paid")
    async with hands.store.system("test") as tx:
        assert await hands.store.create_tenant(tx, tenant, "acme") is False
    assert await hands.head(tenant) == 1


async def test_seqs_begin_at_one_and_have_no_holes(hands: Hands):
    tenant = await hands.tenant()
    assert await hands.append(tenant, "order.paid", "order.sent") == (1, 2)
    assert await hands.append(tenant, "order.lost") == (3,)
    assert await hands.head(tenant) == 3
    assert [(event.seq, event.kind) for event in await hands.read(tenant)] == [
        (1, "order.paid"), (2, "order.sent"), (3, "order.lost"),
    ]  # fmt: skip


async def test_appending_nothing_writes_nothing(hands: Hands):
    tenant = await hands.tenant()
    assert await hands.append(tenant) == ()
    assert await hands.head(tenant) == 0


async def test_each_tenant_counts_for_itself(hands: Hands):
    one, other = await hands.tenant(), await hands.tenant()
    assert await hands.append(one, "order.paid", "order.sent") == (1, 2)
    assert await hands.append(other, "order.paid") == (1,)
    assert [event.tenant_id for event in await hands.read(other)] == [other]


async def test_a_rollback_leaves_no_hole(hands: Hands):
    tenant = await hands.tenant()
    with pytest.raises(ZeroDivisionError):
        async with hands.store.tenant(tenant) as tx:
            assert await hands.store.append(tx, tenant, [NewEvent("order.paid")]) == (1,)
            raise ZeroDivisionError
    assert await hands.head(tenant) == 0
    assert await hands.append(tenant, "order.sent") == (1,)


async def test_everything_about_an_event_is_kept(hands: Hands):
    tenant, actor, rule = await hands.tenant(), new_id(), new_id()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    event = NewEvent(
        "order.paid",
        subject="42",
        data={"lines": [{"n": 1, "price": 9.5}], "by": None, "gift": False, "é": "日本 🦜"},
        actor_id=actor,
        cause=Cause(seq=7, via=(rule, UUID(int=3)), depth=2, trust=Trust.FORGE),
        traceparent=trace,
    )
    await hands.append(tenant, "order.first", event)
    first, kept = await hands.read(tenant)
    assert (kept.tenant_id, kept.seq, kept.kind, kept.subject, kept.actor_id) == (
        tenant, 2, "order.paid", "42", actor,
    )  # fmt: skip
    assert kept.data == {"lines": [{"n": 1, "price": 9.5}], "by": None, "gift": False, "é": "日本 🦜"}
    assert (kept.cause_seq, kept.via, kept.depth) == (7, (rule, UUID(int=3)), 2)
    assert (kept.trust, kept.traceparent) == (Trust.FORGE, trace)
    assert kept.id != first.id
    assert kept.occurred_at > first.occurred_at
    assert kept.occurred_at.utcoffset() is not None


async def test_a_kept_event_shares_nothing_with_what_was_given(hands: Hands):
    tenant = await hands.tenant()
    lines = [1]
    await hands.append(tenant, NewEvent("order.paid", data={"lines": lines}))
    lines.append(2)
    [kept] = await hands.read(tenant)
    assert kept.data == {"lines": [1]}


async def test_read_pages_through_the_log(hands: Hands):
    tenant = await hands.tenant()
    await hands.append(tenant, *["order.paid"] * 5)
    assert [event.seq for event in await hands.read(tenant, after=1, limit=2)] == [2, 3]
    assert [event.seq for event in await hands.read(tenant, after=4, limit=2)] == [5]
    assert await hands.read(tenant, after=5) == []
    assert [event.seq for event in await hands.read(tenant, after=0, limit=1)] == [1]


async def test_an_event_is_read_by_its_own_seq_and_never_a_later_one_instead(hands: Hands):
    tenant, other = await hands.tenant(), await hands.tenant()
    await hands.append(tenant, "order.paid", "order.sent", "order.lost")
    await hands.append(other, "order.paid")
    found = await hands.events_at(tenant, 3, 1, 3)
    assert {seq: (event.seq, event.kind) for seq, event in found.items()} == {
        1: (1, "order.paid"), 3: (3, "order.lost"),
    }  # fmt: skip
    # nobody has these: what comes behind them does not stand in
    assert await hands.events_at(tenant, 0, -1, 4, 2**63 - 1) == {}
    assert await hands.events_at(tenant) == {}
    assert list(await hands.events_at(other, 1, 2, 3)) == [1]


async def test_an_append_for_a_tenant_without_a_log_is_refused_loudly(hands: Hands):
    nobody = new_id()
    with pytest.raises(Misuse, match="log"):
        await hands.append(nobody, "order.paid")
    assert await hands.head(nobody) == 0


async def test_what_was_written_beside_a_refused_append_is_undone_with_it(hands: Hands):
    nobody, tenant = new_id(), await hands.tenant()
    with pytest.raises(Misuse):
        async with hands.store.system("test") as tx:
            await hands.store.append(tx, tenant, [NewEvent("order.paid")])
            await hands.store.append(tx, nobody, [NewEvent("order.paid")])
    assert await hands.head(tenant) == 0


async def test_a_tenants_transaction_cannot_append_for_another(hands: Hands):
    mine, theirs = await hands.tenant(), await hands.tenant()
    with pytest.raises(Misuse):
        async with hands.store.tenant(mine) as tx:
            await hands.store.append(tx, theirs, [NewEvent("order.paid")])
    assert await hands.head(theirs) == 0


async def test_a_transaction_cannot_append_for_two_tenants(hands: Hands):
    # two heads locked in two orders by two transactions would wait for each other for ever
    one, other = await hands.tenant(), await hands.tenant()
    with pytest.raises(Misuse):
        async with hands.store.system("test") as tx:
            await hands.store.append(tx, one, [NewEvent("order.paid")])
            await hands.store.append(tx, other, [NewEvent("order.paid")])
    assert (await hands.head(one), await hands.head(other)) == (0, 0)


async def test_where_events_came_from_is_told_of_those_that_say_so(hands: Hands):
    one, other = await hands.tenant(), await hands.tenant()
    async with hands.store.tenant(one) as tx:
        await hands.store.append(
            tx,
            one,
            [NewEvent("order.paid", traceparent="00-a"), NewEvent("order.sent"), NewEvent("order.lost")],
        )
    async with hands.store.tenant(other) as tx:
        await hands.store.append(tx, other, [NewEvent("order.paid", traceparent="00-b")])
    async with hands.store.system("test") as tx:
        found = await hands.store.traceparents(tx, [(one, 1), (one, 2), (other, 1), (other, 9)])
        assert await hands.store.traceparents(tx, []) == {}
    assert found == {(one, 1): "00-a", (other, 1): "00-b"}
