"""The log and its cursors in memory: the verbs of EventLog and Cursors, each on an open transaction."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from itertools import count, islice, takewhile
from uuid import UUID

from mainspring.spine.errors import LogBroken, Misuse, Transient
from mainspring.spine.events import Event, NewEvent
from mainspring.spine.ports import Cursor
from mainspring.stores.memory import values
from mainspring.stores.memory.tables import MemoryTransaction


def rotated(tenants: Sequence[UUID], after: UUID | None) -> list[UUID]:
    """Return tenants in order, beginning behind `after` and wrapping."""
    return sorted(tenants, key=lambda tenant: (after is not None and tenant <= after, tenant))


class MemoryLog:
    """A log and a cursor for each tenant."""

    engine_version = 1

    async def create_tenant(self, tx: MemoryTransaction, tenant: UUID, name: str) -> bool:
        """Bring a tenant, its log and its cursor into being together; False when it exists already."""
        with tx.statement():
            values.check_tenant(name, tenant)
            if tx.tables.tenants.get(tenant) is not None:
                return False
            tx.tables.tenants.put(tenant, name)
            tx.tables.heads.put(tenant, 0)
            tx.tables.cursors.put(tenant, 0)
            return True

    async def append(
        self, tx: MemoryTransaction, tenant: UUID, events: Sequence[NewEvent]
    ) -> tuple[int, ...]:
        """Write the events and return their seqs; raise Misuse when the tenant has no log, or when it is not the first."""
        with tx.statement():
            tx.append_only_for(tenant)
            return self._write(tx, tenant, events)

    @staticmethod
    def _write(tx: MemoryTransaction, tenant: UUID, events: Sequence[NewEvent]) -> tuple[int, ...]:
        head = tx.tables.heads.get(tenant)
        if head is None:
            raise Misuse(f"tenant {tenant} has no log: create_tenant comes first")
        seqs = tuple(range(head + 1, head + 1 + len(events)))
        for seq, event in zip(seqs, events, strict=True):
            values.check_event(event)
            tx.tables.events.put(
                (tenant, seq),
                Event(
                    tenant_id=tenant,
                    seq=seq,
                    id=tx.tables.new_id(),
                    kind=event.kind,
                    subject=event.subject,
                    actor_id=event.actor_id,
                    data=values.json(event.data),
                    cause_seq=event.cause.seq,
                    via=tuple(event.cause.via),
                    depth=event.cause.depth,
                    trust=event.cause.trust,
                    traceparent=event.traceparent,
                    occurred_at=tx.tables.clock.read(),
                ),
            )
        tx.tables.heads.put(tenant, head + len(events))
        return seqs

    async def traceparents(
        self, tx: MemoryTransaction, events: Sequence[tuple[UUID, int]]
    ) -> Mapping[tuple[UUID, int], str]:
        """Return where these events came from, those that say so."""
        with tx.statement():
            found = {key: tx.tables.events.get(key) for key in events}
        return {
            key: event.traceparent
            for key, event in found.items()
            if event is not None and event.traceparent is not None
        }

    async def read(self, tx: MemoryTransaction, tenant: UUID, *, after: int, limit: int) -> list[Event]:
        """Return a tenant's events behind `after`, in order."""
        with tx.statement():
            return _behind(tx, tenant, after, limit)

    async def events_at(self, tx: MemoryTransaction, tenant: UUID, seqs: Collection[int]) -> dict[int, Event]:
        """Return the events of exactly these seqs, by seq; those that are not kept any more are left out."""
        with tx.statement():
            found = (tx.tables.events.get((tenant, seq)) for seq in sorted(set(seqs)))
            return {event.seq: event for event in found if event is not None}

    async def head(self, tx: MemoryTransaction, tenant: UUID) -> int:
        """Return the seq of a tenant's last event, 0 before the first."""
        with tx.statement():
            return tx.tables.heads.get(tenant) or 0

    async def lock_lagging(
        self, tx: MemoryTransaction, *, after: UUID | None, limit: int, engine_version: int
    ) -> list[Cursor]:
        """Return cursors behind their head; none to an engine older than the rows."""
        with tx.statement():
            if self.engine_version > engine_version:
                return []
            lagging = {
                tenant: Cursor(tenant_id=tenant, position=position, head=tx.tables.heads.get(tenant) or 0)
                for tenant, position in tx.tables.cursors.items()
                if position < (tx.tables.heads.get(tenant) or 0)
            }
            return [lagging[tenant] for tenant in rotated(list(lagging), after)[:limit]]

    async def lock_called(
        self, tx: MemoryTransaction, tenants: Sequence[UUID], *, engine_version: int
    ) -> list[Cursor]:
        """The same of these tenants alone, by tenant."""
        every = sys.maxsize
        lagging = await self.lock_lagging(tx, after=None, limit=every, engine_version=engine_version)
        return [cursor for cursor in lagging if cursor.tenant_id in tenants]

    async def read_lagging(
        self, tx: MemoryTransaction, cursors: Sequence[Cursor], *, per_tenant: int, limit: int
    ) -> list[Event]:
        """Return the next events of the locked cursors, whole prefixes by tenant."""
        with tx.statement():
            found = (event for c in cursors for event in _behind(tx, c.tenant_id, c.position, per_tenant))
            return list(islice(found, limit))

    async def advance(
        self, tx: MemoryTransaction, moves: Sequence[tuple[Cursor, int]], *, engine_version: int
    ) -> None:
        """Move each locked cursor to its new position; raise LogBroken when one has moved meanwhile."""
        with tx.statement():
            if self.engine_version > engine_version:
                raise Transient(
                    f"the rows ask for engine version {self.engine_version} by now, and this is {engine_version}"
                )
            for cursor, position in moves:
                if tx.tables.cursors.get(cursor.tenant_id) != cursor.position:
                    raise LogBroken(f"the cursor of tenant {cursor.tenant_id} moved while it was locked")
                tx.tables.cursors.put(cursor.tenant_id, position)

    async def position(self, tx: MemoryTransaction, tenant: UUID) -> int | None:
        """Return up to which seq a tenant's log is drained."""
        with tx.statement():
            return tx.tables.cursors.get(tenant)

    async def required_engine_version(self, tx: MemoryTransaction) -> int:
        """Return which engine version the rows ask for."""
        with tx.statement():
            return self.engine_version

    async def skip_hole(self, tx: MemoryTransaction, tenant: UUID) -> tuple[int, int] | None:
        """Move a cursor that stands before a hole in its log to behind it."""
        with tx.statement():
            position, head = tx.tables.cursors.get(tenant) or 0, tx.tables.heads.get(tenant) or 0
            later = [
                seq for (owner, seq), _ in tx.tables.events.items() if owner == tenant and seq > position
            ]
            following = min(later, default=head + 1)
            if following <= position + 1:
                return None
            tx.tables.cursors.put(tenant, following - 1)
            return position + 1, following - 1


def _behind(tx: MemoryTransaction, tenant: UUID, after: int, limit: int) -> list[Event]:
    found = (tx.tables.events.get((tenant, seq)) for seq in count(max(after, 0) + 1))
    return [event for event in takewhile(lambda event: event is not None, islice(found, limit)) if event]
