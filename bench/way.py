"""The whole way, from an event's commit to its effect: in bulk, and one by one at a steady pace."""

from __future__ import annotations

import asyncio
import time

from engine import EVENT, Bench

from mainspring import NewEvent

_EVENTS_A_COMMIT = 500


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
