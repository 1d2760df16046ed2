"""`make bench`: how fast effects are carried out beside peers, and what scale costs, on one server of our own.

Each scene measures by itself, compares within one run, and counts what it did. Prints a table a scene and writes report.json
beside this file. Ends with 0 whatever the figures are, with 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import appenders
import fairness
import figures
import finished
import idle
import noop
import rules
import runners
import scene
import sizes
import talk
import uvloop
import way

REPORT = Path(__file__).with_name("report.json")
SCENES = {
    "noop": noop,
    "way": way,
    "idle": idle,
    "rules": rules,
    "fairness": fairness,
    "appenders": appenders,
    "runners": runners,
    "talk": talk,
    "finished": finished,
}


def main() -> int:
    """Measure, print, write."""
    asked = _asked()
    chosen = sizes.LONG if asked.long else sizes.SHORT
    given = {name: value for name in _OVERRIDES if (value := getattr(asked, name)) is not None}
    chosen = replace(chosen, **given)
    logging.disable(logging.INFO)
    begun = time.monotonic()
    report: dict[str, Any] = {}
    goals: list[figures.Goal] = []
    with scene.server() as postgres:
        where = figures.machine(postgres.version)
        print(f"{where}\nsizes: {chosen}\n")
        for name in asked.only or SCENES:
            began = time.monotonic()
            try:
                report[name] = uvloop.run(SCENES[name].measure(postgres, chosen))
            except figures.Lost as lost:
                print(f"LOST ({name}): {lost}", file=sys.stderr)
                return 1
            goals += SCENES[name].judge(report[name])
            print(
                f"{SCENES[name].TITLE} ({name}, {time.monotonic() - began:.0f} s, load {figures.load():.1f})"
            )
            print(f"{figures.table(SCENES[name].show(report[name]))}\n", flush=True)
    verdicts = [
        (goal.name, f"{goal.measured:g}", f"{goal.aim}: {'met' if goal.met else 'NOT met'}") for goal in goals
    ]
    print(figures.table([("goal", "measured", "aim"), *verdicts]))
    if not asked.long:
        print("\nsizes were scaled down to a few minutes; the full ones are measured by `make bench-long`")
    figures.write(REPORT, {"machine": where, "sizes": chosen.name, **report}, goals)
    print(f"\nbench/{REPORT.name} written after {time.monotonic() - begun:.0f} s, load {figures.load():.1f}")
    return 0


_OVERRIDES = ("items", "rounds", "seconds", "commits", "finished")


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=SCENES, action="append", help="this scene alone; may be repeated")
    parser.add_argument("--long", action="store_true", help="the full sizes, which take under 20 minutes")
    parser.add_argument("--items", type=int, help="noop, way: effects a round")
    parser.add_argument("--rounds", type=int, help="noop: rounds at most")
    parser.add_argument("--seconds", type=float, help="noop: begin no further round after so long")
    parser.add_argument("--commits", type=int, help="way: commits of the latency measurement")
    parser.add_argument("--finished", type=int, help="finished: rows that are finished")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
