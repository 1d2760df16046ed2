"""`mainspring inbox`: the messages that mention you, until you have read them. (An agent's inbox is its session's.)"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import App, Parameter

from mainspring.cli import following
from mainspring.cli.client import Client, TimedOut
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, Limit, emit, emit_rows

app = App(name="inbox", help="Your inbox: the messages that mention you.")

ACKED_AT_ONCE = 200

_COLUMNS = {
    "item": "id",
    "channel": "message.channel",
    "topic": "message.topic",
    "at": "message.posted_at",
    "from": "message.author",
    "text": "message.text",
}
_ALL_COLUMNS = {**_COLUMNS, "read": "read"}


@app.command(name="list")
def list_(
    *,
    all: Annotated[bool, Parameter(negative="", help="Those that were read, too.")] = False,  # noqa: A002 - the flag's name
    limit: Limit = None,
    json: Json = False,
) -> int:
    """List the messages that mention you and that you have not marked as read, the newest first."""
    rows = Client.here().pages("inbox", state="all" if all else "unread", limit=limit)
    emit_rows(rows, _ALL_COLUMNS if all else _COLUMNS, json)
    return ExitCode.OK


@app.command
def wait(
    *,
    timeout_seconds: Annotated[
        float | None, Parameter(help="Give up after so long, with exit code 6.")
    ] = None,
    json: Json = False,
) -> int:
    """Wait until there is something unread, and list it."""
    client = Client.here()
    me = client.get("whoami")["account_id"]
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    stream = following.follow(client, deadline=deadline, kind="message.settled")
    next(stream)  # from here on nothing is missed: what is there now, and whatever comes
    found = list(client.pages("inbox"))
    while not found:
        try:
            _until_mentioned(stream, me)
        except TimedOut as late:
            raise TimedOut(f"nothing came to your inbox within {timeout_seconds:g} s") from late
        found = list(client.pages("inbox"))
    emit_rows(found, _COLUMNS, json)
    return ExitCode.OK


@app.command
def ack(
    *item: Annotated[str, Parameter(help="Items, by their ids.")],
    all: Annotated[bool, Parameter(negative="", help="All that are unread.")] = False,  # noqa: A002 - the flag's name
    json: Json = False,
) -> int:
    """Mark items as read."""
    if bool(item) == all:
        raise CliError("say which items were read, or --all", code=ExitCode.USAGE)
    client = Client.here()
    items = [one["id"] for one in client.pages("inbox")] if all else list(dict.fromkeys(item))
    read = 0
    for n in range(0, len(items), ACKED_AT_ONCE):
        read += client.post("inbox/ack", {"items": items[n : n + ACKED_AT_ONCE]})["read"]
    if read < len(items):
        told = f"{read} marked as read; {len(items) - read} more: not in your inbox"
        raise CliError(told, code=ExitCode.NOT_FOUND)
    emit({"read": read}, json, lambda told: f"{told['read']} marked as read")
    return ExitCode.OK


def _until_mentioned(stream: Iterator[following.Message], account: str) -> None:
    """Return when a message has settled that is owed to this person."""
    for message in stream:
        if message.is_event and account in _people(message.data):
            return


def _people(event: dict[str, Any]) -> list[str]:
    people: list[str] = event["data"]["recipients"]["people"]
    return people
