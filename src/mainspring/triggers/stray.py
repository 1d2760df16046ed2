"""The net under pauses: a row that is held though its rule is not paused is set free.

Takes what a resume has passed by: a webhook's row is held by a settle of its own, after its rule was looked at. Leaves it due; its
executor decides anew. If it dies here, the next round, here or elsewhere, finds the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final
from uuid import UUID

from asyncpg import Record

from mainspring import telemetry
from mainspring.db import Database
from mainspring.rooms import ServerSpine
from mainspring.sweeps import Sweep
from mainspring.triggers import verbs
from mainspring.triggers.verbs import SQL

log = logging.getLogger("mainspring.triggers")

_STRAY_HELD = SQL["stray_held"]

LOOP: Final = "held rows"
EVERY_SECONDS: Final = 30.0
_BATCH: Final = 200
_NET: Final = Sweep(loop=LOOP, log=log, told=f"{LOOP}: of tenant %s")


async def free_stray(spine: ServerSpine, db: Database) -> int:
    """Set free what no pause holds, a transaction a rule; return how many rows those were."""

    async def stray(but: Sequence[UUID]) -> Sequence[Record]:
        async with db.system(LOOP) as scope:
            return await scope.fetch(_STRAY_HELD, _BATCH, but)

    return await _NET.over_tenants(stray, partial(_free, spine), batch=_BATCH)


async def _free(spine: ServerSpine, tenant: UUID, stray: Sequence[Record]) -> int:
    freed = 0
    for row in stray:  # each in a transaction of its own: what was set free is locked behind every rule
        async with spine.open(tenant) as tx:
            freed += await verbs.free_stray(tx, row["rule_id"])
    if freed:
        telemetry.sweep_repaired.labels("held").inc(freed)
    return freed
