"""`mainspring effect`: what is owed, how far it is, and every attempt."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

from mainspring.cli.client import Client, segment
from mainspring.cli.exits import ExitCode
from mainspring.cli.output import Json, Limit, emit, emit_rows

app = App(name="effect", help="What is owed, and how far it is.")

_Effect = Annotated[str, Parameter(help="Its id.")]
_State = Literal["pending", "claimed", "done", "dropped", "dead", "discarded"]


@app.command(name="list")
def list_(
    *,
    state: Annotated[_State | None, Parameter(help="How far they are.")] = None,
    kind: Annotated[str | None, Parameter(help="launch, reflect, event, ...")] = None,
    event: Annotated[int | None, Parameter(help="Only what this event owes.")] = None,
    limit: Limit = None,
    json: Json = False,
) -> int:
    """List effects, oldest first."""
    rows = Client.here().pages("effects", state=state, kind=kind, event_seq=event, limit=limit)
    emit_rows(rows, ("id", "kind", "key", "state", "attempts", "outcome", "error"), json)
    return ExitCode.OK


@app.command
def show(effect: _Effect, *, json: Json = False) -> int:
    """Show an effect and every attempt that did not simply succeed the first time."""
    emit(Client.here().get(f"effects/{segment(effect)}"), json)
    return ExitCode.OK


@app.command
def cancel(effect: _Effect, *, json: Json = False) -> int:
    """Drop a pending effect; one that is being done is dropped unless it succeeds this time."""
    emit(Client.here().post(f"effects/{segment(effect)}/cancel"), json)
    return ExitCode.OK
