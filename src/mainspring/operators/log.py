"""The log and the outbox as they lie: events and effects, listed and shown, and a pending effect cancelled.

Whoever reads is told of nothing that names a channel which they do not see: a page goes on behind it. Of a delivery in such a channel
there is a row for those who operate, without a word of what was said; for everybody else there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from mainspring.chat import sight
from mainspring.chat.sight import Reader
from mainspring.db import Database, Scope
from mainspring.rooms import Actor, Conflict, FieldError, Invalid, NotFound, ServerSpine
from mainspring.spine.effects import LIVE, Attempt, EffectRow, EffectState
from mainspring.spine.events import Event, NewEvent
from mainspring.sql import Queries
from mainspring.stores.postgres.rows import event_of

SQL = Queries("mainspring.operators.sql")
REASON_LENGTH_MAX: Final = 500
LOOKS_MAX: Final = 10  # pages that one question goes through, when much of them is not the reader's to see
LOOKED_AT_ONCE: Final = 200


class LogService:
    """Events and effects, one method a question, one transaction a method."""

    def __init__(self, db: Database, spine: ServerSpine) -> None:
        self._db = db
        self._spine = spine

    async def events(
        self, reader: Reader, *, after: int, kind: str | None, subject: str | None, limit: int
    ) -> tuple[list[Event], int | None]:
        """Return events behind a seq, oldest first, and behind which seq there may be more; `kind` may be `card.*`, all of a noun.

        There may be fewer than asked for, or none, and more behind.
        """
        found: list[Event] = []
        terms = (*_kinds(kind), subject)
        async with self._db.tenant(reader.tenant_id, purpose="events") as scope:
            for _ in range(LOOKS_MAX):
                left = limit - len(found)
                rows = await scope.fetch(SQL["list_events"], reader.tenant_id, after, *terms, left + 1)
                page = [event_of(row) for row in rows[:left]]
                found += await sight.told(scope, reader, page)
                if len(rows) <= left:
                    return found, None
                after = page[-1].seq
                if len(found) == limit:
                    break
        return found, after

    async def last_events(
        self, reader: Reader, *, kind: str | None, subject: str | None, limit: int
    ) -> list[Event]:
        """Return the last events that match, oldest first, as far back as one question looks."""
        found: list[Event] = []
        before: int | None = None
        terms = (*_kinds(kind), subject)
        async with self._db.tenant(reader.tenant_id, purpose="events") as scope:
            for n in range(LOOKS_MAX):
                size = limit if n == 0 else LOOKED_AT_ONCE
                rows = await scope.fetch(SQL["last_events"], reader.tenant_id, *terms, size, before)
                found += await sight.told(scope, reader, [event_of(row) for row in rows])
                if len(rows) < size or len(found) >= limit:
                    break
                before = rows[-1]["seq"]
        return found[:limit][::-1]

    async def event(self, reader: Reader, seq: int) -> Event:
        """Return one event. Raises NotFound."""
        async with self._db.tenant(reader.tenant_id, purpose="events") as scope:
            rows = await scope.fetch(SQL["events_by_seq"], reader.tenant_id, [seq])
            found = await sight.told(scope, reader, [event_of(row) for row in rows])
        if not found:
            raise NotFound("event", seq)
        return found[0]

    async def appended(self, tenant: UUID, seq: int) -> Event:
        """Return an event that whoever asks has written."""
        async with self._db.tenant(tenant, purpose="events") as scope:
            [row] = await scope.fetch(SQL["events_by_seq"], tenant, [seq])
        return event_of(row)

    async def effects(
        self,
        reader: Reader,
        *,
        state: EffectState | None,
        kind: str | None,
        event_seq: int | None,
        after: UUID | None,
        limit: int,
    ) -> tuple[list[EffectRow], UUID | None]:
        """Return effects that match, oldest first, and behind which there may be more.

        There may be fewer than asked for, or none, and more behind.
        """
        found: list[EffectRow] = []
        terms: dict[str, Any] = {"state": state, "kind": kind, "event_seq": event_seq}
        async with self._db.tenant(reader.tenant_id, purpose="effects") as scope:
            for _ in range(LOOKS_MAX):
                left = limit - len(found)
                rows = await self._spine.store.effects(
                    scope, reader.tenant_id, **terms, after=after, limit=left + 1
                )
                found += [row for row, _ in await _seen(scope, reader, rows[:left])]
                if len(rows) <= left:
                    return found, None
                after = rows[left - 1].id
                if len(found) == limit:
                    break
        return found, after

    async def effect(self, reader: Reader, effect_id: UUID) -> tuple[EffectRow, Sequence[Attempt]]:
        """Return one effect and its attempts. Raises NotFound."""
        async with self._db.tenant(reader.tenant_id, purpose="effects") as scope:
            row = await self._spine.store.effect(scope, reader.tenant_id, effect_id)
            seen = [] if row is None else await _seen(scope, reader, [row])
            if not seen:
                raise NotFound("effect", effect_id)
            [(row, whole)] = seen
            attempts = await self._spine.store.attempts(scope, reader.tenant_id, effect_id)
            return row, attempts if whole else [replace(one, error=None) for one in attempts]

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
        return await self.appended(tenant, tx.appended[0])


async def _seen(scope: Scope, reader: Reader, rows: Sequence[EffectRow]) -> list[tuple[EffectRow, bool]]:
    """Return the effects that there are for a reader, each with whether they may read what its attempts say."""
    names = [sight.named_by_delivery(row.tenant_id, row.kind, row.key) for row in rows]
    seen = await sight.seen_by(scope, names, [reader.account_id])
    told = [(row, seen.sees(reader.account_id, name)) for row, name in zip(rows, names, strict=True)]
    return [(row, whole) for row, whole in told if whole or reader.operates]


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
