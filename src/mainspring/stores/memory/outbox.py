"""The outbox in memory: the verbs of Outbox on an open transaction."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from mainspring import telemetry
from mainspring.spine.effects import (
    FINAL,
    AlreadyOwed,
    Attempt,
    EffectRow,
    EffectState,
    Move,
    NewEffect,
    Owed,
    Settlement,
    step,
)
from mainspring.spine.errors import Misuse
from mainspring.spine.ports import Settled
from mainspring.stores.memory import values
from mainspring.stores.memory.tables import EffectRecord, MemoryTransaction, Tables


def row_of(tables: Tables, tenant: UUID, effect: UUID) -> EffectRecord | None:
    return tables.effects.get((tenant, effect))


def write(tables: Tables, record: EffectRecord) -> None:
    tables.effects.put((record.tenant_id, record.id), record)


def note(tables: Tables, record: EffectRecord, now: datetime, outcome: str, error: str | None = None) -> None:
    """Record how the claim that `record` stands under ended."""
    assert record.claim_id is not None
    assert record.worker is not None
    assert record.claimed_at is not None
    earlier = tables.attempts.get((record.tenant_id, record.id)) or ()
    attempt = Attempt(
        n=len(earlier) + 1,
        epoch=record.epoch,
        claim_id=record.claim_id,
        worker=record.worker,
        started_at=record.claimed_at,
        ended_at=now,
        outcome=outcome,
        error=error,
    )
    tables.attempts.put((record.tenant_id, record.id), (*earlier, attempt))


class MemoryOutbox:
    """The effects that are owed, and who holds them."""

    async def owe(
        self, tx: MemoryTransaction, effects: Sequence[tuple[UUID, NewEffect]]
    ) -> list[Owed | AlreadyOwed]:
        """Insert the effects that no row stands for yet; raise Misuse for another payload under the same key."""
        with tx.statement() as now:
            answers = [_owe(tx.tables, tenant, effect, now) for tenant, effect in effects]
            for (_, effect), answer in zip(effects, answers, strict=True):
                if isinstance(answer, EffectRecord) and not values.same_json(
                    answer.payload, values.json(effect.payload)
                ):
                    raise Misuse(f"{effect.kind} {effect.key} is owed already, with another payload")
        _count_owed(effects, answers)
        return [
            AlreadyOwed(answer.id, answer.state) if isinstance(answer, EffectRecord) else answer
            for answer in answers
        ]

    async def make_due(self, tx: MemoryTransaction, owed: Sequence[tuple[UUID, UUID]]) -> None:
        """Claims look at the rows themselves here."""

    async def owe_absent(
        self, tx: MemoryTransaction, effects: Sequence[tuple[UUID, NewEffect]]
    ) -> list[UUID]:
        """Insert those that no row stands for yet; return their ids."""
        with tx.statement() as now:
            answers = [_owe(tx.tables, tenant, effect, now) for tenant, effect in effects]
        _count_owed(effects, answers)
        return [answer.id for answer in answers if isinstance(answer, Owed)]

    async def owe_drained(self, tx: MemoryTransaction, effects: Sequence[tuple[UUID, NewEffect]]) -> int:
        """Insert those that no row stands for yet; return how many."""
        with tx.statement() as now:
            answers = [_owe(tx.tables, tenant, effect, now) for tenant, effect in effects]
        return _count_owed(effects, answers)

    async def settle(self, tx: MemoryTransaction, settlements: Sequence[Settlement]) -> Settled:
        """Write the finishing states, each only if its claim is still the row's last."""
        if any(settlement.claim_id is None for settlement in settlements):
            raise Misuse("a settlement carries the claim it settles")
        with tx.statement() as now:
            written = [_settle(tx.tables, settlement, now) for settlement in settlements]
        accepted = frozenset(id_ for id_ in written if id_ is not None)
        refused = frozenset(settlement.id for settlement in settlements) - accepted
        telemetry.settles_refused.inc(len(refused))
        return Settled(accepted=accepted, refused=refused)

    async def cancel(self, tx: MemoryTransaction, tenant: UUID, effect: UUID) -> EffectState | None:
        """Drop a pending effect, or ask a claimed one's settle to."""
        with tx.statement() as now:
            match row_of(tx.tables, tenant, effect):
                case None:
                    return None
                case EffectRecord(state=EffectState.PENDING) as row:
                    state = step(row.state, Move.CANCEL)
                    dropped = replace(
                        row, state=state, cancel_requested=True, outcome="dropped(cancelled)", settled_at=now
                    )
                    write(tx.tables, dropped)
                    return state
                case EffectRecord(state=EffectState.CLAIMED) as row:
                    write(tx.tables, replace(row, cancel_requested=True))
                    return step(row.state, Move.CANCEL)
                case row:
                    return row.state

    async def replay(
        self, tx: MemoryTransaction, tenant: UUID, effects: Sequence[tuple[EffectRow, bool]]
    ) -> list[UUID]:
        """Return dead effects to pending with fresh budgets."""
        with tx.statement() as now:
            read = {row.id: (row.settled_at, new_key) for row, new_key in effects}
            # when a row was settled names its death: of one that has died anew, nothing that was decided holds
            dead = [row for row in _dead(tx.tables, tenant, list(read)) if row.settled_at == read[row.id][0]]
            for row in dead:
                replayed = replace(
                    row,
                    state=step(row.state, Move.REPLAY),
                    attempts=0,
                    crashes=0,
                    deferrals=0,
                    deferred_since=None,
                    epoch=row.epoch + read[row.id][1],
                    not_before=now,
                    cancel_requested=False,
                    outcome=None,
                    error=None,
                    settled_at=None,
                )
                write(tx.tables, replayed)
            return [row.id for row in dead]

    async def discard(
        self, tx: MemoryTransaction, tenant: UUID, effects: Sequence[UUID], *, reason: str
    ) -> list[UUID]:
        """Give up dead effects, with the reason."""
        with tx.statement() as now:
            values.text(reason)
            dead = _dead(tx.tables, tenant, effects)
            for row in dead:
                state = step(row.state, Move.DISCARD)
                write(tx.tables, replace(row, state=state, outcome=f"discarded({reason})", settled_at=now))
            return [row.id for row in dead]

    async def effect(self, tx: MemoryTransaction, tenant: UUID, effect: UUID) -> EffectRow | None:
        """Return one effect's row."""
        with tx.statement():
            row = row_of(tx.tables, tenant, effect)
            return row.shown if row else None

    async def effects_by_id(
        self, tx: MemoryTransaction, tenant: UUID, effects: Collection[UUID]
    ) -> list[EffectRow]:
        """Return the rows of those of these effects that exist, by id."""
        with tx.statement():
            found = (row_of(tx.tables, tenant, effect) for effect in sorted(set(effects)))
            return [row.shown for row in found if row is not None]

    async def effects(
        self,
        tx: MemoryTransaction,
        tenant: UUID,
        *,
        state: EffectState | None = None,
        kind: str | None = None,
        event_seq: int | None = None,
        after: UUID | None = None,
        limit: int = 100,
    ) -> list[EffectRow]:
        """Return a tenant's effects that match, oldest first."""
        with tx.statement():
            found = [
                row
                for row in tx.tables.effects.values()
                if row.tenant_id == tenant
                and state in (None, row.state)
                and kind in (None, row.kind)
                and event_seq in (None, row.event_seq)
                and (after is None or row.id > after)
            ]
            return [row.shown for row in sorted(found, key=lambda row: row.id)[:limit]]

    async def attempts(self, tx: MemoryTransaction, tenant: UUID, effect: UUID) -> list[Attempt]:
        """Return the recorded attempts of an effect, in order."""
        with tx.statement():
            return list(tx.tables.attempts.get((tenant, effect)) or ())

    async def tried(self, tx: MemoryTransaction, tenant: UUID, effects: Collection[UUID]) -> dict[UUID, int]:
        """Return how many attempts are recorded of each of these effects under its present epoch."""
        with tx.statement():
            found = {one: row for one in effects if (row := row_of(tx.tables, tenant, one)) is not None}
            counts = {
                one: sum(
                    attempt.epoch == row.epoch for attempt in tx.tables.attempts.get((tenant, one)) or ()
                )
                for one, row in found.items()
            }
            return {one: count for one, count in counts.items() if count}

    async def rebuild_due(self, tx: MemoryTransaction) -> int:
        """Claims look at the rows themselves here, so no index of due tenants can be late."""
        with tx.statement():
            return 0

    async def trim(self, tx: MemoryTransaction, *, done_seconds: float, limit: int) -> int:
        """Remove final effects older than `done_seconds`, at most `limit`; return how many."""
        with tx.statement() as now:
            before = values.later(now, -done_seconds)
            old = [
                (row.settled_at, row)
                for row in tx.tables.effects.values()
                if row.state in FINAL and row.settled_at and row.settled_at < before
            ]
            trimmed = [row for _, row in sorted(old, key=lambda found: found[0])[:limit]]
            for row in trimmed:
                tx.tables.effects.remove((row.tenant_id, row.id))
                tx.tables.keys.remove((row.tenant_id, row.kind, row.key))
                tx.tables.attempts.remove((row.tenant_id, row.id))
            return len(trimmed)


