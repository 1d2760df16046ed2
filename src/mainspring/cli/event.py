"""`mainspring event`: the log, in the order of commits."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

from cyclopts import App, Parameter

from mainspring.cli import following
from mainspring.cli.client import Client, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, Limit, body_text, emit, emit_rows

app = App(name="event", help="The log of what happened.")

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
    # the stream is opened first, so that nothing is missed between what was and what comes
    messages = following.follow(client, after=after, kind=kind) if follow else None
    if messages is not None:
        next(messages)
    if after is None:
        first = list(client.get("events", last=last, kind=kind)["data"])
    else:
        first = [] if follow else list(client.pages("events", after=after, kind=kind))
    if first or not follow:
        emit_rows(first, _COLUMNS, json)
    seen = first[-1]["seq"] if first else 0
    for message in messages or ():
        if message.is_event and message.data["seq"] > seen:
            told = (
                jsonlib.dumps(message.data, ensure_ascii=False) if json else following.line_of(message.data)
            )
            print(told, flush=True)
    return ExitCode.OK


@app.command
def post(
    kind: Annotated[str, Parameter(help="What has happened: custom.deployed, or deployed for short.")],
    *,
    card: Annotated[str | None, Parameter(help="The card it is about: key or id.")] = None,
    subject: Annotated[str, Parameter(help="What it is about, in your words.")] = "",
    data: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="A JSON object of your own; - reads stdin.")
    ] = "{}",
    key: Annotated[
        str | None, Parameter(help="The same key is one event, however often it is posted.")
    ] = None,
    json: Json = False,
) -> int:
    """Post an event of your own, for rules to match."""
    try:
        said = jsonlib.loads(body_text(data))
    except ValueError as error:
        raise CliError(f"--data is no JSON: {error}", code=ExitCode.USAGE) from error
    body = {
        "kind": kind if "." in kind else f"custom.{kind}",
        "subject": subject,
        "card": card,
        "data": said,
        "key": key,
    }
    emit(Client.here().post("events", body), json, following.line_of)
    return ExitCode.OK


@app.command
def skip(*, reason: Annotated[str, Parameter(help="Why; it is kept in the log.")], json: Json = False) -> int:
    """Let the drain go on behind a hole in the log, where it stands still: what is missing there is judged by nobody.

    Refused (exit 5) when there is no hole where it stands. `verify` says where holes are; look for what tore them first.
    """
    skipped = Client.here().post("events/skip", {"reason": reason})
    emit(skipped, json, lambda told: f"skipped events {told['data']['first']} to {told['data']['last']}")
    return ExitCode.OK


@app.command
def show(seq: Annotated[int, Parameter(help="Its place in the log.")], *, json: Json = False) -> int:
    """Show an event, with its snapshot of what was true."""
    emit(Client.here().get(f"events/{segment(seq)}"), json)
    return ExitCode.OK
