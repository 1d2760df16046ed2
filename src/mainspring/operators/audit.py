"""The audit of I-1: takes events below the cursor, batch by batch; leaves what stands for them beside what they owe.

The drain's own judges are asked again, and every effect that they name is compared with the row under its name: that it stands,
is owed by that event and that version of a rule, and says the same. Reads only.

As in the drain, one tenant's events may owe any number of rows: they are compared, and forgotten, a round of `judging` at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from asyncpg import Record

from mainspring.chat.effects import WAKE
from mainspring.db import Scope
from mainspring.operators.model import VIOLATIONS_SHOWN_MAX, Check
from mainspring.spine.effects import NewEffect
from mainspring.spine.events import Event
from mainspring.spine.judging import EVENT_KIND, Asked, Judging, Numbered
from mainspring.spine.ports import Obligation
from mainspring.sql import Queries
from mainspring.stores.postgres.rows import to_json

SQL = Queries("mainspring.operators.sql")
_OWED_OF_EVENTS: Final = SQL["owed_of_events"]
_STANDING_FOR: Final = SQL["standing_for"]


class _Name(NamedTuple):
    kind: str
    key: str


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An effect that an event owes, by the verdict of an obligation; `broken` is what kept that from giving one."""

    event: Event
    obligation: str
    effect: NewEffect
    broken: str | None = None


_Wants: TypeAlias = dict[_Name, _Wanted]


@dataclass(slots=True)
class Audit:
    """What the judges say against what stands. `kept_since`: finished effects of before may have been trimmed."""

    obligations: Sequence[Obligation[Scope]]
    kept_since: datetime
    examined: int = 0
    count: int = 0
    older_than_kept: int = 0
    violations: list[str] = field(default_factory=list)
    clock: Callable[[], float] = time.monotonic

    async def batch(self, scope: Scope, tenant: UUID, events: Sequence[Event]) -> None:
        """Judge these events again and compare."""
        self.examined += len(events)
        judging = Judging(self.obligations, Scope.savepoint, clock=self.clock)
        left: Sequence[Numbered] = list(enumerate(events))
        asked = await judging.load_apart(scope, left)
        while left:
            taken = await judging.judge(left, asked, around_poison=scope)
            left = left[len(taken) :]
            await self._compare_all(scope, tenant, [event for _, event in taken], _wants(taken, asked))

    async def _compare_all(self, scope: Scope, tenant: UUID, events: Sequence[Event], wanted: _Wants) -> None:
        """Compare what these events owe, and what stands for them."""
        owed = await scope.fetch(_OWED_OF_EVENTS, tenant, [event.seq for event in events])
        # an obligation that cannot judge an event is asked again by an effect of its own; until that is done, it stands for all
        asked_again = {
            row["key"] for row in owed if row["kind"] == EVENT_KIND.name and row["state"] != "done"
        }
        await self._compare(scope, tenant, wanted, asked_again)
        broken = {one.event.seq for one in wanted.values() if one.broken is not None}
        # no event owes a wake: it is owed for as long as a message is, and names the oldest event that owes its recipient one
        delivered = {(one.event.seq, one.effect.recipient_id) for one in wanted.values()}
        for row in owed:
            name = _Name(row["kind"], row["key"])
            if name.kind == WAKE.name and (row["event_seq"], row["recipient_id"]) in delivered:
                continue
            if name not in wanted and name.kind != EVENT_KIND.name and row["event_seq"] not in broken:
                self._say(
                    f"effect {name.kind} {name.key} stands for event {row['event_seq']}, and no verdict owes it"
                )

    async def _compare(
        self, scope: Scope, tenant: UUID, wanted: Mapping[_Name, _Wanted], asked_again: set[str]
    ) -> None:
        if not wanted:
            return
        effects = [one.effect for one in wanted.values()]
        rows = await scope.fetch(
            _STANDING_FOR,
            tenant,
            [effect.kind for effect in effects],
            [effect.key for effect in effects],
            [effect.event_seq for effect in effects],
            [effect.rule_id for effect in effects],
            [effect.rule_version for effect in effects],
            [effect.family for effect in effects],
            [effect.target for effect in effects],
            [to_json(effect.payload) for effect in effects],
        )
        for one, row in zip(wanted.values(), rows, strict=True):
            self._judge_row(one, row, asked_again)

    def _judge_row(self, one: _Wanted, row: Record, asked_again: set[str]) -> None:
        owes = f"event {one.event.seq} {one.event.kind} owes {one.effect.kind} {one.effect.key}"
        if row["stands"]:
            for difference in row["differences"]:
                self._say(f"{owes}, and {difference}")
        elif one.event.occurred_at < self.kept_since:
            self.older_than_kept += 1
        elif one.broken is not None:
            self._say(
                f"event {one.event.seq} {one.event.kind} cannot be judged by {one.obligation} ({one.broken}), and nothing "
                "stands for that"
            )
        elif f"{one.event.seq}#{one.obligation}" not in asked_again:
            self._say(f"{owes}, and nothing stands for it")

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


def _wants(events: Sequence[Numbered], asked: Sequence[Asked[Scope]]) -> _Wants:
    """Take out what these events owe; where an obligation cannot judge one, that is what the drain owes then."""
    wanted: _Wants = {}
    for one in asked:
        for n, event in events:
            error = one.broken.get(n)
            why = None if error is None else f"{type(error).__name__}: {error}"
            for _, effect in one.owed.pop(n, ()):
                # owed twice, it is the first one's row
                wanted.setdefault(
                    _Name(effect.kind, effect.key), _Wanted(event, one.obligation.name, effect, broken=why)
                )
    return wanted
