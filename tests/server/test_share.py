"""Requests have a share of the connections: however many come, the engine's own transactions find one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import Context
from uuid import UUID

import pytest

from mainspring import wiring
from mainspring.config import Settings
from mainspring.db import as_request
from mainspring.ids import new_id
from mainspring.wiring import Services


@pytest.fixture
async def crowded(database) -> AsyncIterator[Services]:
    """A process with four connections, of which requests may have two."""
    built = await wiring.build(Settings(database_url=database.url, pool_size=4))
    yield built
    await built.stop()


class Rush:
    """Requests that hold their connection until they are let go."""

    def __init__(self, services: Services, size: int) -> None:
        self._services = services
        self.holding = asyncio.Semaphore(0)
        self._let_go = asyncio.Event()
        self.tasks = [asyncio.create_task(self._request()) for _ in range(size)]

    async def _request(self) -> None:
        with as_request():
            async with self._services.db.system("readiness") as scope:
                await scope.fetchval("select 1")
                self.holding.release()
                await self._let_go.wait()

    async def hold(self, n: int) -> None:
        """Return once so many hold one, and no more can."""
        for _ in range(n):
            await self.holding.acquire()

    async def end(self) -> None:
        self._let_go.set()
        await asyncio.wait(self.tasks)


async def test_a_rush_of_requests_leaves_connections_to_the_engine(crowded: Services) -> None:
    rush = Rush(crowded, 6)
    await rush.hold(2)
    async with crowded.db.system("drain") as scope:
        assert await scope.fetchval("select 1") == 1
        assert rush.holding.locked(), "the others wait for their turn"
    await rush.end()
    assert [task.exception() for task in rush.tasks] == [None] * 6


async def test_so_does_the_smallest_pool_that_is_allowed(database) -> None:
    smallest = next(one.ge for one in Settings.model_fields["pool_size"].metadata if hasattr(one, "ge"))
    services = await wiring.build(Settings(database_url=database.url, pool_size=smallest))
    try:
        rush = Rush(services, smallest)
        await rush.hold(1)
        held = asyncio.Event()
        async with asyncio.timeout(20):
            async with services.spine.worker.transaction(await _tenant(services)):
                renewing = asyncio.create_task(_renew(services, held), context=Context())
                await held.wait()
        await renewing
        assert rush.holding.locked(), "requests have one among them"
        await rush.end()
    finally:
        await services.stop()


async def _tenant(services: Services) -> UUID:
    tenant = new_id()
    await services.spine.create_tenant(tenant, "acme")
    return tenant


async def _renew(services: Services, held: asyncio.Event) -> None:
    async with services.db.system("renew") as scope:
        await scope.fetchval("select 1")
        held.set()


async def test_one_that_is_cancelled_while_it_waits_takes_no_turn_away(crowded: Services) -> None:
    rush = Rush(crowded, 3)
    await rush.hold(2)
    rush.tasks[2].cancel()
    await rush.end()
    again = Rush(crowded, 2)
    async with asyncio.timeout(20):
        await again.hold(2)
    await again.end()


async def test_every_request_is_counted_among_them(board, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    asked = type(board.services.db)._turn

    def noted(self):
        from mainspring import db

        seen.append(db._is_request.get())
        return asked(self)

    monkeypatch.setattr(type(board.services.db), "_turn", noted)
    await board.get("cards")
    assert seen
    assert all(seen)
    seen.clear()
    await board.settle()
    assert seen
    assert not any(seen)
