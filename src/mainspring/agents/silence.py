"""The net under runners: a held run whose lease has run out goes back to the queue, or is lost when its attempts are spent.

Takes one tenant at a time, each in a transaction of its own; leaves every silent run with an event that says so. If it dies
here, the next round, here or elsewhere, finds the same runs.
"""

from __future__ import annotations

import logging
from typing import Final
from uuid import UUID

from mainspring import telemetry
from mainspring.agents.model import LEASE_LOST, Run, RunPolicy, RunState, after_silence
from mainspring.agents.rows import SQL
from mainspring.agents.verbs import RunVerbs, read_runs
from mainspring.db import Database
from mainspring.rooms import ServerSpine, Tx, system_actor

log = logging.getLogger("mainspring.agents")

_SILENT_TENANTS = SQL["silent_tenants"]
_LOCK_SILENT = SQL["lock_silent"]
_CLOSE_ATTEMPT = SQL["close_attempt"]

BATCH: Final = 100


class Silence:
    """The sweep of held runs that nobody renews."""

    def __init__(self, spine: ServerSpine, db: Database, verbs: RunVerbs, policy: RunPolicy) -> None:
        self._spine = spine
        self._db = db
        self._verbs = verbs
        self._policy = policy

    async def run_once(self) -> bool:
        """Take back, of every tenant, a batch of runs whose lease has run out; True when more may be left."""
        return await self.expire_runs() >= BATCH

    async def expire_runs(self) -> int:
        """The same; return how many runs were taken back."""
        async with self._db.system("silent runs") as scope:
            tenants = [row["tenant_id"] for row in await scope.fetch(_SILENT_TENANTS)]
        taken = 0
        for tenant in tenants:
            taken += await self._of_tenant(tenant)
        if taken:
            telemetry.sweep_repaired.labels("run_lease").inc(taken)
            log.warning("silence: %d runs lost their runner", taken)
        return taken

    async def _of_tenant(self, tenant: UUID) -> int:
        async with self._spine.open(tenant) as tx:
            # locked under the very predicate: a run that was renewed meanwhile is not among them
            locked = [row["id"] for row in await tx.handle.fetch(_LOCK_SILENT, tenant, BATCH)]
            for run in await read_runs(tx.handle, tenant, locked):
                await self._take_back(tx, run)
        return len(locked)

    async def _take_back(self, tx: Tx, run: Run) -> None:
        verdict = after_silence(run, self._policy)
        if run.state is RunState.RUNNING:
            await tx.handle.execute(
                _CLOSE_ATTEMPT, tx.tenant, run.id, run.claim_id, LEASE_LOST, verdict.error
            )
        await self._verbs.conclude(tx, run, verdict, system_actor(tx.tenant, run.cause))
