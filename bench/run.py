"""`make bench`: how fast effects are carried out, beside the bare SQL and beside pgqueuer, on one server of our own.

Prints a table and writes report.json beside this file. Ends with 0 whatever the figures are, with 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import figures
import noop
import scene
import uvloop
import way
from engine import Bench

from mainspring.embedded import EmbeddedPostgres
from mainspring.stores.postgres import PostgresStore

REPORT = Path(__file__).with_name("report.json")
POOL_SIZE = 10
PER_SECOND = 100


async def measure(postgres: EmbeddedPostgres, asked: argparse.Namespace) -> dict[str, Any]:
    """Run everything; return all that was measured."""
    ours = await scene.database(postgres, "ours")
    theirs = await scene.database(postgres, "theirs")
    await scene.make_tables(ours)
    peers = [noop.Peer(theirs, consumers=1), noop.Peer(theirs, consumers=2)]
    await peers[0].install()
    async with scene.pool(ours, size=POOL_SIZE) as pool:
        bench = Bench(pool, PostgresStore(pool))
        await bench.create_tenant()
        contenders = [
            noop.Engine(bench, ours),
            noop.HeldBack(bench, ours),
            noop.BareLoop(bench, ours),
            *peers,
        ]
        rates = await noop.rounds(
            contenders, asked.items, least=3, most=asked.rounds, until_seconds=asked.seconds
        )
        bulk = [await way.bulk(bench, asked.items) for _ in range(3)]
        waits = await way.latencies(bench, asked.commits, per_second=PER_SECOND)
    return {
        "noop effects a second": {name: statistics.median(rounds) for name, rounds in rates.items()},
        "noop effects a second, each round": rates,
        "events a second, appended to settled": statistics.median(bulk),
        "commit to execution start, ms": {
            "p50": 1e3 * figures.percentile(waits, 50),
            "p99": 1e3 * figures.percentile(waits, 99),
            "worst": 1e3 * max(waits),
            "commits": len(waits),
            "commits a second": PER_SECOND,
        },
    }


def judge(measured: dict[str, Any]) -> list[figures.Goal]:
    """Compare with what was aimed at."""
    rates = measured["noop effects a second, each round"]
    ours = rates["mainspring"]
    return [
        figures.at_least("mainspring / pgqueuer", figures.ratio(ours, rates["pgqueuer"]), 2.0),
        figures.at_least("mainspring / bare loop", figures.ratio(ours, rates["bare loop"]), 0.5),
        figures.at_least(f"{noop.HELD_BACK} / mainspring", figures.ratio(rates[noop.HELD_BACK], ours), 0.5),
        figures.at_most("p50, ms", measured["commit to execution start, ms"]["p50"], 5.0),
    ]


def show(measured: dict[str, Any], goals: list[figures.Goal]) -> None:
    """Print the tables."""
    rates = measured["noop effects a second, each round"]
    rows = [("no-op effects, one process", "a second", "mainspring is")]
    for name, rounds in rates.items():
        share = "" if name == "mainspring" else f"{figures.ratio(rates['mainspring'], rounds):.2f} x"
        rows.append((name, f"{statistics.median(rounds):,.0f}", share))
    print(figures.table(rows))
    print(
        f"\nevents, appended to settled: {measured['events a second, appended to settled']:,.0f} a second\n"
    )
    waits = measured["commit to execution start, ms"]
    print(
        f"commit to execution start at {waits['commits a second']} a second: p50 {waits['p50']:.2f} ms, "
        f"p99 {waits['p99']:.2f} ms, worst of {waits['commits']} {waits['worst']:.2f} ms\n"
    )
    verdicts = [
        (goal.name, f"{goal.measured:g}", f"{goal.aim}: {'met' if goal.met else 'NOT met'}") for goal in goals
    ]
    print(figures.table([("goal", "measured", "aim"), *verdicts]))


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=20_000, help="effects a round")
    parser.add_argument("--rounds", type=int, default=7, help="rounds at most")
    parser.add_argument("--seconds", type=float, default=120.0, help="begin no further round after so long")
    parser.add_argument("--commits", type=int, default=1_500, help="commits of the latency measurement")
    asked = parser.parse_args()
    logging.disable(logging.INFO)
    begun = time.monotonic()
    with scene.server() as postgres:
        where = figures.machine(postgres.version)
        print(f"{where}\n")
        try:
            measured = uvloop.run(measure(postgres, asked))
        except figures.Lost as lost:
            print(f"LOST: {lost}", file=sys.stderr)
            return 1
    goals = judge(measured)
    show(measured, goals)
    figures.write(REPORT, {"machine": where, **measured}, goals)
    print(f"\nbench/{REPORT.name} written after {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
