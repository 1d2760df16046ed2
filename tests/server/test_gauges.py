"""What a scrape counts, and what the database reads for it."""

from __future__ import annotations

import asyncpg
import pytest

from mainspring import telemetry
from mainspring.agents.rows import SQL as OF_AGENTS
from mainspring.db import Database, create_pool, gather_closed
from mainspring.ids import new_id
from mainspring.operators.metrics import SQL, measure

FINISHED = 20_000
EFFECTS = """
insert into mainspring.effects (tenant_id, id, kind, family, key, payload, state, not_before, settled_at)
select $1, gen_random_uuid(), 'launch', 'executed', n::text, '{}',
       case when n <= 3 then 'pending' when n <= 5 then 'dead' else 'done' end, clock_timestamp(),
       case when n > 3 then clock_timestamp() end
  from generate_series(1, $2::integer) n
"""
RUNS = """
insert into mainspring.runs (tenant_id, id, agent_id, effect_kind, effect_key, state, ended_at, prompt, trust)
select $1, gen_random_uuid(), $2, 'launch', n::text,
       case when n <= 3 then 'queued' when n <= 5 then 'failed' when n <= 6 then 'lost' else 'done' end,
       case when n > 3 then clock_timestamp() end, 'p', 'member'
  from generate_series(1, $3::integer) n
"""


async def filled(conn: asyncpg.Connection, finished: int) -> None:
    tenant, agent = new_id(), new_id()
    await conn.execute("insert into mainspring.tenants (id, name) values ($1, 'big')", tenant)
    await conn.execute(
        "insert into mainspring.accounts (tenant_id, id, kind, handle, name) values ($1, $2, 'agent', 'a', 'a')",
        tenant,
        agent,
    )
    await conn.execute("insert into mainspring.agents (tenant_id, id) values ($1, $2)", tenant, agent)
    await conn.execute(EFFECTS, tenant, finished)
    await conn.execute(RUNS, tenant, agent, finished)


async def test_dead_runs_are_dead_letters_as_dead_effects_are(fresh_database):
    database = await fresh_database("server")
    pool = await create_pool(max_size=2, **database.admin)
    async with pool.acquire() as conn:
        await filled(conn, 10)
    await measure(Database(pool, roles=True))
    await gather_closed(pool, timeout_seconds=1)
    told = {
        (sample.name, sample.labels["kind"]): sample.value
        for gauge in (telemetry.effects_owed, telemetry.effects_dead, telemetry.dead_letters)
        for family in gauge.collect()
        for sample in family.samples
    }
    assert told == {
        ("mainspring_effects_owed", "launch"): 3,
        ("mainspring_effects_dead", "launch"): 2,
        ("mainspring_dead_letters", "launch"): 2,
        ("mainspring_dead_letters", "run"): 3,
    }


@pytest.mark.slow
async def test_a_scrape_reads_nothing_that_is_finished(fresh_database):
    database = await fresh_database("server")
    conn = await asyncpg.connect(**database.admin)
    await filled(conn, FINISHED)
    await conn.execute("analyze mainspring.effects, mainspring.runs")
    asked = (SQL["effect_gauges"], SQL["dead_runs"], OF_AGENTS["runs_by_state"])
    plans = ["\n".join(row[0] for row in await conn.fetch(f"explain {statement}")) for statement in asked]
    await conn.close()
    assert [plan for plan in plans if "Seq Scan" in plan] == []
