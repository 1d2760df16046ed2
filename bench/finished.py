"""Millions of finished rows beside the due ones: how a claim is planned and how fast it is, and what the janitor costs.

The same rows are carried out by the same engine in a database with nothing else and in one with all the finished rows; the two
take turns, each from a vacuumed start.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import figures
import scene
from engine import KIND, Bench
from sizes import Sizes

from mainspring.db import CLAIM, Database
from mainspring.embedded import EmbeddedPostgres
from mainspring.embedded.postgres import ConnectArguments
from mainspring.spine.effects import CRASHES_ALONE, DEFER_LIMIT_SECONDS
from mainspring.spine.janitor import Janitor
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.store import SQL

TITLE = "Finished rows"
POOL_SIZE = 10
ROUNDS = 5
TENANTS = 100
EXPIRED = 5_000
SLOTS = 200
_LOWEST = UUID(int=0)
_PART = 1_000_000
_FILL = """
insert into mainspring.effects
    (tenant_id, id, kind, family, key, event_seq, payload, state, not_before, outcome, created_at, settled_at)
select case n % $3 when 0 then $4 else lpad(to_hex(n % $3), 32, '0')::uuid end, gen_random_uuid(), 'noop', 'executed', 'f' || n, n,
       '{}', 'done', clock_timestamp() - interval '1 day', 'done', clock_timestamp() - interval '1 day',
       clock_timestamp() - interval '1 day' + n * interval '1 millisecond'
from generate_series($1::bigint, $2::bigint) as g(n)
"""
_AGED = """
update mainspring.effects set settled_at = clock_timestamp() - interval '8 days'
where (tenant_id, id) in (select tenant_id, id from mainspring.effects where state = 'done' order by settled_at limit $1)
"""


async def measure(postgres: EmbeddedPostgres, sizes: Sizes) -> dict[str, Any]:
    """Fill one of two databases, then let both carry out the same number of due rows in turns."""
    rates: dict[str, list[float]] = {}
    plans: dict[str, list[str]] = {}
    async with _bench(postgres, "finished_none") as alone, _bench(postgres, "finished_many") as beside:
        begun = time.perf_counter()
        await _fill(beside, sizes.finished)
        filled = time.perf_counter() - begun
        places = {
            "no finished rows": (*alone, 0),
            f"{sizes.finished:,} finished rows": (*beside, sizes.finished),
        }
        done = sizes.due // 4
        for name, (bench, where, finished) in places.items():
            await _carried_out(bench, where, done, finished)
            rates[name] = []
        for number in range(ROUNDS):
            order = list(places.items())
            for name, (bench, where, finished) in reversed(order) if number % 2 else order:
                rates[name].append(sizes.due / await _carried_out(bench, where, sizes.due, finished + done))
            done += sizes.due
        for name, (bench, where, _) in places.items():
            await bench.owe(sizes.due, prefix="planned ")
            await scene.come_to_rest(where)
            plans[name] = await _plan(bench.store.db)
        janitor = await _janitor(*beside)
    return {
        "finished": sizes.finished,
        "due": sizes.due,
        "seconds to fill": filled,
        "effects a second": {name: statistics.median(rounds) for name, rounds in rates.items()},
        "effects a second, each round": rates,
        "claim plans": plans,
        "janitor": janitor,
    }


@asynccontextmanager
async def _bench(postgres: EmbeddedPostgres, name: str) -> AsyncIterator[tuple[Bench, ConnectArguments]]:
    """Make a database with the engine's tables, and an engine on it."""
    where = await scene.database(postgres, name)
    await scene.make_tables(where)
    async with scene.pool(where, size=POOL_SIZE) as pool:
        bench = Bench(pool, PostgresStore(pool))
        await bench.create_tenant()
        yield bench, where


async def _fill(place: tuple[Bench, ConnectArguments], n: int) -> None:
    bench, where = place
    conn = await asyncpg.connect(**where)
    for first in range(1, n + 1, _PART):
        await conn.execute(_FILL, first, min(first + _PART - 1, n), TENANTS, bench.tenant, timeout=3_600)
    await conn.close()


async def _carried_out(bench: Bench, where: ConnectArguments, n: int, finished: int) -> float:
    """Carry out n more due rows; return how long that took."""
    await bench.owe(n, prefix=f"{finished} ")
    await scene.come_to_rest(where)
    bench.expect(n)
    spine = bench.spine()
    begun = time.perf_counter()
    async with spine.running():
        await bench.finished(spine)
        seconds = time.perf_counter() - begun
    async with bench.pool.acquire() as conn:
        states = dict(await conn.fetch("select state, count(*) from mainspring.effects group by state"))
    if states != {"done": finished + n} or bench.executed != n:
        raise figures.Lost(f"of {n} beside {finished}: {states}, {bench.executed} executed")
    return seconds


async def _plan(db: Database) -> list[str]:
    """Return how a claim in a backlog reads the effects."""
    async with db.system("claim", budget=CLAIM) as tx:
        arguments = ["bench", [KIND], [60.0], SLOTS, _LOWEST, CRASHES_ALONE, DEFER_LIMIT_SECONDS]
        [[plan]] = await tx.conn.fetch(f"explain (format json) {SQL['claim']}", *arguments)
    return sorted(set(_scans(json.loads(plan)[0]["Plan"])))


def _scans(node: dict[str, Any]) -> Iterator[str]:
    if node.get("Relation Name") == "effects" and "Scan" in node["Node Type"]:
        yield f"{node['Node Type']} {node.get('Index Name', '')}".strip()
    for child in node.get("Plans", ()):
        yield from _scans(child)


async def _janitor(bench: Bench, where: ConnectArguments) -> dict[str, float]:
    """Time a round that finds nothing to trim, and one that trims its thousand."""
    janitor = Janitor(bench.store, done_days=7.0)
    idle = [await _timed(janitor) for _ in range(5)]
    conn = await asyncpg.connect(**where)
    await conn.execute(_AGED, EXPIRED, timeout=600)
    await conn.close()
    trims = [await _timed(janitor) for _ in range(EXPIRED // 1_000)]
    return {
        "idle round, ms": 1e3 * statistics.median(idle),
        "round that trims 1,000, ms": 1e3 * statistics.median(trims),
    }


async def _timed(janitor: Janitor[Any]) -> float:
    begun = time.perf_counter()
    await janitor.run_once()
    return time.perf_counter() - begun


def judge(measured: dict[str, Any]) -> list[figures.Goal]:
    """Nearly the same speed, and the same plan."""
    none, many = measured["effects a second, each round"].values()
    alone, beside = (set(plan) for plan in measured["claim plans"].values())
    return [
        figures.at_least("claims beside finished rows / without", figures.ratio(many, none), 0.8),
        figures.at_most(
            "ways of a claim to read effects that it has not without them", len(beside - alone), 0
        ),
    ]


def show(measured: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a database, two for the janitor."""
    none = next(iter(measured["effects a second, each round"].values()))
    return [
        (f"{measured['due']:,} due rows of one tenant", "", "of the first"),
        *(
            (
                name,
                f"{rate:,.0f} effects/s",
                f"{figures.ratio(measured['effects a second, each round'][name], none):.2f} x",
            )
            for name, rate in measured["effects a second"].items()
        ),
        *((f"janitor beside them, {name}", f"{ms:.1f}", "") for name, ms in measured["janitor"].items()),
    ]
