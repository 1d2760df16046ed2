"""`mainspring verify`: exit 0 when nothing was lost or doubled, 1 when something was found."""

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
        [one["invariant"], "ok" if one["ok"] else "FOUND", str(one["examined"]), one["what"], one["note"]]
        for one in report["checks"]
    ]
    lines = [table(["invariant", "", "examined", "what", ""], rows)]
    for one in report["checks"]:
        lines += [f"{one['invariant']}: {found}" for found in one["violations"]]
        if one["count"] > len(one["violations"]):
            lines.append(f"{one['invariant']}: and {one['count'] - len(one['violations'])} more")
    found = sum(one["count"] for one in report["checks"])
    word = "clean" if report["ok"] else f"{found} violation{'s' if found != 1 else ''}"
    return "\n".join([*lines, f"{word}, through event {report['through_seq']}"])
