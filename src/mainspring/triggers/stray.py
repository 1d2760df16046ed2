"""The net under pauses: a row that is held though its rule is not paused is set free.

Takes what a resume has passed by: a webhook's row is held by a settle of its own, after its rule was looked at. Leaves it due; its
executor decides anew. If it dies here, the next round, here or elsewhere, finds the same rows.
"""

from __future__ import annotations

import logging
from itertools import groupby
from operator import itemgetter
from typing import Final
from uuid import UUID

from mainspring import telemetry
from mainspring.db import Database
from mainspring.rooms import ServerSpine
from mainspring.triggers import verbs
from mainspring.triggers.verbs import SQL

log = logging.getLogger("mainspring.triggers")

_STRAY_HELD = SQL["stray_held"]

LOOP: Final = "held rows"
EVERY_SECONDS: Final = 30.0
_BATCH: Final = 200


async def free_stray(spine: ServerSpine, db: Database) -> int:
    """Set free what no pause holds, a transaction a rule; return how many rows those were."""
    freed, failed = 0, set[UUID]()
    while True:
        async with db.system(LOOP) as scope:
            stray = await scope.fetch(_STRAY_HELD, _BATCH, list(failed))
        for tenant, rows in groupby(stray, key=itemgetter("tenant_id")):
            try:
                freed += await _of_tenant(spine, tenant, [row["rule_id"] for row in rows])
            except Exception as error:  # noqa: BLE001 - counted and logged; the next round tries this tenant again
                telemetry.loop_failures.labels(LOOP, type(error).__name__).inc()
                log.warning("%s: of tenant %s: %s: %s", LOOP, tenant, type(error).__name__, error)
                failed.add(tenant)
        if len(stray) < _BATCH:
            return freed


async def _of_tenant(spine: ServerSpine, tenant: UUID, rules: list[UUID]) -> int:
    freed = 0
    for rule in rules:  # each in a transaction of its own: what was set free is locked behind every rule
        async with spine.open(tenant) as tx:
            freed += await verbs.free_stray(tx, rule)
    if freed:
        telemetry.sweep_repaired.labels("held").inc(freed)
    return freed
