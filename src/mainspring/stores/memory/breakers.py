"""The breakers in memory, and what claims ask of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from mainspring.spine.breaker import Breaker, BreakerRow
from mainspring.spine.effects import DEFER_LIMIT_SECONDS
from mainspring.spine.ports import BreakerChange, Target
from mainspring.stores.memory import values
from mainspring.stores.memory.tables import BreakerRecord, EffectRecord, MemoryTransaction, Tables


class MemoryBreakers:
    """Which targets have failed of late."""

    async def lock_breakers(
        self, tx: MemoryTransaction, targets: Collection[Target]
    ) -> dict[Target, Breaker]:
        """Return the breakers of these targets; one that did not stand stands clean."""
        with tx.statement() as now:
            for tenant, name in sorted(set(targets)):
                values.text(name)
                row = tx.tables.breakers.get((tenant, name)) or BreakerRecord(
                    tenant_id=tenant,
                    target=name,
                    failures=0,
                    trips=0,
                    open_until=None,
                    down_since=None,
                    error=None,
                    changed_at=now,
                )
                tx.tables.breakers.put((tenant, name), replace(row, changed_at=now))
            found = {target: tx.tables.breakers.get(target) for target in targets}
            return {
                target: Breaker(failures=row.failures, trips=row.trips)
                for target, row in found.items()
                if row is not None
            }

    async def write_breakers(self, tx: MemoryTransaction, changes: Sequence[BreakerChange]) -> None:
        """Write breakers and remove the clean ones."""
        with tx.statement() as now:
            for change in changes:
                values.text(change.error or "")
                if change.breaker.is_clean:
                    tx.tables.breakers.remove(change.target)
                elif (row := tx.tables.breakers.get(change.target)) is not None:
                    tx.tables.breakers.put(change.target, _changed(row, change, now))

    async def breakers(self, tx: MemoryTransaction, tenant: UUID) -> list[BreakerRow]:
        """Return a tenant's breakers, by target."""
        with tx.statement():
            rows = [row for row in tx.tables.breakers.values() if row.tenant_id == tenant]
            return [row.shown for row in sorted(rows, key=lambda row: row.target)]

    async def forget_breakers(self, tx: MemoryTransaction, *, idle_seconds: float) -> int:
        """Remove the breakers that nothing has happened to for so long."""
        with tx.statement() as now:
            before = values.later(now, -idle_seconds)
            idle = [
                row
                for row in tx.tables.breakers.values()
                if row.changed_at < before and (row.open_until is None or row.open_until < before)
            ]
            for row in idle:
                tx.tables.breakers.remove((row.tenant_id, row.target))
            return len(idle)


def _changed(row: BreakerRecord, change: BreakerChange, now: datetime) -> BreakerRecord:
    closed, seconds = change.breaker.is_closed, change.open_seconds
    open_until = row.open_until if seconds is None else values.later(now, seconds)
    return replace(
        row,
        failures=change.breaker.failures,
        trips=change.breaker.trips,
        open_until=None if closed else open_until,
        down_since=None if closed else row.down_since or now,
        error=row.error if change.error is None else change.error,
        changed_at=now,
    )


def breaker_of(tables: Tables, row: EffectRecord) -> BreakerRecord | None:
    """Return the breaker of an effect's target."""
    return tables.breakers.get((row.tenant_id, row.target))


def is_down(tables: Tables, row: EffectRecord, now: datetime) -> bool:
    """Tell whether an effect waits for its target, and has not waited as long as anything may."""
    breaker = breaker_of(tables, row)
    if breaker is None or breaker.open_until is None or breaker.open_until <= now:
        return False
    assert breaker.down_since is not None
    limit = values.later(now, -DEFER_LIMIT_SECONDS)
    return not (breaker.down_since <= limit and row.not_before is not None and row.not_before <= limit)


def is_half_open(breaker: BreakerRecord | None, now: datetime) -> bool:
    """Tell whether a target's time is up, so that one effect may try."""
    return breaker is not None and breaker.open_until is not None and breaker.open_until <= now


def without_company(tables: Tables, ready: Sequence[EffectRecord], now: datetime) -> list[EffectRecord]:
    """Return rows, earliest first, with one alone of each target that is half-open, and none that waits for its target."""
    probed: set[Target] = set()
    kept: list[EffectRecord] = []
    for row in ready:
        target = (row.tenant_id, row.target)
        if is_down(tables, row, now) or target in probed:
            continue
        if is_half_open(breaker_of(tables, row), now):
            probed.add(target)
        kept.append(row)
    return kept
