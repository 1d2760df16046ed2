"""The engine with one effect that does nothing: what every measurement of ours runs on."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from uuid import UUID

import asyncpg
from figures import Lost

from mainspring import Done, Effect, Event, NewEffect, Outcome, Owes, Spine
from mainspring.db import Scope
from mainspring.ids import new_id
from mainspring.stores.postgres import PostgresStore

KIND = "noop"
EVENT = "bench.happened"
_LOAD_BATCH = 2_000


@dataclass
class Bench:
    """A store on a database of its own, its one tenant, and what its executor was called for."""

    pool: asyncpg.Pool
    store: PostgresStore
    tenant: UUID = field(default_factory=new_id)
    executed: int = 0
    goal: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    clocked: bool = False
    started: dict[str, float] = field(default_factory=dict)

    def spine(self) -> Spine[Scope]:
        """Make an engine that knows what events owe and how that is done; it is started and stopped once."""
        spine: Spine[Scope] = Spine(self.store)

        @spine.owes(EVENT)
        def owed(event: Event) -> Owes:
            return Owes(NewEffect(KIND, key=event.subject, event_seq=event.seq))

        spine.effect(KIND)(self._noop)
        return spine

    async def _noop(self, effect: Effect) -> Outcome:
        if self.clocked:
            self.started[effect.key] = time.perf_counter()  # the loop's own clock has steps of a millisecond
        self.executed += 1
        if self.executed == self.goal:
            self.reached.set()
        return Done()

    async def create_tenant(self) -> None:
        """Make the tenant; once."""
        await self.spine().create_tenant(self.tenant, "bench")

    def expect(self, n: int, *, clocked: bool = False) -> None:
        """Count from zero to n; note when each begins where that is what is measured."""
        self.executed, self.goal, self.clocked = 0, n, clocked
        self.started.clear()
        self.reached.clear()

    async def finished(self, spine: Spine[Scope]) -> None:
        """Return when the expected number was executed and the last of them is settled."""
        await self.reached.wait()
        while spine.worker.in_hand:  # noqa: ASYNC110 - a worker tells how much it holds, not when it lets go
            await asyncio.sleep(0.0005)

    async def owe(self, n: int, *, prefix: str = "") -> None:
        """Put n due effects into the outbox."""
        for first in range(0, n, _LOAD_BATCH):
            keys = [f"{prefix}{i:08}" for i in range(first, min(first + _LOAD_BATCH, n))]
            async with self.store.tenant(self.tenant) as tx:
                await self.store.owe_drained(tx, [(self.tenant, NewEffect(KIND, key=key)) for key in keys])

    async def empty(self) -> None:
        """Forget all events and effects, so that every round starts from the same tables."""
        async with self.pool.acquire() as conn, conn.transaction():
            await conn.execute(
                "truncate mainspring.effects, mainspring.effect_attempts, mainspring.events, mainspring.due_tenants"
            )
            await conn.execute("update mainspring.log_heads set head = 0")
            await conn.execute("update mainspring.cursors set position = 0")

    async def check(self, n: int) -> None:
        """Nothing was lost and nothing ran twice: n rows, each done at its first attempt, n calls."""
        async with self.pool.acquire() as conn:
            rows, done = await conn.fetchrow(
                "select count(*), count(*) filter (where state = 'done' and attempts = 0 and crashes = 0)"
                " from mainspring.effects"
            )
            noted = await conn.fetchval("select count(*) from mainspring.effect_attempts")
        if (rows, done, noted, self.executed) != (n, n, 0, n):
            raise Lost(
                f"of {n}: {rows} rows, {done} done at once, {noted} attempts noted, {self.executed} executed"
            )
