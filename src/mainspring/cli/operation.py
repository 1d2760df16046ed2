"""`mainspring operation`: decisions on many dead letters, each carried out by the server step by step, whoever waits for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from mainspring.cli.client import Client, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, Limit, emit, emit_rows, say

if TYPE_CHECKING:
    from collections.abc import Callable

app = App(name="operation", help="Long decisions on dead letters: how far they are, and their end.")

POLL_SECONDS_MIN, POLL_SECONDS_MAX = 0.05, 1.0
_Id = Annotated[str, Parameter(help="The operation's id, as `operation list` shows it.")]
_COLUMNS = ("id", "verb", "state", "done", "total", "kind", "cause", "rule", "agent", "by", "created_at")


@app.command(name="list")
def list_(*, limit: Limit = None, json: Json = False) -> int:
    """List operations, the newest first."""
    emit_rows(Client.here().pages("operations", limit=limit), _COLUMNS, json)
    return ExitCode.OK


@app.command
def show(operation: _Id, *, json: Json = False) -> int:
    """Show an operation, and how far it is."""
    emit(_get(Client.here(), operation), json)
    return ExitCode.OK


@app.command
def watch(operation: _Id, *, json: Json = False) -> int:
    """Wait for an operation's end."""
    client = Client.here()
    return finish(client, _get(client, operation), wait=True, as_json=json)


@app.command
def stop(operation: _Id, *, json: Json = False) -> int:
    """End an operation: it decides nothing more, and what it has decided stands."""
    stopped = Client.here().post(f"operations/{segment(operation)}/stop")
    emit(stopped, json, _ended)
    return ExitCode.OK


def finish(client: Client, operation: Mapping[str, Any], *, wait: bool, as_json: bool) -> int:
    """Wait for an operation's end, if asked to, and print what it came to; exit 1 when nothing carries it on."""
    if wait:
        try:
            operation = _followed(client, operation)
        except KeyboardInterrupt:
            say(f"it goes on by itself: mainspring operation watch|stop {operation['id']}")
            raise
    emit(operation, as_json, _ended)
    if operation["state"] == "stopped":
        raise CliError(
            f"it was stopped by {operation['ended_by']}; the rest lies on the desk", code=ExitCode.CONFLICT
        )
    if operation["state"] == "stuck":
        raise CliError(
            f"nothing carries it on: {operation['error']}. Mend that, then: mainspring desk replay {operation['step']}"
        )
    return ExitCode.OK


def _followed(client: Client, operation: Mapping[str, Any]) -> Mapping[str, Any]:
    pause = POLL_SECONDS_MIN
    with _bar(operation) as tell:
        while operation["state"] == "running":
            time.sleep(pause)
            pause = min(POLL_SECONDS_MAX, pause * 1.5)
            operation = _get(client, operation["id"])
            tell(operation)
    return operation


@contextmanager
def _bar(operation: Mapping[str, Any]) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show progress on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(operation["verb"], total=operation["total"])
        yield lambda now: progress.update(task, completed=now["done"] + now["skipped"])


def _get(client: Client, operation: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"operations/{segment(operation)}")
    return found


def _ended(operation: Mapping[str, Any]) -> str:
    """Say what it has done; once it is over, whatever it has not decided on of what was meant, others have."""
    of = "" if operation["total"] is None else f" of {operation['total']}"
    if operation["state"] == "done" and operation["total"] is not None:
        others = max(operation["skipped"], operation["total"] - operation["done"])
    else:
        others = operation["skipped"]
    left = f", left alone {others}: somebody else had decided" if others else ""
    return f"{operation['verb']}ed {operation['done']}{of}{left}; operation {operation['id']} is {operation['state']}"
