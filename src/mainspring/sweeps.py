"""A round of a sweep, as every room makes it: takes what was found to repair, leaves it repaired, a tenant at a time.

What stands in the way of one tenant holds up no other: it is counted and told, and the tenant left out for the rest of the round. If
it dies here, the next round, here or elsewhere, finds what is left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from logging import Logger
from operator import itemgetter
from typing import TypeAlias
from uuid import UUID

from asyncpg import Record

from mainspring import telemetry

Find: TypeAlias = Callable[[Sequence[UUID]], Awaitable[Sequence[Record]]]
Repair: TypeAlias = Callable[[UUID, Sequence[Record]], Awaitable[int]]


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