def _owe(tables: Tables, tenant: UUID, effect: NewEffect, now: datetime) -> Owed | EffectRecord:
    """Insert one effect, or return the row that stands for it."""
    values.check_effect(effect)
    payload, due = values.json(effect.payload), values.later(now, effect.delay_seconds)
    standing = tables.keys.get((tenant, effect.kind, effect.key))
    if standing is not None:
        row = row_of(tables, tenant, standing)
        assert row is not None
        return row
    record = EffectRecord(
        tenant_id=tenant,
        id=tables.new_id(),
        kind=effect.kind,
        family=effect.family,
        key=effect.key,
        event_seq=effect.event_seq,
        rule_id=effect.rule_id,
        rule_version=effect.rule_version,
        recipient_id=effect.recipient_id,
        topic_id=effect.topic_id,
        target=effect.target,
        payload=payload,
        state=EffectState.PENDING,
        attempts=0,
        crashes=0,
        deferrals=0,
        deferred_since=None,
        epoch=0,
        claim_id=None,
        worker=None,
        claimed_at=None,
        lease_until=None,
        not_before=due,
        cancel_requested=False,
        outcome=None,
        error=None,
        created_at=now,
        settled_at=None,
    )
    write(tables, record)
    tables.keys.put((tenant, effect.kind, effect.key), record.id)
    return Owed(record.id)


