"""What one server process asks of its database while nothing happens: of few tenants, and of many.

Counted at the connections from the start of its loops on, so that what runs every 30 seconds has run. Both servers run at once,
each on a database of its own: the machine's other load does to one what it does to the other.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import figures
from product import Product, product
from sizes import Sizes

from mainspring.embedded import EmbeddedPostgres
from mainspring.ids import new_id

TITLE = "Idle tenants"
FEW = 10
_BUSY = "select active_time from pg_stat_database where datname = current_database()"
_DONE_ONCE = """
with heads as (update mainspring.log_heads set head = 1), cursors as (update mainspring.cursors set position = 1),
     due as (insert into mainspring.due_tenants (tenant_id, family, next_due)
             select id, 'executed', 'infinity' from mainspring.tenants)
insert into mainspring.effects (tenant_id, id, kind, family, key, event_seq, payload, state, not_before, settled_at)
select id, gen_random_uuid(), 'launch', 'executed', '1', 1, '{}', 'done', clock_timestamp(), clock_timestamp()
from mainspring.tenants
"""


async def measure(postgres: EmbeddedPostgres, sizes: Sizes) -> dict[str, Any]:
    """Count both at once, for as long."""
    async with product(postgres, "idle_few") as few, product(postgres, "idle_many") as many:
        await _fill(few, FEW)
        await _fill(many, sizes.idle_tenants)
        counted = await asyncio.gather(*(_count(one, sizes.idle_seconds) for one in (few, many)))
    return {
        "seconds": sizes.idle_seconds,
        "by tenants": {str(FEW): counted[0], str(sizes.idle_tenants): counted[1]},
    }


async def _fill(one: Product, tenants: int) -> None:
    """Make tenants that have done something once, and owe nothing."""
    store = one.services.spine.store
    async with store.system("create tenant") as tx:
        for n in range(tenants):
            await store.create_tenant(tx, new_id(), f"tenant {n}")
    conn = await asyncpg.connect(**one.admin)
    await conn.execute(_DONE_ONCE)
    await conn.execute("vacuum (analyze)")
    await conn.close()


async def _count(one: Product, seconds: float) -> dict[str, Any]:
    conn = await asyncpg.connect(**one.admin)
    before = await conn.fetchval(_BUSY)
    one.asked.clear()
    await one.services.start()
    await asyncio.sleep(seconds)
    statements, frames = one.asked.statements.total(), one.asked.frames
    distinct = len(one.asked.statements)
    await one.services.spine.stop()
    busy = await _settled(conn, before)
    await conn.close()
    if not statements:
        raise figures.Lost("a server that has asked nothing is not idle, it is dead")
    return {
        "statements a second": statements / seconds,
        "begin, commit, set a second": frames / seconds,
        "distinct statements": distinct,
        "database busy, ms a second": busy / seconds,
    }


async def _settled(conn: asyncpg.Connection, before: float) -> float:
    """Return how long the database has been busy since, once its backends have told: they do so when they are idle."""
    await asyncio.sleep(1.5)
    await conn.execute("select pg_stat_clear_snapshot()")
    return float(await conn.fetchval(_BUSY)) - before


def judge(measured: dict[str, Any]) -> list[figures.Goal]:
    """Five statements a second, whatever the number of tenants."""
    [(_, few), (tenants, many)] = measured["by tenants"].items()
    return [
        figures.at_most(f"{tenants} idle tenants, statements a second", many["statements a second"], 5.0),
        figures.at_most(
            f"the same / of {FEW}", many["statements a second"] / few["statements a second"], 1.2
        ),
    ]


def show(measured: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row for each number of tenants."""
    return [
        (f"one process, {measured['seconds']:.0f} s", "statements/s", "begin+commit+set/s", "database busy"),
        *(
            (
                f"{tenants} idle tenants",
                f"{one['statements a second']:.2f}",
                f"{one['begin, commit, set a second']:.2f}",
                f"{one['database busy, ms a second']:.1f} ms/s",
            )
            for tenants, one in measured["by tenants"].items()
        ),
    ]
