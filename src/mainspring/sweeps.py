"""A round of a sweep, as every room makes it: takes what was found to repair, leaves it repaired, a tenant at a time.

What stands in the way of one tenant holds up no other: it is counted and told, and the tenant left out for the rest of the round. If
it dies here, the next round, here or elsewhere, finds what is left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from logging import Logger
from operator import itemgetter
from typing import Self, TypeAlias
from uuid import UUID

from asyncpg import Record

from mainspring import telemetry

Find: TypeAlias = Callable[[Sequence[UUID]], Awaitable[Sequence[Record]]]
Repair: TypeAlias = Callable[[UUID, Sequence[Record]], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Watch:
    """Since when, and until when, whoever holds a lease could be heard without a gap, in seconds of the database's clock.

    While no server, or no database, was there to hear them, leases ran out all the same: that is nobody's silence.
    """

    since: float
    until: float

    @classmethod
    def from_before(cls, before: Self | None, now: float, *, gap_seconds: float) -> Self:
        """Return the watch as it is at `now`, begun anew if there was none."""
        return cls(now, now) if before is None else before.at(now, gap_seconds=gap_seconds)

    def at(self, now: float, *, gap_seconds: float) -> Self:
        """Return the watch as it is at `now`: begun anew after a gap, or when the clock was put back."""
        if self.until <= now <= self.until + gap_seconds:
            return replace(self, until=now)
        return type(self)(now, now)

    def has_lasted(self, seconds: float) -> bool:
        """Tell whether it has gone on for so long."""
        return self.until - self.since >= seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep, as its failures are counted and told.

    Args:
        loop: the name of its loop.
        log: where a tenant's failure is told.
        told: how that line begins, with `%s` for the tenant.
    """

    loop: str
    log: Logger
    told: str

    async def over_tenants(self, find: Find, repair: Repair, *, batch: int) -> int:
        """Repair what is found, batch after batch, until one comes back short; return how much that was.

        Args:
            find: returns at most a batch of rows, those of one `tenant_id` together, without the tenants that it is given.
            repair: does what the rows of one tenant ask for, and returns how much that was.
            batch: how many rows `find` returns as long as there may be more.
        """
        repaired, failed = 0, set[UUID]()
        while True:
            found = await find(list(failed))
            for tenant, rows in groupby(found, key=itemgetter("tenant_id")):
                try:
                    repaired += await repair(tenant, list(rows))
                except Exception as error:  # noqa: BLE001 - counted and told; the next round tries this tenant again
                    telemetry.loop_failures.labels(self.loop, type(error).__name__).inc()
                    self.log.warning(self.told + ": %s: %s", tenant, type(error).__name__, error)
                    failed.add(tenant)
            if len(found) < batch:
                return repaired
