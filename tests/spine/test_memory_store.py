"""What only the store in memory promises: runs that repeat exactly, and a clock that its owner moves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from mainspring.ids import new_id
from mainspring.spine.effects import Done, EffectKind, EffectState, NewEffect, Retry, resolve
from mainspring.spine.errors import Misuse
from mainspring.spine.events import NewEvent
from mainspring.spine.ports import ClaimRequest
from mainspring.stores.memory import MemoryStore

TENANT = UUID(int=1)
KIND = EffectKind(name="mail")
WORKER = ClaimRequest(worker="w1", lease_seconds={"mail": 60.0}, limit=10)


async def tell(store: MemoryStore) -> list[Any]:
    """A story with something of everything; returns all that can be seen of it."""
    async with store.system("test") as tx:
        await store.create_tenant(tx, TENANT, "acme")
    async with store.tenant(TENANT) as tx:
        await store.owe(tx, [(TENANT, NewEffect("mail", key=key)) for key in "abc"])
        await store.append(tx, TENANT, [NewEvent("order.paid")])
    first, second, _ = (await store.claim(WORKER)).effects
    async with store.tenant(TENANT) as tx:
        await store.settle(
            tx, [resolve(first, Done(), KIND, random=0.5), resolve(second, Retry("x"), KIND, random=0.5)]
        )
    store.age(61)
    await store.claim(WORKER)
    async with store.tenant(TENANT) as tx:
        rows = await store.effects(tx, TENANT)
        attempts = [await store.attempts(tx, TENANT, row.id) for row in rows]
        return [rows, attempts, await store.read(tx, TENANT, after=0, limit=10)]


async def test_the_same_story_is_the_same_to_the_microsecond():
    first, again = [await tell(MemoryStore(ids=numbered().__next__)) for _ in range(2)]
    assert first == again


def numbered() -> Iterator[UUID]:
    return (UUID(int=n) for n in count(100))


async def test_time_passes_only_when_it_is_moved_unless_a_clock_is_given():
    still, moved = MemoryStore(), [0.0]
    running = MemoryStore(elapsed=lambda: moved[0])
    for store in (still, running):
        await tell(store)
        assert (await store.claim(WORKER)).effects == []
    moved[0] += 61
    alone = ClaimRequest(worker="w", lease_seconds={"mail": 1.0}, limit=1, alone=True)
    assert len((await running.claim(alone)).effects) == 1
    assert (await still.claim(WORKER)).effects == []


async def test_a_task_that_never_waits_still_lets_the_others_in():
    store, turns = MemoryStore(), []

    async def busy(name: str) -> None:
        for _ in range(3):
            async with store.system(name):
                turns.append(name)

    await asyncio.gather(busy("one"), busy("other"))
    assert turns == ["one", "other"] * 3


async def test_transactions_run_one_after_another():
    store, inside = MemoryStore(), 0

    async def act() -> None:
        nonlocal inside
        async with store.system("test") as tx:
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            await store.create_tenant(tx, new_id(), "acme")
            inside -= 1

    await asyncio.gather(*(act() for _ in range(10)))


async def test_a_transaction_adopted_inside_an_open_one_is_part_of_it():
    store = MemoryStore()
    async with store.system("test") as tx:
        await store.create_tenant(tx, TENANT, "acme")
    with pytest.raises(ZeroDivisionError):
        async with store.system("a caller's own") as outer:
            async with store.adopt(outer, TENANT) as tx:
                await store.append(tx, TENANT, [NewEvent("order.paid")])
            assert await store.head(outer, TENANT) == 1
            raise ZeroDivisionError
    async with store.tenant(TENANT) as tx:
        assert await store.head(tx, TENANT) == 0


async def test_a_transaction_that_failed_takes_no_further_verb():
    store = MemoryStore()
    with pytest.raises(Misuse, match="failed"):
        async with store.tenant(TENANT) as tx:
            with pytest.raises(Exception, match="NUL"):
                await store.owe(tx, [(TENANT, NewEffect("mail", key="\x00"))])
            await store.owe(tx, [(TENANT, NewEffect("mail", key="1"))])
    async with store.tenant(TENANT) as tx:
        assert await store.effects(tx, TENANT, state=EffectState.PENDING) == []
