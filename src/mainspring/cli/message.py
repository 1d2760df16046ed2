"""`mainspring message`: what was said, and how far it has come: show, edit, search, receipts. Elsewhere: `post` says something, `channel history` reads a channel."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from cyclopts import App, Parameter

from mainspring.cli.client import Client, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, Limit, body_text, emit, emit_rows, printable, say, table

app = App(name="message", help="Messages: show, edit, search, receipts.")

Text: TypeAlias = Annotated[
    str | None,
    Parameter(
        allow_leading_hyphen=True,
        help="What is said; - reads stdin. Left out in a terminal, it is asked for.",
    ),
]
Mention: TypeAlias = Annotated[
    list[str] | None,
    Parameter(
        name="--mention",
        negative="",
        help="A handle that is meant; in a person's text, @handle says the same. Repeat for more.",
    ),
]
RequestId: TypeAlias = Annotated[
    str | None,
    Parameter(
        name="--request-id", help="Your own name for this message: sent again under it, it is the same one."
    ),
]
_Message = Annotated[str, Parameter(help="Its id.")]

COLUMNS = {
    "id": "id",
    "channel": "channel",
    "topic": "topic",
    "seq": "channel_seq",
    "at": "posted_at",
    "author": "author",
    "text": "text",
}


@app.command
def show(message: _Message, *, json: Json = False) -> int:
    """Show a message."""
    emit(Client.here().get(_path(message)), json, whole)
    return ExitCode.OK


@app.command
def edit(
    message: _Message,
    text: Text = None,
    *,
    if_revision: Annotated[
        int | None, Parameter(name="--if-revision", help="Only if it is still at this revision.")
    ] = None,
    json: Json = False,
) -> int:
    """Give a message of your own another text. Whoever was owed it is not owed it again."""
    body = {"text": said(text), "expected_revision": if_revision}
    emit(Client.here().patch(_path(message), body), json, line_of)
    return ExitCode.OK


@app.command
def receipts(message: _Message, *, json: Json = False) -> int:
    """Say how far a message has come with everybody whom it is owed to, and what it waits for; no more than is known."""
    emit(Client.here().get(f"{_path(message)}/receipts"), json, _received)
    return ExitCode.OK


@app.command
def search(
    *words: Annotated[str, Parameter(help="Messages that have all of these words.")],
    channel: Annotated[str | None, Parameter(help="In this channel alone: its name or id.")] = None,
    limit: Limit = 50,
    json: Json = False,
) -> int:
    """Search all that you may read, the newest first."""
    if not words:
        raise CliError("say what to search for", code=ExitCode.USAGE)
    rows = Client.here().pages("messages", q=" ".join(words), channel=channel, limit=limit)
    emit_rows(rows, COLUMNS, json)
    return ExitCode.OK


def said(text: str | None) -> str:
    """Return what is to be said: the argument, stdin for `-`, or what the person at the terminal writes."""
    if text is None:
        if not sys.stdin.isatty():
            raise CliError("what is said? Give a text, or - to read it from stdin", code=ExitCode.USAGE)
        say("what is said? End it with Ctrl-D:")
    spoken = body_text("-" if text is None else text).rstrip("\r\n")
    if not spoken.strip():
        raise CliError("a message says something: this text is empty", code=ExitCode.USAGE)
    return spoken


def line_of(message: Mapping[str, Any]) -> str:
    """Return a message as a channel is read: its place, when, in which topic, who, and what; further lines are indented."""
    text = printable(message["text"]).replace("\n", "\n    ")
    head = f"{message['channel_seq']}  {message['posted_at']}  {printable(message['topic'])}"
    return f"{head}  {message['author']}: {text}{_marks(message)}"


def whole(message: Mapping[str, Any]) -> str:
    """Return a message with all that is known of it."""
    settled = (
        "held: its author is still writing"
        if message["held"]
        else f"{message['settled_at']}, by {message['settled_by']}"
    )
    lines = [
        printable(message["text"]),
        "",
        f"where     #{message['channel']} › {printable(message['topic'])}, seq {message['channel_seq']}",
        f"author    {message['author']} ({message['author_kind']}), trusted as {message['trust']}",
        f"posted    {message['posted_at']}",
        f"settled   {settled}",
    ]
    if message["edited_at"]:
        lines.append(f"edited    {message['edited_at']}, revision {message['revision']}")
    lines.append(f"id        {message['id']}")
    return "\n".join(lines)


def _received(receipts: Mapping[str, Any]) -> str:
    if receipts["state"] == "held":
        return f"held since {receipts['since']}: {receipts['because']}"
    head = f"revision {receipts['revision']} settled {receipts['since']}"
    if not receipts["data"]:
        return f"{head}; owed to nobody"
    cells = [
        [one["handle"], one["how"], one["state"], one["since"] or "-", printable(one["because"] or "-")]
        for one in receipts["data"]
    ]
    return f"{head}\n{table(('to', 'how', 'state', 'since', 'because'), cells)}"


def _marks(message: Mapping[str, Any]) -> str:
    edited = f"  (edited, revision {message['revision']})" if message["edited_at"] else ""
    return edited + ("  (held: its author is still writing)" if message["held"] else "")


def _path(message: str) -> str:
    return f"messages/{segment(message)}"
