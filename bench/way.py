"""The whole way, from an event's commit to its effect: in bulk, and one by one at a steady pace."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import figures
import scene
from engine import EVENT, Bench
from sizes import Sizes

from mainspring import NewEvent
from mainspring.embedded import EmbeddedPostgres
from mainspring.stores.postgres import PostgresStore

TITLE = "The whole way"
PER_SECOND = 100
POOL_SIZE = 10
_EVENTS_A_COMMIT = 500


async def measure(postgres: EmbeddedPostgres, sizes: Sizes) -> dict[str, Any]:
    """Measure in bulk, then one by one."""
    where = await scene.database(postgres, "way")
    await scene.make_tables(where)
    async with scene.pool(where, size=POOL_SIZE) as pool:
        bench = Bench(pool, PostgresStore(pool))
        await bench.create_tenant()
        rates = [await bulk(bench, sizes.items) for _ in range(3)]
        waits = await latencies(bench, sizes.commits, per_second=PER_SECOND)
    return {
        "events a second, appended to settled": statistics.median(rates),
        "commit to execution start, ms": {
            "p50": 1e3 * figures.percentile(waits, 50),
            "p99": 1e3 * figures.percentile(waits, 99),
            "worst": 1e3 * max(waits),
            "commits": len(waits),
            "commits a second": PER_SECOND,
        },
    }


def judge(measured: dict[str, Any]) -> list[figures.Goal]:
    """An effect begins within five milliseconds of its commit."""
    return [figures.at_most("p50, ms", measured["commit to execution start, ms"]["p50"], 5.0)]


def show(measured: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row each."""
    waits = measured["commit to execution start, ms"]
    return [
        ("one process", ""),
        ("events, appended to settled", f"{measured['events a second, appended to settled']:,.0f} a second"),
        (
            f"commit to execution start at {waits['commits a second']} a second",
            f"p50 {waits['p50']:.2f} ms, p99 {waits['p99']:.2f} ms, worst of {waits['commits']} {waits['worst']:.2f} ms",
        ),
    ]


async def bulk(bench: Bench, n: int) -> float:
    """Append n events while the engine runs; return events a second, from the first append to the last settle."""
    await bench.empty()
    bench.expect(n)
    spine = bench.spine()
    async with spine.running():
        begun = time.perf_counter()
        for first in range(0, n, _EVENTS_A_COMMIT):
            async with spine.open(bench.tenant) as tx:
                for i in range(first, min(first + _EVENTS_A_COMMIT, n)):
                    tx.append(NewEvent(EVENT, subject=f"{i:08}"))
        await bench.finished(spine)
        seconds = time.perf_counter() - begun
    await bench.check(n)
    return n / seconds


async def latencies(bench: Bench, n: int, *, per_second: int) -> list[float]:
    """Commit n events, evenly spaced; return for each how long after its commit its effect began, in seconds."""
    await bench.empty()
    bench.expect(n, clocked=True)
    spine = bench.spine()
    committed: dict[str, float] = {}
    async with spine.running():
        begun = time.perf_counter()
        for i in range(n):
            # against the plan, not the last one: a slow commit must not thin out the load that follows it
            await asyncio.sleep(max(0.0, begun + i / per_second - time.perf_counter()))
            async with spine.open(bench.tenant) as tx:
                tx.append(NewEvent(EVENT, subject=f"{i:08}"))
            committed[f"{i:08}"] = time.perf_counter()
        await bench.finished(spine)
    await bench.check(n)
    return [bench.started[key] - at for key, at in committed.items()]
