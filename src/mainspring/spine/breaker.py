"""Breakers: when a target is taken to be down, and what a failure then costs. Pure: no await, no clock, no dice.

An effect has a budget of its own, its attempts; its target has another. Takes what outcomes say of a target, one after another;
leaves the breaker as it is then, and for each failure whether the effect pays for it. While a breaker is open its effects wait and
spend nothing; when its time is up it is half-open, and one effect, the earliest, is the probe. Whatever works closes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import assert_never
from uuid import UUID

from mainspring.spine.effects import Deferred, Done, Dropped, Failed, Held, Outcome, Retry, Unknown
from mainspring.spine.retry import Backoff

FAILURES_MAX = 5  # so many in a row, whichever effects they were, open a breaker
OPEN = Backoff(
    base_seconds=5.0, factor=2.0, cap_seconds=60.0
)  # grows with failed probes; its cap is how late a recovery is seen
FORGOTTEN_SECONDS = (
    86_400.0  # a breaker that nothing has happened to for so long has nothing waiting behind it
)


class Evidence(StrEnum):
    """What an outcome says of the target."""

    WORKED = "worked"
    FAILED = "failed"
    PUT_OFF = "put_off"  # nothing against it, but a probe that was put off has not shown that it works
    NONE = "none"


def evidence_of(outcome: Outcome) -> Evidence:
    """Return what an outcome says of the target that the effect depends on."""
    match outcome:
        case Done():
            return Evidence.WORKED
        case Retry() | Unknown():
            return Evidence.FAILED
        case Deferred():
            return Evidence.PUT_OFF
        case Failed() | Dropped() | Held():
            return Evidence.NONE  # it lay with the effect
        case _:
            assert_never(outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """How a target has done. `failures` in a row since it last worked; `trips` times in a row found down, 0 while closed."""

    failures: int = 0
    trips: int = 0

    @property
    def is_closed(self) -> bool:
        """Whether effects are tried as they come."""
        return self.trips == 0

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing to remember of the target."""
        return self.failures == 0 and self.trips == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRow:
    """A breaker as it is kept. It is open until `open_until`, half-open from then on, closed while that is None."""

    tenant_id: UUID
    target: str
    failures: int
    trips: int
    open_until: datetime | None
    down_since: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """What came of one effect, as far as its target goes."""

    evidence: Evidence
    probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What reports make of a breaker.

    Args:
        breaker: as it is now.
        open_seconds: how long from now nobody tries; None leaves that as it stands, and closed is never None after open.
        free: for each report, whether the effect's failure costs it nothing.
    """

    breaker: Breaker
    open_seconds: float | None
    free: tuple[bool, ...]


def rule(breaker: Breaker, reports: Iterable[Report], *, random: float) -> Ruling:
    """Return what reports, in their order, make of a breaker. `random` in [0, 1) spreads how long it stays open."""
    open_seconds: float | None = None
    free: list[bool] = []
    for report in reports:
        free.append(report.evidence is Evidence.FAILED and not breaker.is_closed)
        breaker, seconds = _step(breaker, report, random)
        open_seconds = open_seconds if seconds is None else seconds
    return Ruling(breaker=breaker, open_seconds=open_seconds, free=tuple(free))


def _step(breaker: Breaker, report: Report, random: float) -> tuple[Breaker, float | None]:
    """Return the breaker after one report, and for how long it opens; 0 lets the next one try at once, None changes nothing."""
    match report.evidence:
        case Evidence.WORKED:
            return Breaker(), None if breaker.is_closed else 0.0
        case Evidence.FAILED if breaker.is_closed:
            failed = replace(breaker, failures=breaker.failures + 1)
            return _opened(failed, random) if failed.failures >= FAILURES_MAX else (failed, None)
        case Evidence.FAILED | Evidence.PUT_OFF if report.probe and not breaker.is_closed:
            return _opened(breaker, random)
        case Evidence.NONE if report.probe and not breaker.is_closed:
            return breaker, 0.0
        case Evidence.FAILED | Evidence.PUT_OFF | Evidence.NONE:
            return breaker, None  # what began before it opened, or says nothing
        case _:
            assert_never(report.evidence)


def _opened(breaker: Breaker, random: float) -> tuple[Breaker, float]:
    return replace(breaker, trips=breaker.trips + 1), OPEN.delay_seconds(breaker.trips, random=random)


def is_worth_telling(reports: Sequence[Report], *, doubted: bool) -> bool:
    """Tell whether reports can change a breaker; `doubted` says that there may be one to change."""
    return doubted or any(report.probe or report.evidence is Evidence.FAILED for report in reports)
