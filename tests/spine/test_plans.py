"""What a batch costs must not grow with what its tenant has, whatever the tables held when statistics were taken."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from mainspring.db import CLAIM
from mainspring.ids import new_id
from mainspring.spine.effects import CRASHES_ALONE, DEFER_LIMIT_SECONDS, NewEffect
from mainspring.spine.ports import ClaimRequest
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


def scans(plan: dict[str, Any], table: str = "effects") -> Iterator[dict[str, Any]]:
    """Every scan of a table below a node."""
    if plan.get("Relation Name") == table and "Scan" in plan["Node Type"]:
        yield plan
    for child in plan.get("Plans", ()):
        yield from scans(child, table)


def rows_read(plan: dict[str, Any], table: str) -> float:
    """How many rows of a table a plan went through."""
    return sum(
        scan["Actual Loops"] * (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0))
        for scan in scans(plan, table)
    )


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
    assert any(scan["Node Type"] != "Tid Scan" for scan in found)
    for scan in (one for one in found if one["Node Type"] != "Tid Scan"):  # or where they lie
        assert scan.get("Index Name") == "effects_pkey", scan
        assert "(tenant_id =" in scan["Index Cond"], scan
        assert "(id =" in scan["Index Cond"], scan


_CLAIM = f"'one', '{{mail}}', '{{60}}', {BATCH}, '{UUID(int=0)}', {CRASHES_ALONE}, {DEFER_LIMIT_SECONDS}"


async def test_a_claims_plan_that_was_made_on_empty_tables_reads_no_more_when_they_are_full(
    pool: asyncpg.Pool,
):
    store = PostgresStore(pool)
    async with store.db.system("claim", budget=CLAIM) as tx:
        for name, nothing in (("claim", _CLAIM), ("raise_due", f"'{{}}', '{{}}', {DEFER_LIMIT_SECONDS}")):
            await tx.conn.execute(f"prepare kept_{name} as {SQL[name]}")
            await tx.conn.execute(f"execute kept_{name}({nothing})")
    tenant, *others = [new_id() for _ in range(1_000)]
    await _owe(store, [(tenant, f"{n:05}") for n in range(5_000)] + [(other, "1") for other in others])
    raised = f"'{{{tenant}}}', '{{1}}', {DEFER_LIMIT_SECONDS}"
    async with store.db.system("claim", budget=CLAIM) as tx:
        for name, arguments in (("claim", _CLAIM), ("raise_due", raised)):
            explained = f"explain (analyze, format json) execute kept_{name}({arguments})"
            plan = json.loads(await tx.conn.fetchval(explained))[0]["Plan"]
            assert 0 < rows_read(plan, "effects") <= 3 * BATCH, name
            assert 0 < rows_read(plan, "due_tenants") <= 2 * BATCH or name == "claim", name


async def test_a_claim_that_finds_little_makes_no_plan(pool: asyncpg.Pool):
    store = PostgresStore(pool)
    await store.claim(_request())
    await store.claim(_request())
    [kept] = await pool.fetch(
        "select generic_plans, custom_plans from pg_prepared_statements where statement = $1", SQL["claim"]
    )
    assert (kept["generic_plans"], kept["custom_plans"]) == (2, 0)


def _request() -> ClaimRequest:
    return ClaimRequest(worker="one", lease_seconds={"mail": 60.0}, limit=BATCH)


async def test_a_batch_is_planned_for_the_tables_as_they_are_now(pool: asyncpg.Pool):
    store = PostgresStore(pool)
    async with store.system("settle") as tx:
        assert await tx.fetchval("select current_setting('plan_cache_mode')") == "force_custom_plan"
    async with store.tenant(new_id()) as tx:
        assert await tx.fetchval("select current_setting('plan_cache_mode')") == "auto"
