"""Claims and their renewal in memory, on a transaction that `store.py` opens for them alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from mainspring import telemetry
from mainspring.spine.effects import CRASHES_ALONE, Effect, EffectState, Move, step
from mainspring.spine.ports import Claimed, ClaimRequest
from mainspring.stores.memory import values
from mainspring.stores.memory.breakers import breaker_of, is_half_open, without_company
from mainspring.stores.memory.log import rotated
from mainspring.stores.memory.outbox import note, row_of, write
from mainspring.stores.memory.tables import BreakerRecord, EffectRecord, MemoryTransaction, Tables


def is_due(row: EffectRecord, now: datetime) -> bool:
    """Tell whether a row of the executed family waits for a claim now; one without not_before is held."""
    waits = row.state == EffectState.PENDING and row.family == "executed"
    return waits and row.not_before is not None and row.not_before <= now


def is_expired(row: EffectRecord, now: datetime) -> bool:
    """Tell whether a claimed row's lease has run out."""
    return row.state == EffectState.CLAIMED and row.lease_until is not None and row.lease_until < now


def claim(tx: MemoryTransaction, request: ClaimRequest) -> Claimed:
    """Claim what `request` asks for: one row that ended its workers, or ordinary rows, tenant by tenant."""
    after = request.after
    with tx.statement() as now:
        asked = [
            row
            for row in tx.tables.effects.values()
            if row.kind in request.lease_seconds and row.family == "executed"
        ]
        due = sorted((row for row in asked if is_due(row, now)), key=_by_due)
        expired = sorted((row for row in asked if is_expired(row, now)), key=_by_lease)
        if request.alone:
            ready = without_company(tx.tables, [row for row in due if row.crashes >= CRASHES_ALONE], now)
            expired = [row for row in expired if row.crashes + 1 >= CRASHES_ALONE]
            picked = [*ready, *expired][:1]
        else:
            expired = [row for row in expired if row.crashes + 1 < CRASHES_ALONE]
            ordinary = without_company(tx.tables, [row for row in due if row.crashes < CRASHES_ALONE], now)
            ready = _fairly(ordinary, request)
            picked = [*expired, *ready][: request.limit]
            served = picked[len(expired) :]
            after = served[-1].tenant_id if served else after
        picked.sort(key=_by_due)
        claimed = [_claim(tx.tables, row, request, now) for row in picked]
    telemetry.claims_reclaimed.inc(sum(effect.reclaimed for effect in claimed))
    return Claimed(effects=claimed, after=after)


def _fairly(ready: Sequence[EffectRecord], request: ClaimRequest) -> list[EffectRecord]:
    """Return an even share of each tenant's earliest rows, beginning behind the tenant that was served last.

    The rows come earliest first.
    """
    by_tenant: dict[UUID, list[EffectRecord]] = {}
    for row in ready:
        by_tenant.setdefault(row.tenant_id, []).append(row)
    tenants = rotated(list(by_tenant), request.after)[: request.limit]
    share = -(-request.limit // max(len(tenants), 1))
    return [row for tenant in tenants for row in by_tenant[tenant][:share]][: request.limit]


def _by_due(row: EffectRecord) -> tuple[datetime, UUID]:
    assert row.not_before is not None
    return row.not_before, row.id


def _by_lease(row: EffectRecord) -> tuple[datetime, UUID]:
    assert row.lease_until is not None
    return row.lease_until, row.id


def _claim(tables: Tables, row: EffectRecord, request: ClaimRequest, now: datetime) -> Effect:
    reclaimed = row.state == EffectState.CLAIMED
    if reclaimed:
        note(tables, row, now, "lease_lost")
    claim_id, breaker = tables.new_id(), breaker_of(tables, row)
    claimed = replace(
        row,
        state=step(row.state, Move.RECLAIM if reclaimed else Move.CLAIM),
        claim_id=claim_id,
        worker=values.text(request.worker),
        claimed_at=now,
        lease_until=values.later(now, request.lease_seconds[row.kind]),
        crashes=row.crashes + reclaimed,
        deferred_since=row.deferred_since or (None if reclaimed else _waited_since(row, breaker, now)),
    )
    write(tables, claimed)
    probe = not reclaimed and is_half_open(breaker, now)
    if breaker is not None and probe:
        shut = replace(breaker, open_until=claimed.lease_until, changed_at=now)
        tables.breakers.put((row.tenant_id, row.target), shut)
    return Effect(
        tenant_id=row.tenant_id,
        id=row.id,
        kind=row.kind,
        key=row.key,
        payload=row.payload,
        event_seq=row.event_seq,
        rule_id=row.rule_id,
        rule_version=row.rule_version,
        target=row.target,
        attempts=row.attempts,
        crashes=claimed.crashes,
        epoch=row.epoch,
        claim_id=claim_id,
        deferred_seconds=(now - (claimed.deferred_since or now)) / timedelta(seconds=1),
        waited_seconds=max((now - (row.not_before or now)) / timedelta(seconds=1), 0.0),
        reclaimed=reclaimed,
        deferrals=row.deferrals,
        probe=probe,
        down_seconds=None if probe else _down_seconds(breaker, now),
        doubted=breaker is not None,
    )


def _down_seconds(breaker: BreakerRecord | None, now: datetime) -> float | None:
    if breaker is None or breaker.open_until is None:
        return None
    return max((breaker.open_until - now) / timedelta(seconds=1), 0.0)


def _waited_since(row: EffectRecord, breaker: BreakerRecord | None, now: datetime) -> datetime | None:
    """Return since when a row has waited behind its target's breaker, though nobody has touched it."""
    if breaker is None or breaker.down_since is None:
        return None
    return max(row.not_before or now, breaker.down_since)


def renew(tx: MemoryTransaction, claims: Sequence[tuple[UUID, UUID, UUID, float]]) -> frozenset[UUID]:
    """Renew claims; return the ids whose claim is lost."""
    lost: set[UUID] = set()
    with tx.statement() as now:
        for tenant, effect, claim_id, lease_seconds in claims:
            row = row_of(tx.tables, tenant, effect)
            if row is None or row.state != EffectState.CLAIMED or row.claim_id != claim_id:
                lost.add(effect)
            else:
                write(tx.tables, replace(row, lease_until=values.later(now, lease_seconds)))
    return frozenset(lost)
