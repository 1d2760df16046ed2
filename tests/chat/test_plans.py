"""What the database reads to find what an agent could be offered, behind the walls and by a plan that is made for any arguments."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from mainspring.chat.offers import ROWS_MAX
from mainspring.chat.rows import SQL
from mainspring.ids import new_id

pytestmark = pytest.mark.slow

TOPICS, ROWS = 1_000, 10_000
TENANT, FREE, STUCK = (new_id() for _ in range(3))
SESSIONS = {FREE: new_id(), STUCK: new_id()}
FEW = 10  # what the database tells of many loops is their rounded mean
APP, SYSTEM = "mainspring_app", "mainspring_system"
# Two agents are owed the same: of one the first in every topic waits, so that there is nothing that it could be offered.
_FILL = f"""
insert into mainspring.tenants (id, name) values ('{TENANT}', 'big');
insert into mainspring.log_heads (tenant_id) values ('{TENANT}');
insert into mainspring.accounts (tenant_id, id, kind, handle, name)
values ('{TENANT}', '{FREE}', 'agent', 'free', 'free'), ('{TENANT}', '{STUCK}', 'agent', 'stuck', 'stuck');
insert into mainspring.agents (tenant_id, id, slots, wake) values ('{TENANT}', '{FREE}', 9, true), ('{TENANT}', '{STUCK}', 9, true);
insert into mainspring.effects (tenant_id, id, kind, family, key, event_seq, recipient_id, topic_id, payload, state, not_before)
select '{TENANT}', gen_random_uuid(), 'deliver', 'offered', a.id || n::text, n, a.id, lpad((n % {TOPICS})::text, 32, '0')::uuid,
       jsonb_build_object('message_id', gen_random_uuid(), 'revision', 1), 'pending',
       case when a.id = '{STUCK}' and n <= {TOPICS} then 'infinity' else '-infinity'::timestamptz end
  from generate_series(1, {ROWS}) n
 cross join mainspring.agents a;
insert into mainspring.sessions (tenant_id, id, agent_id, state, claim_id, lease_until, ended_at)
select '{TENANT}', case when n > 1 then gen_random_uuid() when a.id = '{FREE}' then '{SESSIONS[FREE]}' else '{SESSIONS[STUCK]}' end, a.id,
       case n when 1 then 'ready' else 'stopped' end, gen_random_uuid(),
       case n when 1 then clock_timestamp() + interval '1 h' end, case when n > 1 then clock_timestamp() end
  from generate_series(1, 3000) n
 cross join mainspring.agents a;
analyze mainspring.effects, mainspring.agents, mainspring.sessions;
"""


@pytest.fixture(scope="module")
async def big(databases) -> AsyncIterator[asyncpg.Connection]:
    """Two agents, each owed ten thousand messages in a thousand topics, with a session, and thousands that have ended."""
    database = await databases.create("server")
    conn = await asyncpg.connect(**database.admin)
    await conn.execute(_FILL)
    await conn.execute(
        f"set plan_cache_mode = force_generic_plan; set jit = off; set mainspring.tenant = '{TENANT}'"
    )
    yield conn
    await conn.close()
    await databases.drop(database)


async def told(conn: asyncpg.Connection, role: str, name: str, *args: Any) -> dict[str, Any]:
    """Carry a statement out and undo it; return what the database tells of it."""
    begun = conn.transaction()
    await begun.start()
    await conn.execute(f"set local role {role}")
    asked = await conn.fetchval(f"explain (analyze, buffers, format json) {SQL[name]}", *args)
    await begun.rollback()
    [plan] = json.loads(asked)
    return dict(plan["Plan"])


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def rows_of(plan: dict[str, Any], table: str) -> float:
    """How many rows of a table were looked at."""
    return sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        for node in nodes(plan)
        if node.get("Relation Name") == table
    )


def sorted_at_most(plan: dict[str, Any]) -> float:
    return max(
        (
            below["Actual Rows"] * below["Actual Loops"]
            for node in nodes(plan)
            if "Sort" in node["Node Type"]
            for below in node["Plans"]
        ),
        default=0,
    )


def pages(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def offerable(agent: Any, *, between_turns: bool) -> tuple[Any, ...]:
    return TENANT, agent, str(SESSIONS[agent]), None, between_turns, ROWS_MAX


async def test_an_offer_looks_at_the_head_of_each_line_and_behind_those_that_it_takes_from(big):
    plan = await told(big, APP, "offerable", *offerable(FREE, between_turns=True))
    assert plan["Actual Rows"] == ROWS_MAX
    # the heads, and ten rows of each of the hundred lines that are the oldest
    assert rows_of(plan, "effects") <= TOPICS + ROWS_MAX * ROWS / TOPICS + FEW
    assert sorted_at_most(plan) <= TOPICS + FEW
    assert rows_of(plan, "sessions") <= FEW
    assert pages(plan) < 10 * TOPICS


async def test_where_nothing_can_be_taken_nothing_is_read_but_heads(big):
    plan = await told(big, APP, "offerable", *offerable(STUCK, between_turns=True))
    assert plan["Actual Rows"] == 0
    assert rows_of(plan, "effects") <= TOPICS + FEW
    assert sorted_at_most(plan) <= FEW
    assert pages(plan) < 5 * TOPICS


@pytest.mark.parametrize("agent", [FREE, STUCK])
async def test_during_a_turn_no_delivery_is_read_however_many_wait(big, agent):
    plan = await told(big, APP, "offerable", *offerable(agent, between_turns=False))
    assert rows_of(plan, "effects") == 0
    assert pages(plan) < 30


async def test_who_holds_as_much_as_it_may_has_no_line_looked_at(big):
    begun = big.transaction()
    await begun.start()
    ids = [
        row["id"]
        for row in await big.fetch(
            "select id from mainspring.effects where recipient_id = $1 order by event_seq limit $2",
            FREE,
            ROWS_MAX,
        )
    ]
    await big.execute(SQL["offer"], TENANT, ids, str(SESSIONS[FREE]))
    plan = await told(big, APP, "offerable", *offerable(FREE, between_turns=True))
    await begun.rollback()
    assert plan["Actual Rows"] == ROWS_MAX
    assert rows_of(plan, "effects") <= 3 * ROWS_MAX


@pytest.mark.parametrize(("agent", "is_called", "heads"), [(FREE, 1, 1), (STUCK, 0, TOPICS)])
async def test_a_wait_is_answered_by_the_first_head_that_is_due(big, agent, is_called, heads):
    plan = await told(big, SYSTEM, "waiting_sessions", [TENANT], [SESSIONS[agent]], ROWS_MAX)
    assert plan["Actual Rows"] == is_called
    assert rows_of(plan, "effects") <= heads + FEW
    assert rows_of(plan, "sessions") <= FEW
    assert pages(plan) < 5 * heads + 30


@pytest.mark.parametrize(("name", "args"), [("due_nets", (20,)), ("to_wake", (None, None, False, 100, []))])
async def test_whom_to_wake_is_told_by_heads_and_of_nobody_who_has_a_session(big, name, args):
    reading = await told(big, SYSTEM, name, *args)
    assert rows_of(reading, "effects") == 0
    begun = big.transaction()
    await begun.start()
    await big.execute(
        "update mainspring.sessions set lease_until = null, state = 'stopped', ended_at = clock_timestamp() where lease_until is not null"
    )
    nobody = await told(big, SYSTEM, name, *args)
    await begun.rollback()
    assert 1 <= rows_of(nobody, "effects") <= TOPICS + FEW
    assert pages(nobody) < 6 * TOPICS
