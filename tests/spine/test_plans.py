"""What a batch costs must not grow with what its tenant has, whatever the tables held when statistics were taken."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
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

BATCH = 200


@pytest.fixture
async def pool(fresh_database: Any) -> AsyncIterator[asyncpg.Pool]:
    database = await fresh_database("library")
    async with asyncpg.create_pool(**database.dsn, min_size=1, max_size=1) as opened:
        yield opened


@pytest.fixture
async def grown(pool: asyncpg.Pool) -> UUID:
    """A tenant that has come to many effects since statistics were taken, when all tenants had one each."""
    store = PostgresStore(pool)
    await _owe(store, [(new_id(), "1") for _ in range(300)])
    await pool.execute("analyze mainspring.effects")
    tenant = new_id()
    await _owe(store, [(tenant, f"{n:05}") for n in range(5_000)])
    return tenant


async def _owe(store: PostgresStore, keys: list[tuple[UUID, str]]) -> None:
    async with store.system("test") as tx:
        await store.owe_drained(tx, [(tenant, NewEffect("mail", key=key)) for tenant, key in sorted(keys)])


def scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every scan of the effects below a node."""
    if plan.get("Relation Name") == "effects" and "Scan" in plan["Node Type"]:
        yield plan
    for child in plan.get("Plans", ()):
        yield from scans(child)


@pytest.mark.parametrize("name", ["settle", "settle_done", "renew"])
async def test_rows_that_a_batch_names_are_found_by_their_whole_key(
    pool: asyncpg.Pool, grown: UUID, name: str
):
    store = PostgresStore(pool)
    ids = [row["id"] for row in await pool.fetch("select id from mainspring.effects limit $1", BATCH)]
    columns: dict[str, list[Any]] = {"uuid": ids, "text": ["done"] * BATCH, "bool": [True] * BATCH}
    async with store.system("settle") as tx:
        parameters = (await tx.conn.prepare(SQL[name])).get_parameters()
        arguments = [columns.get(one.name.removesuffix("[]"), [0] * BATCH) for one in parameters]
        arguments[0] = [grown] * BATCH
        [[plan]] = await tx.conn.fetch(f"explain (format json) {SQL[name]}", *arguments)
    found = list(scans(json.loads(plan)[0]["Plan"]))
    assert found
    for scan in found:
        assert scan.get("Index Name") == "effects_pkey", scan
        assert "(tenant_id =" in scan["Index Cond"], scan
        assert "(id =" in scan["Index Cond"], scan


async def test_a_batch_is_planned_for_the_tables_as_they_are_now(pool: asyncpg.Pool):
    store = PostgresStore(pool)
    async with store.system("settle") as tx:
        assert await tx.fetchval("select current_setting('plan_cache_mode')") == "force_custom_plan"
    async with store.tenant(new_id()) as tx:
        assert await tx.fetchval("select current_setting('plan_cache_mode')") == "auto"


# How what is live is found among what is finished: by the indexes of live rows, and what was picked by its key.
LIVE = {"effects_due", "effects_target", "effects_leased", "effects_alone", "effects_pkey"}
CLAIM = ("worker", ["mail"], [60.0], BATCH, UUID(int=0), CRASHES_ALONE, DEFER_LIMIT_SECONDS)
# (statement, budget, arguments, indexes): what is planned with the statistics of another time
ALWAYS: list[tuple[str, Budget, tuple[Any, ...], set[str]]] = [
    ("claim", IN_A_BACKLOG, CLAIM, LIVE),
    ("claim_alone", COMMAND, ("worker", ["mail"], [60.0], CRASHES_ALONE, DEFER_LIMIT_SECONDS), LIVE),
    ("due", COMMAND, (["mail"],), LIVE),
    ("trim", COMMAND, (7 * 86_400.0, 1_000), {"effects_final", "effects_pkey"}),
]
# and once they are taken anew
IN_TIME = [("claim", COMMAND, CLAIM, LIVE), ("rebuild_due", COMMAND, (), LIVE)]
FINISHED = """
insert into mainspring.effects (tenant_id, id, kind, family, key, payload, state, not_before, settled_at)
select case n % 10 when 0 then $1 else gen_random_uuid() end, gen_random_uuid(), 'mail', 'executed', 'finished ' || n, '{}', 'done',
       clock_timestamp(), clock_timestamp()
from generate_series(1, 20000) n
"""


@pytest.mark.slow
async def test_whoever_looks_for_live_rows_reads_no_finished_ones(pool: asyncpg.Pool):
    store, tenant = PostgresStore(pool), new_id()
    await _owe(store, [(tenant, f"{n:05}") for n in range(300)])
    await pool.execute("analyze mainspring.effects")
    await pool.execute(FINISHED, tenant)
    astray = []
    for asked in (ALWAYS, ALWAYS + IN_TIME):
        for name, budget, arguments, allowed in asked:
            found = [_index(scan) for scan in scans(await _plan(store, budget, name, arguments))]
            assert found, name
            astray += [(name, index) for index in found if index not in allowed]
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
