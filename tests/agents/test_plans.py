"""What the database reads to answer a poll."""

from __future__ import annotations

import json

import asyncpg
import msgspec
import pytest

from mainspring.agents.rows import SQL
from mainspring.ids import new_id
from tests.agents.conftest import make_place


@pytest.mark.slow
async def test_looking_for_work_reads_no_finished_runs(fresh_database):
    """Ten thousand finished runs, and as many queued ones, must not be read to find the next."""
    database = await fresh_database("server")
    conn = await asyncpg.connect(**database.admin)
    tenant, agent, other = new_id(), new_id(), new_id()
    await conn.execute("insert into mainspring.tenants (id, name) values ($1, 'big')", tenant)
    for n, id_ in enumerate((agent, other)):
        await conn.execute(
            "insert into mainspring.accounts (tenant_id, id, kind, handle, name) values ($1, $2, 'agent', $3, $3)",
            tenant,
            id_,
            f"a{n}",
        )
        await conn.execute(
            "insert into mainspring.agents (tenant_id, id, slots) values ($1, $2, 9)", tenant, id_
        )
    await conn.execute(
        """
        insert into mainspring.runs (tenant_id, id, agent_id, effect_kind, effect_key, state, ended_at, prompt, trust)
        select $1, gen_random_uuid(), $2, 'launch', n::text, case when n % 2 = 0 then 'queued' else 'done' end,
               case when n % 2 = 0 then null else clock_timestamp() end, 'p', 'member'
          from generate_series(1, 20000) as n
        """,
        tenant,
        agent,
    )
    await conn.execute("analyze mainspring.runs")
    asked = {
        "claimable": (json.dumps([[str(tenant), str(agent), []], [str(tenant), str(other), ["gpu"]]]),),
        "lock_due_agents": (tenant, [agent, other], []),
        "claim_run": (tenant, [agent, other], [9, 9], new_id(), None, new_id(), [0], 60.0, []),
        "silent_tenants": (200, [new_id()]),
        "overdue_tenants": (200, [new_id()]),
        "lock_silent": (tenant, 100),
    }
    for name, args in asked.items():
        plan = await conn.fetch(f"explain (analyze, format text) {SQL[name]}", *args)
        text = "\n".join(row[0] for row in plan)
        assert "Seq Scan on runs" not in text, f"{name}\n{text}"
    await conn.close()


@pytest.mark.slow
async def test_what_a_runner_may_not_take_is_not_read(home):
    """However many runs wait for another runner, of one look each reads as much of the queue as there are kinds of them."""
    place = await make_place(home)
    agent = await place.agent(slots=9)
    async with home.db.tenant(place.tenant) as scope:
        await scope.execute(
            """
            insert into mainspring.runs (tenant_id, id, agent_id, effect_kind, effect_key, state, prompt, trust, runner_labels)
            select $1, gen_random_uuid(), $2, 'launch', n::text, 'queued', 'p', 'member', array['gpu', 'l' || n % 3]
              from generate_series(1, 6000) as n
            """,
            place.tenant,
            agent,
        )
    asked = {
        "lock_due_agents": (place.tenant, [agent], ["gpu"]),
        "claim_run": (place.tenant, [agent], [9], new_id(), None, new_id(), [0], 60.0, ["gpu"]),
        "claimable": ([[str(place.tenant), str(agent), ["gpu"]]],),
    }
    async with home.db.tenant(place.tenant) as scope:
        for name, args in asked.items():
            told = await scope.fetch(f"explain (analyze, buffers, format json) {SQL[name]}", *args)
            [plan] = msgspec.json.decode(told[0][0]) if isinstance(told[0][0], str) else told[0][0]
            read = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
            assert read < 60, f"{name} reads {read} blocks"


@pytest.mark.slow
async def test_what_a_claim_and_a_beat_ask_of_questions_reads_the_runs_own(fresh_database):
    """Ten thousand answered questions of others must not be read to find those of one run, or the open ones."""
    database = await fresh_database("server")
    conn = await asyncpg.connect(**database.admin)
    tenant, agent, run = new_id(), new_id(), new_id()
    await conn.execute("insert into mainspring.tenants (id, name) values ($1, 'big')", tenant)
    await conn.execute(
        "insert into mainspring.accounts (tenant_id, id, kind, handle, name) values ($1, $2, 'agent', 'a', 'a')",
        tenant,
        agent,
    )
    await conn.execute("insert into mainspring.agents (tenant_id, id) values ($1, $2)", tenant, agent)
    await conn.execute(
        """
        insert into mainspring.runs (tenant_id, id, agent_id, effect_kind, effect_key, state, ended_at, prompt, trust)
        select $1, case n when 1 then $3 else gen_random_uuid() end, $2, 'launch', n::text, 'done', clock_timestamp(), 'p', 'member'
          from generate_series(1, 1000) as n
        """,
        tenant,
        agent,
        run,
    )
    await conn.execute(
        """
        insert into mainspring.asks
            (tenant_id, id, run_id, claim_id, request_id, question, released, state, answer, answered_by, ended_at)
        select r.tenant_id, gen_random_uuid(), r.id, gen_random_uuid(), gen_random_uuid(), 'q', false, 'answered', 'a', r.agent_id,
               clock_timestamp()
          from mainspring.runs r
         cross join generate_series(1, 10)
        """
    )
    await conn.execute("analyze mainspring.runs, mainspring.asks")
    asked = {
        "asks_of_run": (tenant, run),
        "asks": (tenant, [new_id()]),
        "list_open_asks": (tenant, new_id(), 50),
        "ask_of_request": (tenant, run, new_id()),
        "adopt_ask": (tenant, run, new_id(), new_id(), "q", [], False, None),
        "expire_asks": (tenant, run, [new_id()]),
        "ended_asks": (tenant, run, [new_id()]),
        "give_answers": (tenant, run, new_id()),
        "close_asks": (tenant, [run], "over"),
    }
    for name, args in asked.items():
        plan = await conn.fetch(f"explain {SQL[name]}", *args)
        text = "\n".join(row[0] for row in plan)
        assert "Seq Scan on asks" not in text, f"{name}\n{text}"
    await conn.close()
