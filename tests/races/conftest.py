"""A library database with a tenant, a store on it, and connections whose transactions a test opens and ends by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from mainspring.ids import new_id
from mainspring.spine.effects import Effect, NewEffect
from mainspring.spine.ports import ClaimRequest
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.deadlines import age
from mainspring.stores.postgres.store import SQL


class Ground:
    """What an interleaving is played on."""

    def __init__(self, pool: Any, tenant: UUID, connect: Callable[[], Awaitable[Any]]) -> None:
        self.pool = pool
        self.store = PostgresStore(pool)
        self.tenant = tenant
        self.connect = connect

    async def owe(self, *keys: str, kind: str = "work", tenant: UUID | None = None) -> None:
        async with self.store.system("test") as tx:
            await self.store.owe_drained(
                tx, [(tenant or self.tenant, NewEffect(kind, key=key)) for key in keys]
            )

    def request(
        self, worker: str = "w", *, limit: int = 10, lease_seconds: float = 60.0, **more: Any
    ) -> ClaimRequest:
        return ClaimRequest(worker=worker, lease_seconds={"work": lease_seconds}, limit=limit, **more)

    async def claim(self, worker: str = "w", **more: Any) -> list[Effect]:
        return (await self.store.claim(self.request(worker, **more))).effects

    async def age(self, seconds: float) -> None:
        async with self.pool.acquire() as conn:
            await age(conn, seconds)

    async def claim_in(self, conn: Any, worker: str, *, limit: int = 10) -> list[UUID]:
        """The claim statement alone, in a transaction that stays open."""
        found = await conn.fetch(SQL["claim"], worker, ["work"], [60.0], limit, UUID(int=0), 2, 1e6)
        return [row["id"] for row in found if row["id"] is not None]

    async def states(self) -> dict[str, str]:
        found = await self.pool.fetch("select key, state from mainspring.effects order by key")
        return {row["key"]: row["state"] for row in found}


@pytest.fixture
async def ground(fresh_database: Callable[..., Awaitable[Any]]) -> AsyncIterator[Ground]:
    database = await fresh_database("library")
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(asyncpg.create_pool(**database.dsn, min_size=2, max_size=6))

        async def connect() -> Any:
            conn = await asyncpg.connect(**database.dsn)
            stack.push_async_callback(conn.close)
            return conn

        ground = Ground(pool, new_id(), connect)
        async with ground.store.system("test") as tx:
            await ground.store.create_tenant(tx, ground.tenant, "one")
        yield ground
