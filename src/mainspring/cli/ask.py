"""`mainspring ask`: what runs, and messages, ask."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from cyclopts import App, Parameter

from mainspring.cli.client import Client, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, Limit, body_text, emit, emit_rows, printable, say

app = App(name="ask", help="What runs and messages ask: list, show, answer.")

_Ask = Annotated[str, Parameter(help="Its id.")]

_COLUMNS = {
    "id": "id",
    "agent": "agent",
    "where": "where",
    "question": "question",
    "options": "options",
    "since": "asked_at",
}
_ALL_COLUMNS = {**_COLUMNS, "state": "state", "answer": "answer", "by": "answered_by"}


@app.command(name="list")
def list_(
    *,
    all: Annotated[bool, Parameter(negative="", help="Those that are over, too.")] = False,  # noqa: A002 - the flag's name
    limit: Limit = None,
    json: Json = False,
) -> int:
    """List the questions that wait for an answer, the one that waits longest first."""
    rows = Client.here().pages("asks", limit=limit, state="all" if all else "open")
    emit_rows(rows if json else _placed(rows), _ALL_COLUMNS if all else _COLUMNS, json)
    return ExitCode.OK


@app.command
def show(ask: _Ask, *, json: Json = False) -> int:
    """Show a question."""
    emit(Client.here().get(_path(ask)), json, shown)
    return ExitCode.OK


@app.command
def answer(
    ask: _Ask,
    text: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True,
            help="The answer; - reads stdin. Left out in a terminal, it is asked for.",
        ),
    ] = None,
    *,
    json: Json = False,
) -> int:
    """Answer a question. The first answer counts."""
    client = Client.here()
    said = body_text(text) if text is not None else asked_for(client.get(_path(ask)))
    emit(client.post(f"{_path(ask)}/answer", {"answer": said}), json, shown)
    return ExitCode.OK


def shown(ask: Mapping[str, Any]) -> str:
    """Return a question as a person reads it."""
    lines = [printable(ask["question"])]
    if ask["options"]:
        lines.append(f"options   {printable(', '.join(ask['options']))}")
    lines.append(f"asked by  {ask['agent']} {_asked_where(ask)}")
    lines.append(f"since     {ask['asked_at']}")
    match ask["state"]:
        case "open":
            lines.append(
                f"open      {'until ' + ask['expires_at'] if ask['expires_at'] else 'as long as it takes'}"
            )
        case "answered":
            lines.append(f"answered  {printable(ask['answer'])}, by {ask['answered_by']}")
        case state:
            lines.append(f"{state:<9} {printable(ask['reason'] or 'nobody answered in time')}")
    return "\n".join(lines)


def asked_for(ask: Mapping[str, Any]) -> str:
    """Ask the person at the terminal. Raises CliError where there is none."""
    say(shown(ask))
    if not sys.stdin.isatty():
        raise CliError(
            "what is the answer? Give it as an argument, or - to read it from stdin", code=ExitCode.USAGE
        )
    say("answer:")
    return sys.stdin.readline()


def _placed(asks: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield questions with where they stand: on a card, or in a channel."""
    for ask in asks:
        yield {**ask, "where": ask["card"] if ask["run_id"] else f"#{ask['channel']} › {ask['topic']}"}


def _asked_where(ask: Mapping[str, Any]) -> str:
    if ask["run_id"]:
        return f"on {ask['card'] or 'no card'}, run {ask['run_id']} [{ask['run_state']}]"
    return f"in #{ask['channel']} › {printable(ask['topic'])}, message {ask['message_id']}"


def _path(ask: str) -> str:
    return f"asks/{segment(ask)}"
