"""The log and the outbox as they lie: events and effects, listed and shown, and a pending effect cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from mainspring.db import Database
from mainspring.rooms import Actor, Conflict, FieldError, Invalid, NotFound, ServerSpine
from mainspring.spine.effects import LIVE, Attempt, EffectRow, EffectState
from mainspring.spine.events import Event, NewEvent
from mainspring.sql import Queries
from mainspring.stores.postgres.rows import event_of

SQL = Queries("mainspring.operators.sql")
REASON_LENGTH_MAX: Final = 500


class LogService:
    """Events and effects, one method a question, one transaction a method."""

    def __init__(self, db: Database, spine: ServerSpine) -> None:
        self._db = db
        self._spine = spine

    async def events(
        self, tenant: UUID, *, after: int, kind: str | None, subject: str | None, limit: int
    ) -> list[Event]:
        """Return events behind a seq, oldest first; `kind` may be `card.*`, all of a noun."""
        async with self._db.tenant(tenant, purpose="events") as scope:
            found = await scope.fetch(SQL["list_events"], tenant, after, *_kinds(kind), subject, limit)
        return [event_of(row) for row in found]

    async def last_events(
        self, tenant: UUID, *, kind: str | None, subject: str | None, limit: int
    ) -> list[Event]:
        """Return the last events that match, oldest first."""
        async with self._db.tenant(tenant, purpose="events") as scope:
            found = await scope.fetch(SQL["last_events"], tenant, *_kinds(kind), subject, limit)
        return [event_of(row) for row in reversed(found)]

    async def event(self, tenant: UUID, seq: int) -> Event:
        """Return one event. Raises NotFound."""
        async with self._db.tenant(tenant, purpose="events") as scope:
            found = await scope.fetch(SQL["events_by_seq"], tenant, [seq])
        if not found:
            raise NotFound("event", seq)
        return event_of(found[0])

    async def effects(
        self,
        tenant: UUID,
        *,
        state: EffectState | None,
        kind: str | None,
        event_seq: int | None,
        after: UUID | None,
        limit: int,
    ) -> list[EffectRow]:
        """Return effects that match, oldest first."""
        async with self._db.tenant(tenant, purpose="effects") as scope:
            return await self._spine.store.effects(
                scope, tenant, state=state, kind=kind, event_seq=event_seq, after=after, limit=limit
            )

    async def effect(self, tenant: UUID, effect_id: UUID) -> tuple[EffectRow, Sequence[Attempt]]:
        """Return one effect and its attempts. Raises NotFound."""
        async with self._db.tenant(tenant, purpose="effects") as scope:
            row = await self._spine.store.effect(scope, tenant, effect_id)
            if row is None:
                raise NotFound("effect", effect_id)
            return row, await self._spine.store.attempts(scope, tenant, effect_id)

    async def cancel(self, actor: Actor, effect_id: UUID) -> EffectRow:
        """Drop a pending effect, or ask a claimed one's settle to, and say by whom.

        Source of `effect.cancelled`. Raises NotFound, and Conflict when it has ended otherwise.
        """
        tenant, store = actor.tenant_id, self._spine.store
        async with self._spine.open(tenant) as tx:
            held = await tx.handle.fetchrow(SQL["lock_effect"], tenant, effect_id)
            if held is None:
                raise NotFound("effect", effect_id)
            if held["state"] not in LIVE:
                raise Conflict(
                    f"effect {effect_id} is {held['state']}: there is nothing to cancel", code="effect_ended"
                )
            await store.cancel(tx.handle, tenant, effect_id)
            row = await store.effect(tx.handle, tenant, effect_id)
            assert row is not None
            if not held["cancel_requested"]:
                tx.append(_cancelled(row, actor))
        return row

    async def skip_hole(self, actor: Actor, reason: str) -> Event:
        """Let the drain go on behind a hole in the log, where it stands still; what is missing is judged by nobody.

        Returns the `log.skipped` that says so. Raises Invalid, and Conflict when there is no hole where the drain stands.
        """
        if not 1 <= len(reason.strip()) <= REASON_LENGTH_MAX:
            raise Invalid(FieldError("/reason", f"say why, in 1 to {REASON_LENGTH_MAX} characters"))
        tenant = actor.tenant_id
        async with self._spine.open(tenant) as tx:
            missing = await self._spine.store.skip_hole(tx.handle, tenant)
            if missing is None:
                raise Conflict("there is no hole where the drain stands", code="no_hole")
            first, last = missing
            said = {"first": first, "last": last, "reason": reason.strip(), "actor": actor.snapshot()}
            tx.append(NewEvent("log.skipped", data=said, actor_id=actor.account_id, cause=actor.cause))
        return await self.event(tenant, tx.appended[0])


def _cancelled(row: EffectRow, actor: Actor) -> NewEvent:
    effect = {
        "id": str(row.id),
        "kind": row.kind,
        "key": row.key,
        "event_seq": row.event_seq,
        "state": str(row.state),
    }
    return NewEvent(
        "effect.cancelled",
        subject=str(row.id),
        data={"effect": effect, "actor": actor.snapshot()},
        actor_id=actor.account_id,
        cause=actor.cause,
    )


def _kinds(kind: str | None) -> tuple[str | None, str | None]:
    """Return an exact kind, or the noun whose every kind is meant."""
    return (None, kind[:-2]) if kind is not None and kind.endswith(".*") else (kind, None)


def shown(event: Event) -> dict[str, Any]:
    """Return an event as it is shown."""
    return {
        "seq": event.seq,
        "id": str(event.id),
        "kind": event.kind,
        "subject": event.subject,
        "actor_id": str(event.actor_id) if event.actor_id else None,
        "data": dict(event.data),
        "cause_seq": event.cause_seq,
        "via": [str(rule) for rule in event.via],
        "depth": event.depth,
        "trust": str(event.trust),
        "occurred_at": event.occurred_at.isoformat(),
    }


def shown_effect(row: EffectRow) -> dict[str, Any]:
    """Return an effect as it is shown. `not_before` is null while its rule is paused."""
    return {
        "id": str(row.id),
        "kind": row.kind,
        "key": row.key,
        "state": str(row.state),
        "event_seq": row.event_seq,
        "rule_id": str(row.rule_id) if row.rule_id else None,
        "rule_version": row.rule_version,
        "target": row.target,
        "payload": dict(row.payload),
        "attempts": row.attempts,
        "crashes": row.crashes,
        "deferrals": row.deferrals,
        "epoch": row.epoch,
        "worker": row.worker,
        "lease_until": row.lease_until.isoformat() if row.lease_until else None,
        "not_before": row.not_before.isoformat() if row.not_before else None,
        "cancel_requested": row.cancel_requested,
        "outcome": row.outcome,
        "error": row.error,
        "created_at": row.created_at.isoformat(),
        "settled_at": row.settled_at.isoformat() if row.settled_at else None,
    }


def shown_attempt(one: Attempt) -> dict[str, Any]:
    """Return an attempt as it is shown."""
    return {
        "n": one.n,
        "epoch": one.epoch,
        "worker": one.worker,
        "started_at": one.started_at.isoformat(),
        "ended_at": one.ended_at.isoformat(),
        "outcome": one.outcome,
        "error": one.error,
    }
