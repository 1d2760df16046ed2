"""The engine's ports in memory. One lock stands for the whole database: transactions run one after another.

Time is the store's own: it stands still until `age()` moves it, so that a test decides when a lease runs out.
Nothing outlives the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING
from uuid import UUID

from mainspring.ids import new_id
from mainspring.spine.effects import CRASHES_ALONE
from mainspring.spine.errors import Misuse
from mainspring.spine.ports import Claimed, ClaimRequest, Due
from mainspring.stores.memory import claiming
from mainspring.stores.memory.breakers import MemoryBreakers, is_down
from mainspring.stores.memory.log import MemoryLog
from mainspring.stores.memory.outbox import MemoryOutbox
from mainspring.stores.memory.tables import Clock, MemoryTransaction, Tables

if TYPE_CHECKING:
    from mainspring.spine.ports import Store

_open_scope: ContextVar[str | None] = ContextVar("mainspring_open_memory_scope", default=None)


class MemoryStore(MemoryLog, MemoryBreakers, MemoryOutbox):
    """A store for tests and simulation.

    Args:
        elapsed: how many seconds have passed; None for a clock that only `age` moves. `time.monotonic` lets it run.
        ids: makes ids and claims; give your own for runs that repeat exactly. Later ids must sort after earlier ones.
    """

    def __init__(
        self, *, elapsed: Callable[[], float] | None = None, ids: Callable[[], UUID] = new_id
    ) -> None:
        self._tables = Tables(clock=Clock(elapsed), new_id=ids)
        self._lock = asyncio.Lock()

    def age(self, seconds: float) -> None:
        """Let time pass: leases run out and delays end as if `seconds` had gone by."""
        self._tables.clock.move(seconds)

    def tenant(self, tenant: UUID) -> AbstractAsyncContextManager[MemoryTransaction]:
        """Open a transaction for one tenant."""
        return self._open("command", tenant)

    def system(self, purpose: str) -> AbstractAsyncContextManager[MemoryTransaction]:
        """Open a transaction for all tenants."""
        return self._open(purpose, None)

    @asynccontextmanager
    async def adopt(
        self, connection: MemoryTransaction | None, tenant: UUID
    ) -> AsyncIterator[MemoryTransaction]:
        """Join the transaction that the caller has open, undoing only the block when it raises; open one for None."""
        if connection is None:
            async with self._open("adopted", tenant) as tx:
                yield tx
        else:
            with connection.savepoint():
                yield connection

    @asynccontextmanager
    async def savepoint(self, tx: MemoryTransaction) -> AsyncIterator[None]:
        """Undo only the block when it raises."""
        with tx.savepoint():
            yield

    @asynccontextmanager
    async def _open(self, purpose: str, tenant: UUID | None) -> AsyncIterator[MemoryTransaction]:
        inside = _open_scope.get()
        if inside is not None:
            raise Misuse(f"a scope ({purpose}) inside a scope ({inside}): use the one that is open")
        token = _open_scope.set(purpose)
        try:
            # a database answers after other tasks had their turn; without it a busy loop would never let them in
            await asyncio.sleep(0)
            async with self._lock:
                tx = MemoryTransaction(self._tables, purpose=purpose, tenant=tenant)
                with tx.run():
                    yield tx
        finally:
            _open_scope.reset(token)

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Claim due effects, fairly over tenants, and those whose lease has run out."""
        async with self._open("claim", None) as tx:
            return claiming.claim(tx, request)

    async def renew(self, claims: Sequence[tuple[UUID, UUID, UUID, float]]) -> frozenset[UUID]:
        """Renew claims; return the ids whose claim is lost."""
        async with self._open("renew", None) as tx:
            return claiming.renew(tx, claims)

    async def due(self, lease_kinds: Sequence[str]) -> Due:
        """Answer what is due anywhere."""
        async with self._open("tick", None) as tx:
            with tx.statement() as now:
                rows, heads = tx.tables.effects.values(), tx.tables.heads.items()
                ready = [
                    row for row in rows if claiming.is_due(row, now) and not is_down(tx.tables, row, now)
                ]
                expired = [row for row in rows if claiming.is_expired(row, now) and row.kind in lease_kinds]
                return Due(
                    lagging=any(head > (tx.tables.cursors.get(tenant) or 0) for tenant, head in heads),
                    effects=bool(ready or expired),
                    alone=any(row.crashes >= CRASHES_ALONE and row.kind in lease_kinds for row in ready)
                    or any(row.crashes + 1 >= CRASHES_ALONE for row in expired),
                )


if TYPE_CHECKING:

    def _is_a_store(store: MemoryStore) -> Store[MemoryTransaction]:
        return store