def _count_owed(effects: Sequence[tuple[UUID, NewEffect]], answers: Sequence[Owed | EffectRecord]) -> int:
    inserted = Counter(
        effect.kind for (_, effect), answer in zip(effects, answers, strict=True) if isinstance(answer, Owed)
    )
    for kind, n in inserted.items():
        telemetry.effects_owed_inserted.labels(kind).inc(n)
    return inserted.total()


def _due_again(settlement: Settlement, now: datetime) -> datetime | None:
    """Return when a row that waits is due; None when it is held."""
    return None if settlement.delay_seconds == math.inf else values.later(now, settlement.delay_seconds)


def _settle(tables: Tables, settlement: Settlement, now: datetime) -> UUID | None:
    """Write one settlement; None when its claim is not the row's last."""
    values.check_settlement(settlement)
    state, due = settlement.state, _due_again(settlement, now)
    row = row_of(tables, settlement.tenant_id, settlement.id)
    if row is None or row.state != EffectState.CLAIMED or row.claim_id != settlement.claim_id:
        return None
    cancelled = state == EffectState.PENDING and row.cancel_requested
    if cancelled:
        state = step(row.state, Move.DROP)
    waits = state == EffectState.PENDING
    if not settlement.plain:
        note(tables, row, now, settlement.outcome, settlement.error)
    settled = replace(
        row,
        state=state,
        attempts=settlement.attempts,
        outcome="dropped(cancelled)" if cancelled else settlement.outcome,
        error=settlement.error,
        claim_id=None,
        lease_until=None,
        not_before=due if waits else row.not_before,
        deferrals=row.deferrals + settlement.deferred,
        deferred_since=(row.deferred_since or now) if settlement.deferred else None,
        settled_at=None if waits else now,
    )
    write(tables, settled)
    return row.id


def _dead(tables: Tables, tenant: UUID, effects: Sequence[UUID]) -> list[EffectRecord]:
    """Return the dead rows among these, in the order in which rows are locked."""
    found = (row_of(tables, tenant, effect) for effect in sorted(set(effects)))
    return [row for row in found if row is not None and row.state == EffectState.DEAD]
