"""What the engine is told of other processes, and what it tells of itself: nothing of it is believed but that it is time to look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from mainspring.ids import new_id
from mainspring.spine.drain import Drained
from mainspring.spine.effects import NewEffect
from mainspring.spine.engine import Spine, SpineSettings
from mainspring.spine.errors import Transient
from mainspring.spine.events import Event, NewEvent, Written
from mainspring.spine.outcomes import Done
from mainspring.spine.ports import NotOwed, Owes
from tests.conformance.hands import Hands


@pytest.fixture
def spine(hands: Hands) -> Spine[Any]:
    """An engine whose tick comes too late for any test; `order.paid` owes a receipt."""
    made: Spine[Any] = Spine(hands.store, SpineSettings(tick_seconds=3600.0, due_sweep_seconds=3600.0))

    @made.owes("order.paid")
    def receipt(event: Event) -> Owes | NotOwed:
        return Owes(NewEffect("receipt", key=str(event.seq)))

    @made.effect("receipt")
    async def send(_: object) -> Done:
        return Done()

    return made


@asynccontextmanager
async def started(spine: Spine[Any]) -> AsyncIterator[None]:
    """Running, and through with what a start looks at by itself."""
    async with spine.running():
        await spine.catch_up([])
        await spine.catch_up([])
        yield


async def lagging(hands: Hands) -> list[UUID]:
    return [cursor.tenant_id for cursor in await hands.lagging()]


async def test_catching_up_drains_the_named_and_returns_when_they_are(hands: Hands, spine: Spine[Any]):
    tenant, other = await hands.tenant(), await hands.tenant()
    async with started(spine):
        await hands.append(tenant, "order.paid")
        await hands.append(other, "order.paid")
        async with asyncio.timeout(10):
            await spine.catch_up([tenant, new_id()])
        assert await lagging(hands) == [other]


async def test_catching_up_raises_what_the_round_raised_and_the_next_one_does_not(
    hands: Hands, spine: Spine[Any], monkeypatch: pytest.MonkeyPatch
):
    tenant = await hands.tenant()
    async with started(spine):
        await hands.append(tenant, "order.paid")
        with monkeypatch.context() as down:

            async def lost(*_: object, **__: object) -> None:
                raise Transient("the database is away")

            down.setattr(hands.store, "lock_called", lost)
            async with asyncio.timeout(10):
                with pytest.raises(Transient):
                    await spine.catch_up([tenant])
        async with asyncio.timeout(10):
            await spine.catch_up([tenant])
        assert await lagging(hands) == []


async def test_who_is_gone_before_the_round_has_ended_is_missed_by_nobody(hands: Hands, spine: Spine[Any]):
    tenant = await hands.tenant()
    async with started(spine):
        await hands.append(tenant, "order.paid")
        waiting = asyncio.create_task(spine.catch_up([tenant]))
        await asyncio.sleep(0)
        waiting.cancel()
        async with asyncio.timeout(10):
            await spine.catch_up([tenant])
        assert await lagging(hands) == []


async def test_looking_everywhere_finds_whatever_was_missed(hands: Hands, spine: Spine[Any]):
    tenants = [await hands.tenant() for _ in range(3)]
    looked = asyncio.Event()

    async def look() -> bool:
        looked.set()
        return False

    spine.register_loop("a room's own", look, every_seconds=3600.0)
    async with started(spine):
        looked.clear()
        for tenant in tenants:
            await hands.append(tenant, "order.paid")
        spine.look_everywhere()
        async with asyncio.timeout(10):
            await looked.wait()
            while await lagging(hands):  # noqa: ASYNC110 - a drain tells nobody that it is through
                await asyncio.sleep(0.01)


async def test_what_is_committed_and_drained_is_told_once_it_is(hands: Hands, spine: Spine[Any]):
    tenant = await hands.tenant()
    told: list[object] = []
    spine.on_written(lambda whose, written: told.append((whose, written)))
    spine.on_drained(told.append)
    with pytest.raises(ZeroDivisionError):
        async with spine.open(tenant) as tx:
            tx.append(NewEvent("order.paid", subject="lost"))
            raise ZeroDivisionError
    async with spine.open(tenant) as tx:
        tx.append(NewEvent("order.paid", subject="42"))
        tx.append(NewEvent("order.sent", subject="43"))
        assert tx.written == ()
    async with spine.open(tenant):
        pass
    await spine._drain_round()
    await spine._drain_round()
    assert told == [
        (tenant, (Written(1, "order.paid", "42"), Written(2, "order.sent", "43"))),
        Drained(events=2, owed=1, reached={tenant: 2}),
    ]


async def test_what_others_commit_and_owe_wakes_who_waits_and_drains_nothing(hands: Hands, spine: Spine[Any]):
    tenant = await hands.tenant()
    heard: list[object] = []
    spine.on_commit(lambda whose, kinds: heard.append((whose, kinds)))
    spine.on_owed(lambda: heard.append("owed"))
    await hands.append(tenant, "order.paid")
    spine.heard(tenant, ("order.paid",))
    spine.heard_owed()
    assert heard == [(tenant, ("order.paid",)), "owed"]
    assert await lagging(hands) == [tenant]
