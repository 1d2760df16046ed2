"""What a server asks while nothing happens: no more of many tenants than of few."""

from __future__ import annotations

from collections import Counter

import asyncpg
import pytest

from mainspring import telemetry, wiring
from mainspring.config import Settings
from mainspring.wiring import Services

# tenants that have done all that makes rows, and owe nothing
TENANTS = """
with made as (
    insert into mainspring.tenants (id, name) select gen_random_uuid(), 'idle' from generate_series(1, $1::integer) returning id
), heads as (
    insert into mainspring.log_heads (tenant_id, head) select id, 1 from made
), cursors as (
    insert into mainspring.cursors (tenant_id, name, position) select id, 'effects', 1 from made
), due as (
    insert into mainspring.due_tenants (tenant_id, family, next_due) select id, 'executed', 'infinity' from made
), effects as (
    insert into mainspring.effects (tenant_id, id, kind, family, key, event_seq, payload, state, not_before, settled_at)
    select id, gen_random_uuid(), 'launch', 'executed', '1', 1, '{}', 'done', clock_timestamp(), clock_timestamp() from made
), accounts as (
    insert into mainspring.accounts (tenant_id, id, kind, handle, name) select id, id, 'agent', 'echo', 'echo' from made
    returning tenant_id, id
), agents as (
    insert into mainspring.agents (tenant_id, id) select tenant_id, id from accounts returning tenant_id, id
), rules as (
    insert into mainspring.rules (tenant_id, id, name, enabled, version) select id, gen_random_uuid(), 'rule', true, 1 from made
)
insert into mainspring.runs (tenant_id, id, agent_id, effect_kind, effect_key, event_seq, state, ended_at, prompt, trust)
select tenant_id, gen_random_uuid(), id, 'launch', '1', 1, 'done', clock_timestamp(), 'p', 'member' from agents
"""


def asked() -> Counter[str]:
    """How many statements have been sent so far, by purpose."""
    return Counter(
        {
            sample.labels["purpose"]: int(sample.value)
            for family in telemetry.statements.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
        }
    )


async def round_of_each_loop(services: Services) -> dict[str, Counter[str]]:
    """What each loop asks in a round in which there is nothing to do."""
    by_loop = {}
    for loop in services.spine._loops:
        before = asked()
        assert not await loop.run_once(), f"{loop.name} says that there is more to do"
        by_loop[loop.name] = asked() - before
    return by_loop


@pytest.mark.slow
async def test_an_idle_server_asks_as_much_of_many_tenants_as_of_few(fresh_database):
    database = await fresh_database("server")
    conn = await asyncpg.connect(**database.admin)
    services = await wiring.build(Settings(database_url=database.url, pool_size=3))
    await conn.execute(TENANTS, 10)
    few = await round_of_each_loop(services)
    await conn.execute(TENANTS, 290)
    many = await round_of_each_loop(services)
    periods = {loop.name: loop._every_seconds for loop in services.spine._loops}
    await services.stop()
    await conn.close()
    assert many == few
    assert sum(few.values(), Counter()), "the loops have asked nothing at all"
    # what is run only when it is poked is poked by what the tick finds, and it finds nothing
    a_second = sum(few[name].total() / period for name, period in periods.items() if period is not None)
    assert a_second <= 5, few
