"""`mainspring verify`: exit 0 when nothing was lost or doubled, 1 when something was found. What is only late is a warning."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from mainspring.cli.client import Client
from mainspring.cli.exits import ExitCode
from mainspring.cli.output import Json, emit, table

SECONDS_MAX = 600.0


def verify(
    *,
    since: Annotated[int, Parameter(help="Judge again only events behind this seq.")] = 0,
    json: Json = False,
) -> int:
    """Check every invariant that rows can show, each by name."""
    report = Client.here().call("GET", "verify", query={"since": since}, timeout_seconds=SECONDS_MAX).body
    emit(report, json, _shown)
    return ExitCode.OK if report["ok"] else ExitCode.ERROR


def _shown(report: dict[str, Any]) -> str:
    rows = [
        [one["invariant"], _found(one), str(one["examined"]), one["what"], one["note"]]
        for one in report["checks"]
    ]
    lines = [table(["invariant", "", "examined", "what", ""], rows)]
    for one in report["checks"]:
        lines += [f"{one['invariant']}: {found}" for found in one["violations"]]
        if one["count"] > len(one["violations"]):
            lines.append(f"{one['invariant']}: and {one['count'] - len(one['violations'])} more")
    found = sum(one["count"] for one in report["checks"] if not one["warning"])
    word = "clean" if report["ok"] else _counted(found, "violation")
    if report["warnings"]:
        word += f", {_counted(report['warnings'], 'warning')}"
    return "\n".join([*lines, f"{word}, through event {report['through_seq']}"])


def _found(check: dict[str, Any]) -> str:
    if check["ok"]:
        return "ok"
    return "LATE" if check["warning"] else "FOUND"


def _counted(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"
