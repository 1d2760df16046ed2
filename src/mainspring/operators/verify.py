"""Verify: takes a live database, leaves a report on every invariant that rows can show. Reads only.

Each check is named by the invariant it asks about. The costly one, I-1, asks the drain's own judges again about every event below
the cursor, batch by batch, and looks for the effect of each verdict; the others are one statement each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from mainspring.db import LONG_READ, Database, Scope
from mainspring.operators.model import VIOLATIONS_SHOWN_MAX, Check, KindLimits, Report
from mainspring.spine.drain import EVENT_KIND, looks_at
from mainspring.spine.errors import OutcomeUnknown, Transient
from mainspring.spine.events import Event
from mainspring.spine.ports import Obligation, Owes
from mainspring.sql import Queries
from mainspring.stores.postgres.rows import event_of

SQL = Queries("mainspring.operators.sql")
BATCH: Final = 500
_DAY_SECONDS: Final = 86_400.0

# (invariant, what, statement, names of its arguments after the tenant)
_CHECKS: Final[tuple[tuple[str, str, str, tuple[str, ...]], ...]] = (
    ("I-2", "every effect traces to an event and a rule version of its tenant", "effects_trace", ()),
    ("I-2", "every run traces to an event of its tenant, and was said to be queued", "runs_trace", ()),
    ("I-3", "an effect is named once by kind and key", "names_are_unique", ()),
    ("I-4", "the log has no hole, and no cursor is ahead of it", "log_is_whole", ()),
    ("I-7", "attempts stay within their limit; dead has one of five reasons", "effects_attempts", ("kinds", "most")),
    ("I-7", "a run's attempts stay within their limit", "runs_attempts", ("run_most",)),
    ("I-8", "a launch that is done made exactly one run, and no run has no launch", "launches_have_runs", ("kept",)),
    ("I-8", "a one-shot label is spent once for its run", "labels_are_spent_once", ()),
    ("I-17", "a card that became eligible was dispatched once", "cards_are_dispatched_once", ()),
    ("shape", "no claim or lease where none may be; versions of a rule do not overlap", "rows_are_in_shape", ()),
    ("shape", "no tenant's work is hidden from claims", "due_is_never_late", ()),
)  # fmt: skip


class VerifyService:
    """Audits one tenant's rows."""

    def __init__(self, db: Database, obligations: Sequence[Obligation[Scope]], limits: KindLimits) -> None:
        """`obligations` are all that the drain asks; `limits` what the engine promises about attempts."""
        self._db = db
        self._obligations = obligations
        self._limits = limits

    async def verify(self, tenant: UUID, *, since: int = 0) -> Report:
        """Return what every check found; I-1 is asked of events behind `since` only."""
        kept_seconds = self._limits.kept_days * _DAY_SECONDS
        async with self._db.tenant(tenant, purpose="verify", budget=LONG_READ) as scope:
            ends = await scope.fetchrow(SQL["horizon"], tenant, kept_seconds)
        through = ends["position"] if ends is not None else 0
        audit = _Audit(self._obligations, kept_since=ends["kept_since"] if ends is not None else None)
        position = since
        while position < through:
            async with self._db.tenant(tenant, purpose="verify", budget=LONG_READ) as scope:
                found = await scope.fetch(SQL["events_between"], tenant, position, through, BATCH)
                events = [event_of(row) for row in found]
                if not events:
                    break
                await audit.batch(scope, tenant, events)
                position = events[-1].seq
        checks = [audit.check(), *[await self._check(tenant, *one) for one in _CHECKS]]
        return Report(tuple(checks), through_seq=through)

    async def _check(
        self, tenant: UUID, invariant: str, what: str, statement: str, names: tuple[str, ...]
    ) -> Check:
        known: Mapping[str, Any] = {
            "kinds": list(self._limits.attempts_max),
            "most": list(self._limits.attempts_max.values()),
            "run_most": self._limits.run_attempts_max,
            "kept": self._limits.kept_days * _DAY_SECONDS,
        }
        async with self._db.tenant(tenant, purpose="verify", budget=LONG_READ) as scope:
            row = await scope.fetchrow(SQL[statement], tenant, *(known[name] for name in names))
        assert row is not None
        return Check(
            invariant=invariant,
            what=what,
            examined=row["examined"],
            violations=tuple(row["violations"]),
            count=row["count"],
        )


