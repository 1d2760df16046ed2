"""Cursors: which tenants lag, what comes next for each, and that none is moved twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from mainspring.ids import new_id
from mainspring.spine.errors import LogBroken, Transient
from mainspring.spine.ports import Cursor
from tests.conformance.hands import Hands


async def lagging_tenants(hands: Hands, number: int, events: int = 1) -> list[UUID]:
    tenants = [await hands.tenant() for _ in range(number)]
    for tenant in tenants:
        await hands.append(tenant, *["order.paid"] * events)
    return tenants


async def drain_all(hands: Hands) -> None:
    async with hands.store.system("test") as tx:
        cursors = await hands.store.lock_lagging(tx, after=None, limit=100, engine_version=1)
        await hands.store.advance(tx, [(cursor, cursor.head) for cursor in cursors], engine_version=1)


async def test_only_tenants_behind_their_head_lag(hands: Hands):
    await hands.tenant()
    [tenant] = await lagging_tenants(hands, 1, events=2)
    assert await hands.lagging() == [Cursor(tenant_id=tenant, position=0, head=2)]


async def test_an_advanced_cursor_stays_advanced(hands: Hands):
    [tenant] = await lagging_tenants(hands, 1, events=3)
    async with hands.store.system("test") as tx:
        [cursor] = await hands.store.lock_lagging(tx, after=None, limit=10, engine_version=1)
        await hands.store.advance(tx, [(cursor, 2)], engine_version=1)
    assert await hands.lagging() == [Cursor(tenant_id=tenant, position=2, head=3)]
    await drain_all(hands)
    assert await hands.lagging() == []


async def test_a_position_is_told_and_of_nobody_none(hands: Hands):
    [tenant] = await lagging_tenants(hands, 1, events=3)
    for position in (0, 2):
        async with hands.store.system("test") as tx:
            [cursor] = await hands.store.lock_lagging(tx, after=None, limit=10, engine_version=1)
            await hands.store.advance(tx, [(cursor, position)], engine_version=1)
        async with hands.store.tenant(tenant) as tx:
            assert await hands.store.position(tx, tenant) == position
    nobody = new_id()
    async with hands.store.tenant(nobody) as tx:
        assert await hands.store.position(tx, nobody) is None


async def test_a_round_that_is_rolled_back_moves_no_cursor(hands: Hands):
    [tenant] = await lagging_tenants(hands, 1)
    with pytest.raises(ZeroDivisionError):
        async with hands.store.system("test") as tx:
            [cursor] = await hands.store.lock_lagging(tx, after=None, limit=10, engine_version=1)
            await hands.store.advance(tx, [(cursor, 1)], engine_version=1)
            raise ZeroDivisionError
    assert await hands.lagging() == [Cursor(tenant_id=tenant, position=0, head=1)]


async def test_the_search_starts_behind_a_tenant_and_wraps(hands: Hands):
    one, two, three, four = await lagging_tenants(hands, 4)
    found = await hands.lagging(after=two, limit=3)
    assert [cursor.tenant_id for cursor in found] == [three, four, one]
    found = await hands.lagging(after=four, limit=10)
    assert [cursor.tenant_id for cursor in found] == [one, two, three, four]


async def test_an_engine_older_than_the_rows_gets_nothing(hands: Hands):
    # it might not know what a new kind of event owes, and would move the cursor past it
    await lagging_tenants(hands, 1)
    await hands.subject.set_engine_version(2)
    assert await hands.lagging(version=1) == []
    assert len(await hands.lagging(version=2)) == 1
    assert len(await hands.lagging(version=3)) == 1


async def test_of_the_tenants_that_called_those_that_lag_are_locked_and_no_others(hands: Hands):
    one, _, three = await lagging_tenants(hands, 3)
    still, nobody = await hands.tenant(), UUID(int=7)
    async with hands.store.system("test") as tx:
        found = await hands.store.lock_called(tx, [three, still, nobody, one], engine_version=1)
        await hands.store.advance(tx, [(cursor, 1) for cursor in found], engine_version=1)
    assert found == [Cursor(tenant_id=tenant, position=0, head=1) for tenant in sorted([one, three])]
    await hands.subject.set_engine_version(2)
    async with hands.store.system("test") as tx:
        assert await hands.store.lock_called(tx, [one, three], engine_version=1) == []


async def test_an_engine_that_has_become_older_than_the_rows_moves_no_cursor(hands: Hands):
    """Frozen behind its lock, it has slept through the migration: what it has read may be of a kind that it does not know."""
    [tenant] = await lagging_tenants(hands, 1, events=2)
    [seen] = await hands.lagging()
    await hands.subject.set_engine_version(2)
    with pytest.raises(Transient, match="engine version 2"):
        async with hands.store.system("test") as tx:
            await hands.store.advance(tx, [(seen, 1)], engine_version=1)
    assert await hands.lagging(version=2) == [Cursor(tenant_id=tenant, position=0, head=2)]
    async with hands.store.system("test") as tx:
        assert await hands.store.required_engine_version(tx) == 2
        await hands.store.advance(tx, [(seen, 1)], engine_version=2)


async def test_the_next_events_come_as_whole_prefixes(hands: Hands):
    one, two = await lagging_tenants(hands, 2, events=3)
    await hands.append(one, "order.sent")
    async with hands.store.system("test") as tx:
        cursors = await hands.store.lock_lagging(tx, after=None, limit=10, engine_version=1)
        cursors = [replace(c, position=1) if c.tenant_id == one else c for c in cursors]
        both = await hands.store.read_lagging(tx, cursors, per_tenant=2, limit=10)
        cut = await hands.store.read_lagging(tx, cursors, per_tenant=10, limit=4)
    assert [(event.tenant_id, event.seq) for event in both] == [(one, 2), (one, 3), (two, 1), (two, 2)]
    assert [(event.tenant_id, event.seq) for event in cut] == [(one, 2), (one, 3), (one, 4), (two, 1)]


async def test_the_next_events_come_in_the_order_of_the_cursors(hands: Hands):
    # so that a round that is cut short begins where the last one ended, and does not starve the last tenants
    one, two = await lagging_tenants(hands, 2)
    async with hands.store.system("test") as tx:
        cursors = await hands.store.lock_lagging(tx, after=one, limit=10, engine_version=1)
        events = await hands.store.read_lagging(tx, cursors, per_tenant=10, limit=10)
    assert [event.tenant_id for event in events] == [two, one]


async def test_a_cursor_that_moved_meanwhile_is_not_moved_again(hands: Hands):
    [tenant] = await lagging_tenants(hands, 1, events=3)
    [seen] = await hands.lagging()
    await drain_all(hands)
    with pytest.raises(LogBroken):
        async with hands.store.system("test") as tx:
            await hands.store.advance(tx, [(seen, 1)], engine_version=1)
    await hands.append(tenant, "order.sent")
    assert await hands.lagging() == [Cursor(tenant_id=tenant, position=3, head=4)]


async def test_two_drains_never_hold_one_cursor(hands: Hands):
    one, two, three = await lagging_tenants(hands, 3)
    if not hands.subject.concurrent:
        pytest.skip("transactions run one after another here")
    first_holds, second_looked = asyncio.Event(), asyncio.Event()

    async def first() -> list[UUID]:
        async with hands.store.system("first") as tx:
            held = await hands.store.lock_lagging(tx, after=None, limit=2, engine_version=1)
            first_holds.set()
            await second_looked.wait()
            return [cursor.tenant_id for cursor in held]

    async def second() -> list[UUID]:
        await first_holds.wait()
        found = [cursor.tenant_id for cursor in await hands.lagging()]
        second_looked.set()
        return found

    assert await asyncio.gather(first(), second()) == [[one, two], [three]]


async def test_a_hole_is_skipped_only_where_there_is_one(hands: Hands):
    tenant, other = await hands.tenant(), await hands.tenant()
    await hands.append(tenant, *["order.paid"] * 6)
    assert await hands.skip_hole(tenant) is None
    for seq in (1, 2, 5, 6):
        await hands.subject.lose_event(tenant, seq)
    assert await hands.skip_hole(tenant) == (1, 2)
    assert await hands.skip_hole(tenant) is None
    [cursor] = await hands.lagging()
    assert (cursor.position, cursor.head) == (2, 6)
    async with hands.store.system("test") as tx:
        [locked] = await hands.store.lock_lagging(tx, after=None, limit=10, engine_version=1)
        await hands.store.advance(tx, [(locked, 4)], engine_version=1)
    # the log's end is missing: nothing comes behind it yet
    assert await hands.skip_hole(tenant) == (5, 6)
    assert await hands.lagging() == []
    assert await hands.skip_hole(tenant) is None
    assert await hands.skip_hole(other) is None
    assert await hands.append(tenant, "order.sent") == (7,)
    assert [event.seq for event in await hands.read(tenant, after=6)] == [7]
