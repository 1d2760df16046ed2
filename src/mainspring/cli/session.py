"""`mainspring session`: agents that read what is said as it is said, and the turns that they are in."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from mainspring.cli.client import Client
from mainspring.cli.exits import ExitCode
from mainspring.cli.output import Json, Limit, emit_rows

app = App(name="session", help="Sessions: agents that read what is said, as it is said.")

_COLUMNS = {
    "id": "id",
    "agent": "agent",
    "run": "run_id",
    "state": "state",
    "turn": "turn",
    "settled": "settled_turn",
    "since": "started_at",
    "seen": "seen_at",
}
_ALL_COLUMNS = {**_COLUMNS, "ended": "ended_at", "because": "reason"}


@app.command(name="list")
def list_(
    *,
    all: Annotated[bool, Parameter(negative="", help="Those that have ended, too.")] = False,  # noqa: A002 - the flag's name
    limit: Limit = None,
    json: Json = False,
) -> int:
    """List the sessions of agents that live, the newest first."""
    rows = Client.here().pages("sessions", state="all" if all else "live", limit=limit)
    emit_rows(rows, _ALL_COLUMNS if all else _COLUMNS, json)
    return ExitCode.OK