@dataclass(slots=True)
class _Audit:
    """I-1, batch by batch: what the judges say against what stands."""

    obligations: Sequence[Obligation[Scope]]
    kept_since: datetime | None
    examined: int = 0
    count: int = 0
    older_than_kept: int = 0
    violations: list[str] = field(default_factory=list)

    async def batch(self, scope: Scope, tenant: UUID, events: Sequence[Event]) -> None:
        """Judge these events again and compare."""
        self.examined += len(events)
        wanted: dict[tuple[str, str], Event] = {}
        unjudged: set[int] = set()
        for obligation in self.obligations:
            mine = [event for event in events if looks_at(obligation, event)]
            if mine:
                unjudged |= await self._judge(scope, obligation, mine, wanted)
        standing = {
            (row["kind"], row["key"]): row["event_seq"]
            for row in await scope.fetch(SQL["owed_of_events"], tenant, [event.seq for event in events])
        }
        missing = [name for name in wanted if name not in standing]
        elsewhere = await scope.fetch(
            SQL["owed_by_key"], tenant, [kind for kind, _ in missing], [key for _, key in missing]
        )
        found = {(row["kind"], row["key"]) for row in elsewhere}
        for name in missing:
            if name not in found:
                self._missing(name, wanted[name], standing)
        for (kind, key), seq in standing.items():
            if (kind, key) not in wanted and kind != EVENT_KIND.name and seq not in unjudged:
                self._say(f"effect {kind} {key} stands for event {seq}, and no verdict owes it")

    async def _judge(
        self,
        scope: Scope,
        obligation: Obligation[Scope],
        events: Sequence[Event],
        wanted: dict[tuple[str, str], Event],
    ) -> set[int]:
        """Note what an obligation owes for these events; return the seqs that it cannot judge, which the drain could not either."""
        try:
            async with scope.savepoint():
                context = await obligation.load(scope, events)
                verdicts = [(event, obligation.judge(event, context)) for event in events]
        except (Transient, OutcomeUnknown):
            raise
        except Exception as error:  # noqa: BLE001 - one event at a time, and then it is a finding
            if len(events) > 1:
                half = len(events) // 2
                first = await self._judge(scope, obligation, events[:half], wanted)
                return first | await self._judge(scope, obligation, events[half:], wanted)
            name = (EVENT_KIND.name, f"{events[0].seq}#{obligation.name}")
            wanted[name] = events[0]
            del error
            return {events[0].seq}
        for event, verdict in verdicts:
            if isinstance(verdict, Owes):
                wanted.update({(effect.kind, effect.key): event for effect in verdict.effects})
        return set()

    def _missing(self, name: tuple[str, str], event: Event, standing: Mapping[tuple[str, str], int]) -> None:
        if self.kept_since is not None and event.occurred_at < self.kept_since:
            self.older_than_kept += 1
            return
        # an obligation that could not judge this event is asked again by an effect of its own, and that one stands
        asked_again = {(EVENT_KIND.name, f"{event.seq}#{one.name}") for one in self.obligations}
        if asked_again & standing.keys():
            return
        self._say(f"event {event.seq} {event.kind} owes {name[0]} {name[1]}, and nothing stands for it")

    def _say(self, violation: str) -> None:
        self.count += 1
        if len(self.violations) < VIOLATIONS_SHOWN_MAX:
            self.violations.append(violation)

    def check(self) -> Check:
        """Return what was found."""
        note = f"{self.older_than_kept} effects are older than kept" if self.older_than_kept else ""
        return Check(
            invariant="I-1",
            what="every event below the cursor has, for each verdict that owes, exactly the effects it owes",
            examined=self.examined,
            violations=tuple(self.violations),
            count=self.count,
            note=note,
        )
