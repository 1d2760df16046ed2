"""Numbers to words: medians, ratios, the goals, the table that is printed and the report that is written."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any


class Lost(Exception):
    """Something that was owed was not carried out, or was carried out twice: no figure of this run counts."""


class Countdown:
    """Counts to a number; `reached` is set there."""

    def __init__(self, goal: int) -> None:
        self.done = 0
        self.goal = goal
        self.reached = asyncio.Event()

    def one(self) -> None:
        """Count one."""
        self.done += 1
        if self.done == self.goal:
            self.reached.set()


@dataclass(frozen=True)
class Goal:
    """What was aimed at, and what it came to."""

    name: str
    aim: str
    measured: float
    met: bool


def at_least(name: str, measured: float, aim: float) -> Goal:
    """A goal that more is better for."""
    return Goal(name, f">= {aim:g}", round(measured, 3), measured >= aim)


def at_most(name: str, measured: float, aim: float) -> Goal:
    """A goal that less is better for."""
    return Goal(name, f"<= {aim:g}", round(measured, 3), measured <= aim)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' own ratios: what slows one round down slows both sides of it."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that `percent` of a hundred do not exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def load() -> float:
    """How many processes have wanted to run, on average of the last minute."""
    return round(os.getloadavg()[0], 2)


def machine(postgres_version: str) -> dict[str, Any]:
    """Where this was measured; figures of two machines do not compare."""
    return {
        "cpus": os.cpu_count(),
        "load_before": load(),
        "python": platform.python_version(),
        "postgresql": postgres_version,
        **{
            name: version(name)
            for name in ("asyncpg", "uvloop", "pgqueuer", "procrastinate", "faststream-outbox")
        },
    }


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns, the first to the left, the figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            f"{cell:{'>' if n else '<'}{width}}"
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def write(path: Path, measured: Mapping[str, Any], goals: Sequence[Goal]) -> None:
    """Write the report: the same names as in the table, every round kept."""
    path.write_text(json.dumps({**measured, "goals": [asdict(goal) for goal in goals]}, indent=2) + "\n")
