"""`mainspring audit`: who did what that asks for an operator."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from mainspring.cli.client import Client
from mainspring.cli.exits import ExitCode
from mainspring.cli.output import Json, Limit, emit_rows

app = App(name="audit", help="Who did what.")


@app.command(name="list")
def list_(
    *,
    verb: Annotated[str | None, Parameter(help="desk.replay, or rule.* for all of a noun.")] = None,
    by: Annotated[str | None, Parameter(help="The handle of who did it.")] = None,
    limit: Limit = None,
    json: Json = False,
) -> int:
    """List what operators did, the latest first: desk, rules, tokens, agents, boards, faults."""
    rows = Client.here().pages("audit", verb=verb, by=by, limit=limit)
    emit_rows(rows, ("at", "by", "verb", "subject"), json)
    return ExitCode.OK
