"""The net under runners: a held run whose lease has run out goes back to the queue, or is lost when its attempts are spent; a
queued one that no runner has taken in the time that it was given is lost, too.

Takes one tenant at a time, each in a transaction of its own; leaves every silent run with an event that says so. If it dies
here, the next round, here or elsewhere, finds the same runs.

A runner is silent only if it could have been heard. While no server, or no database, was there to hear it, its lease ran out
all the same: so a sweep that has just begun, or could not work for a while, first gives every runner one lease to speak up.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from asyncpg import Record

from mainspring import telemetry
from mainspring.agents.model import LEASE_LOST, Run, RunPolicy, RunState, after_silence
from mainspring.agents.rows import SQL
from mainspring.agents.verbs import RunVerbs, read_runs
from mainspring.db import Database
from mainspring.rooms import ServerSpine, Tx, system_actor
from mainspring.sweeps import Sweep, Watch

log = logging.getLogger("mainspring.agents")

_DATABASE_TIME = SQL["database_time"]
_SILENT_TENANTS = SQL["silent_tenants"]
_LOCK_SILENT = SQL["lock_silent"]
_OVERDUE_TENANTS = SQL["overdue_tenants"]
_LOCK_OVERDUE = SQL["lock_overdue"]
_CLOSE_ATTEMPT = SQL["close_attempt"]
_COUNT_UNBEGUN = SQL["count_unbegun"]

BATCH: Final = 100
_TENANTS: Final = 200
LOOP: Final = "silent runs"
_NET: Final = Sweep(loop=LOOP, log=log, told="silence: of tenant %s nothing was taken back")


class Silence:
    """The sweep of held runs that nobody renews, and of queued ones that nobody takes."""

    def __init__(self, spine: ServerSpine, db: Database, verbs: RunVerbs, policy: RunPolicy) -> None:
        self._spine = spine
        self._db = db
        self._verbs = verbs
        self._policy = policy
        self._watch: Watch | None = None

    async def run_once(self) -> bool:
        """Take back, of every tenant, a batch of runs whose lease has run out; True when more may be left.

        Nothing is taken until runners could be heard for a whole lease.
        """
        before, self._watch = self._watch, None  # it begins anew if the database cannot be asked
        async with self._db.system(LOOP) as scope:
            moment: float = await scope.fetchval(_DATABASE_TIME)
        lease = self._policy.lease_seconds
        self._watch = Watch.from_before(before, moment, gap_seconds=lease / 2)
        return self._watch.has_lasted(lease) and await self.expire_runs() >= BATCH

    async def expire_runs(self) -> int:
        """Take back a batch of runs of every tenant, whoever could be heard; return how many."""
        taken = await self._of_all(_SILENT_TENANTS, _LOCK_SILENT)
        given_up = await self._of_all(_OVERDUE_TENANTS, _LOCK_OVERDUE)
        if taken:
            telemetry.sweep_repaired.labels("run_lease").inc(taken)
            log.warning("silence: %d runs lost their runner", taken)
        if given_up:
            log.warning("silence: %d runs found no runner in their time", given_up)
        return taken + given_up

    async def _of_all(self, tenants: str, lock: str) -> int:
        """Go to every tenant that has some, once: those where nothing can be taken back must not stand before the others."""
        seen = set[UUID]()

        async def unseen(_failed: Sequence[UUID]) -> Sequence[Record]:
            async with self._db.system(LOOP) as scope:
                found = await scope.fetch(tenants, _TENANTS, list(seen))
            seen.update(row["tenant_id"] for row in found)
            return found

        async def take_back(tenant: UUID, _row: Sequence[Record]) -> int:
            return await self._of_tenant(tenant, lock)

        return await _NET.over_tenants(unseen, take_back, batch=_TENANTS)

    async def _of_tenant(self, tenant: UUID, lock: str) -> int:
        async with self._spine.open(tenant) as tx:
            # locked under the very predicate: a run that was renewed or taken meanwhile is not among them
            locked = [row["id"] for row in await tx.handle.fetch(lock, tenant, BATCH)]
            for run in await read_runs(tx.handle, tenant, locked):
                await self._take_back(tx, run)
        return len(locked)

    async def _take_back(self, tx: Tx, run: Run) -> None:
        verdict = after_silence(run, self._policy)
        if run.state is RunState.RUNNING:
            await tx.handle.execute(
                _CLOSE_ATTEMPT, tx.tenant, run.id, run.claim_id, LEASE_LOST, verdict.error
            )
        elif run.state is RunState.CLAIMED:
            await tx.handle.execute(_COUNT_UNBEGUN, tx.tenant, run.id)
        await self._verbs.conclude(tx, run, verdict, system_actor(tx.tenant, run.cause))
