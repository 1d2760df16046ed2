"""Verify: takes a live database, leaves a report on every invariant that rows can show. Reads only.

All of it is read in one snapshot: what is under way is seen whole or not at all, and is no finding. Time is the snapshot's,
too: a log that takes minutes to read makes nothing late. While it reads, vacuum keeps what the snapshot might still look at.

Each check is named by the invariant it asks about. The costly one, I-1, asks the drain's own judges again about every event below
the cursor, batch by batch (`audit`); the others are one statement each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from mainspring.agents.model import EVENT_KINDS, RunState
from mainspring.chat.model import HOPS_MAX
from mainspring.db import Database, Scope
from mainspring.operators.audit import SQL, Audit
from mainspring.operators.model import Check, KindLimits, Report
from mainspring.spine.drain import ENGINE_VERSION
from mainspring.spine.effects import CRASHES_MAX, DELAY_MAX_SECONDS
from mainspring.spine.ports import Obligation
from mainspring.stores.postgres.rows import event_of

BATCH: Final = 500
LATE_SECONDS: Final = 60.0  # beyond what a tick, a sweep or a reclaim may take
_DAY_SECONDS: Final = 86_400.0

# which event says last in which state a run is; a claim has none of its own
_SAID_BY: Final[Mapping[str, str]] = {
    **{str(state): kind for state, kind in EVENT_KINDS.items()},
    str(RunState.CLAIMED): EVENT_KINDS[RunState.QUEUED],
}


@dataclass(frozen=True, slots=True)
class _Asks:
    """One statement's check: `names` are its arguments behind the tenant."""

    invariant: str
    what: str
    statement: str
    names: tuple[str, ...] = ()
    warning: bool = False


_CHECKS: Final = (
    _Asks("I-2", "every effect names an event and a rule version of its tenant", "effects_trace"),
    _Asks("I-2", "every run names an event of its tenant, as its own events do", "runs_trace", ("run_kinds",)),
    _Asks("I-2", "a card is what its last event says", "cards_are_as_told"),
    _Asks("I-3", "an effect is named once by kind and key", "names_are_unique"),
    _Asks("I-4", "the log is whole from 1 to its head, and no cursor is ahead of it or has gone back", "log_is_whole"),
    _Asks("I-4", "this server may drain the log", "log_may_be_drained", ("engine_version",)),
    _Asks("I-5", "a run is in the state that its last event says", "runs_are_as_told", ("run_states", "said_by")),
    _Asks("I-5", "a running run has an attempt open, and one that has ended has none", "attempts_are_open"),
    _Asks("I-5", "a run that needs input waits for an open question, and none that has ended does", "questions_are_asked"),
    _Asks("I-5", "dead is said in the log, and left by a replay or a discard alone", "deaths_are_told"),
    _Asks("I-7", "attempts stay within their limit; dead has one of five reasons", "effects_attempts", ("kinds", "most")),
    _Asks("I-7", "a run's attempts stay within their limit", "runs_attempts", ("run_most",)),
    _Asks("I-8", "a launch that is done made exactly one run, as it says; no run has no launch", "launches_have_runs", ("kept", "moment")),
    _Asks("I-8", "a one-shot label is spent once for its run", "labels_are_spent_once"),
    _Asks("I-10", "what was said, and to whom it is owed, is told; people have it in their inboxes", "messages_are_as_told"),
    _Asks("I-13", "nobody is owed what its author still writes, and nothing is held past its session", "nobody_is_owed_what_is_held"),
    _Asks("I-17", "a card that became eligible was dispatched once", "cards_are_dispatched_once"),
    _Asks("shape", "no claim or lease where none may be", "rows_are_in_shape"),
    _Asks("shape", "a rule's versions judge every event once, as its own events say", "rules_are_whole"),
    _Asks("shape", "a rule is paused, resumed and counted as its events say, and can sign what it sends", "limits_are_as_told", ("moment",)),
    _Asks("shape", "a card is in a state of its board, and eligible only as its state and pin say", "cards_are_in_shape"),
    _Asks("shape", "a delivery is what its key says, and offered to a live session of its recipient", "deliveries_are_in_shape", ("crashes_most",)),
    _Asks("shape", "a channel's messages are numbered without a hole", "channels_are_whole"),
    _Asks("shape", "a session is as its last event says", "sessions_are_as_told"),
    _Asks("shape", "what waits has an end, unless its rule is paused, or it waits for a person", "waits_have_an_end",
          ("moment", "delay_max", "hops_most")),
    _Asks("shape", "the key of a custom event stands for one", "keys_stand_for_events"),
    _Asks("shape", "no tenant's work is hidden from claims", "due_is_never_late"),
    _Asks("I-15", "nothing is owed and overdue", "nothing_is_overdue", ("moment", "late"), warning=True),
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
        async with self._db.snapshot(tenant, purpose="verify") as scope:
            horizon = await scope.fetchrow(SQL["horizon"], tenant, kept_seconds)
            assert horizon is not None
            audit = Audit(self._obligations, kept_since=horizon["kept_since"])
            await self._ask_again(scope, tenant, audit, since=since, through=horizon["position"])
            known: Mapping[str, Any] = {
                "kinds": list(self._limits.attempts_max),
                "most": list(self._limits.attempts_max.values()),
                "run_most": self._limits.run_attempts_max,
                "run_kinds": sorted(EVENT_KINDS.values()),
                "run_states": list(_SAID_BY),
                "said_by": list(_SAID_BY.values()),
                "engine_version": ENGINE_VERSION,
                "kept": kept_seconds,
                "moment": horizon["moment"],
                "delay_max": DELAY_MAX_SECONDS,
                "late": LATE_SECONDS,
                "crashes_most": CRASHES_MAX,
                "hops_most": HOPS_MAX,
            }
            found = [
                await _ask(scope, asks, tenant, *(known[name] for name in asks.names)) for asks in _CHECKS
            ]
        return Report((audit.check(), *found), through_seq=horizon["position"])

    @staticmethod
    async def _ask_again(scope: Scope, tenant: UUID, audit: Audit, *, since: int, through: int) -> None:
        position = since
        while position < through:
            found = await scope.fetch(SQL["events_between"], tenant, position, through, BATCH)
            events = [event_of(row) for row in found]
            if not events:
                return
            await audit.batch(scope, tenant, events)
            position = events[-1].seq


async def _ask(scope: Scope, asks: _Asks, *args: Any) -> Check:
    row = await scope.fetchrow(SQL[asks.statement], *args)
    assert row is not None
    return Check(
        invariant=asks.invariant,
        what=asks.what,
        examined=row["examined"],
        violations=tuple(row["violations"]),
        count=row["count"],
        note=dict(row).get("note", ""),
        warning=asks.warning,
    )
