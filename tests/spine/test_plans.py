"""What a batch costs must not grow with what its tenant has, whatever the tables held when statistics were taken."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from mainspring.ids import new_id
from mainspring.spine.effects import NewEffect
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
