"""Finished rows may number millions: whoever looks for live ones does not read them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from mainspring.db import BATCH as IN_A_BACKLOG
from mainspring.db import COMMAND, Budget
from mainspring.ids import new_id
from mainspring.spine.effects import CRASHES_ALONE, DEFER_LIMIT_SECONDS, NewEffect
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.store import SQL
from tests.spine.test_plans import scans

DUE = 300
# How what is live is found among what is finished: by the indexes of live rows, and what was picked by its key.
LIVE = {"effects_due", "effects_target", "effects_leased", "effects_alone", "effects_pkey"}
CLAIM = ("worker", ["mail"], [60.0], 200, UUID(int=0), CRASHES_ALONE, DEFER_LIMIT_SECONDS)
# (statement, budget, arguments, indexes): what is planned with the statistics of another time
ALWAYS: list[tuple[str, Budget, tuple[Any, ...], set[str]]] = [
    ("claim", IN_A_BACKLOG, CLAIM, LIVE),
    ("claim_alone", COMMAND, ("worker", ["mail"], [60.0], CRASHES_ALONE, DEFER_LIMIT_SECONDS), LIVE),
    ("due", COMMAND, (["mail"],), LIVE),
    ("trim", COMMAND, (7 * 86_400.0, 1_000), {"effects_final", "effects_pkey"}),
]
# and once they are taken anew
IN_TIME: list[tuple[str, Budget, tuple[Any, ...], set[str]]] = [("rebuild_due", COMMAND, (), LIVE)]
FINISHED = """
insert into mainspring.effects (tenant_id, id, kind, family, key, payload, state, not_before, settled_at)
select case n % 10 when 0 then $1 else gen_random_uuid() end, gen_random_uuid(), 'mail', 'executed', 'finished ' || n, '{}', 'done',
       clock_timestamp(), clock_timestamp()
from generate_series(1, 20000) n
"""


@pytest.fixture
async def pool(fresh_database: Any) -> AsyncIterator[asyncpg.Pool]:
    database = await fresh_database("library")
    async with asyncpg.create_pool(**database.dsn, min_size=1, max_size=1) as opened:
        yield opened


@pytest.mark.slow
async def test_whoever_looks_for_live_rows_reads_no_finished_ones(pool: asyncpg.Pool):
    """A batch's rows are all found so whenever statistics were taken last; the sweep's once they are taken anew."""
    store, tenant = PostgresStore(pool), new_id()
    async with store.system("test") as tx:
        await store.owe_drained(tx, [(tenant, NewEffect("mail", key=f"{n:05}")) for n in range(DUE)])
    await pool.execute("analyze mainspring.effects")
    await pool.execute(FINISHED, tenant)
    astray = []
    for asked in (ALWAYS, ALWAYS + IN_TIME):
        for name, budget, arguments, allowed in asked:
            found = list(scans(await _plan(store, budget, name, arguments)))
            assert found, name
            # a row that was picked may be taken where it lies
            ways = [_index(scan) for scan in found if scan["Node Type"] != "Tid Scan"]
            astray += [(name, index) for index in ways if index not in allowed]
        await pool.execute("analyze mainspring.effects")
    assert astray == []


def _index(scan: dict[str, Any]) -> str | None:
    """The index that a scan goes by, None for one of the whole table, or by a part of its key: a tenant alone has everything."""
    if "Index Name" in scan:
        name = str(scan["Index Name"])
        return name if name != "effects_pkey" or "(id =" in scan["Index Cond"] else None
    return next((_index(child) for child in scan.get("Plans", ())), None)


async def _plan(
    store: PostgresStore, budget: Budget, name: str, arguments: tuple[Any, ...]
) -> dict[str, Any]:
    async with store.db.system("test", budget=budget) as tx:
        [[plan]] = await tx.conn.fetch(f"explain (format json) {SQL[name]}", *arguments)
    return dict(json.loads(plan)[0]["Plan"])
