"""What one server process asks of its database while nothing happens: of few tenants, and of many.

Counted at the connections from the start of its loops on, so that what runs every 30 seconds has run. Both servers run at once,
each on a database of its own: the machine's other load does to one what it does to the other.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any

import asyncpg
import figures
from product import Product, product
from sizes import Sizes

from mainspring.embedded import EmbeddedPostgres
from mainspring.ids import new_id
from mainspring.spine.events import NewEvent

TITLE = "Idle tenants"
FEW = 10
COMMITS = 60
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
        drains = await _drains([few, many])
    for one, seconds in zip(counted, drains, strict=True):
        one["drain of one commit, ms"] = 1e3 * statistics.median(seconds)
    return {
        "seconds": sizes.idle_seconds,
        "drain of one commit, many / few": figures.ratio(drains[1], drains[0]),
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


async def _drains(products: Sequence[Product]) -> list[list[float]]:
    """Commit one event here and there, and time its drain; the servers do not run meanwhile."""
    seconds: list[list[float]] = [[] for _ in products]
    tenants = [(await one.new_person("awake")).tenant_id for one in products]
    for number in range(COMMITS):
        for one, tenant, mine in zip(products, tenants, seconds, strict=True):
            async with one.services.spine.open(tenant) as tx:
                tx.append(NewEvent("custom.bench", subject="s"))
            begun = time.perf_counter()
            drained = await one.services.spine.drain.run_once()
            if number >= COMMITS // 10:  # by then statements are prepared
                mine.append(time.perf_counter() - begun)
            if drained.events != 1:
                raise figures.Lost(f"{drained.events} events drained, and one was committed")
            await one.services.spine.drain.run_once()  # looks once more, as the loop does
    return seconds


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
        figures.at_most(
            f"drain of one commit among {tenants} tenants / among {FEW}",
            measured["drain of one commit, many / few"],
            2.0,
        ),
    ]


def show(measured: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row for each number of tenants."""
    return [
        (
            f"one process, {measured['seconds']:.0f} s",
            "statements/s",
            "begin+commit+set/s",
            "database busy",
            "drain",
        ),
        *(
            (
                f"{tenants} idle tenants",
                f"{one['statements a second']:.2f}",
                f"{one['begin, commit, set a second']:.2f}",
                f"{one['database busy, ms a second']:.1f} ms/s",
                f"{one['drain of one commit, ms']:.1f} ms",
            )
            for tenants, one in measured["by tenants"].items()
        ),
    ]
