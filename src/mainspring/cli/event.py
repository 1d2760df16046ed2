"""`mainspring event`: the log, in the order of commits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import App, Parameter

from mainspring.cli.client import Client, segment
from mainspring.cli.exits import ExitCode
from mainspring.cli.output import Json, Limit, emit, emit_rows

app = App(name="event", help="The log of what happened.")

POLL_SECONDS = 1.0
_COLUMNS = {
    "seq": "seq",
    "at": "occurred_at",
    "kind": "kind",
    "about": "data.card.key",
    "by": "data.actor.handle",
}
_Kind = Annotated[str | None, Parameter(help="card.moved, or card.* for all of a noun.")]
_Subject = Annotated[str | None, Parameter(help="The id of what it is about.")]


@app.command(name="list")
def list_(
    *,
    after: Annotated[int, Parameter(help="Only events behind this seq.")] = 0,
    kind: _Kind = None,
    subject: _Subject = None,
    limit: Limit = None,
    json: Json = False,
) -> int:
    """List events, oldest first."""
    rows = Client.here().pages("events", after=after, kind=kind, subject=subject, limit=limit)
    emit_rows(rows, _COLUMNS, json)
    return ExitCode.OK


@app.command
def tail(
    *,
    after: Annotated[int | None, Parameter(help="Begin behind this seq; by default at the last few.")] = None,
    last: Annotated[int, Parameter(help="How many to begin with.")] = 10,
    kind: _Kind = None,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="", help="Go on.")] = False,
    json: Json = False,
) -> int:
    """Print the last events, and with -f those that come, until Ctrl-C."""
    client = Client.here()
    first = (
        list(client.pages("events", after=after, kind=kind))
        if after is not None
        else _last(client, last, kind)
    )
    emit_rows(first, _COLUMNS, json)
    seen = first[-1]["seq"] if first else after or 0
    if follow:
        for page in _coming(client, seen, kind):
            emit_rows(page, _COLUMNS, json)
    return ExitCode.OK


@app.command
def show(seq: Annotated[int, Parameter(help="Its place in the log.")], *, json: Json = False) -> int:
    """Show an event, with its snapshot of what was true."""
    emit(Client.here().get(f"events/{segment(seq)}"), json)
    return ExitCode.OK


def _last(client: Client, count: int, kind: str | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("events", last=count, kind=kind)["data"]
    return found


def _coming(client: Client, seen: int, kind: str | None) -> Iterator[list[dict[str, Any]]]:
    while True:
        page = list(client.pages("events", after=seen, kind=kind))
        if page:
            seen = page[-1]["seq"]
            yield page
        else:
            time.sleep(POLL_SECONDS)
