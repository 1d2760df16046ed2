"""`mainspring token`: what opens the API, for people, agents and runners. A secret is printed once, by the command that makes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

from cyclopts import App, Parameter

from mainspring.cli.client import Client, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, Limit, emit, emit_rows, say

app = App(name="token", help="Tokens of people, agents and runners.")

_COLUMNS = {
    "id": "id",
    "kind": "kind",
    "role": "role",
    "account": "account",
    "agents": "agents",
    "prefix": "prefix",
    "valid": "valid",
    "expires": "expires_at",
}


@app.command(name="list")
def list_(*, limit: Limit = None, json: Json = False) -> int:
    """List tokens, the newest first, without their secrets."""
    emit_rows(Client.here().pages("tokens", limit=limit), _COLUMNS, json)
    return ExitCode.OK


@app.command
def create(
    *,
    kind: Literal["user", "agent", "runner"] = "user",
    role: Literal["viewer", "member", "operator"] | None = None,
    account: str | None = None,
    agent: Annotated[list[str] | None, Parameter(negative="")] = None,
    expires_in_seconds: float | None = None,
    to: Path | None = None,
    json: Json = False,
) -> int:
    """Make a token and print its secret, which nobody can show again.

    Parameters
    ----------
    kind
        user for a person, agent for an agent's own, runner for a machine that does agents' work.
    account
        Whose it is: a person's handle (made if it is new; yourself by default), or the agent's.
    agent
        An agent that a runner may run. Repeat for more.
    role
        What its holder may do; member by default, and always for a runner.
    expires_in_seconds
        After how long it ends by itself; never by default.
    to
        Put the secret into this file, readable by you alone, instead of printing it.
    """
    body: dict[str, Any] = {
        "kind": kind,
        "role": role,
        "account": account,
        "agents": agent or [],
        "expires_in_seconds": expires_in_seconds,
    }
    body = {name: value for name, value in body.items() if value is not None}
    if to is not None:
        with _private(to) as file:
            made = Client.here().post("tokens", body)
            file.write(made.pop("secret") + "\n")
        emit(made, json, lambda one: f"{one['token']['prefix']}…  written to {to}")
        return ExitCode.OK
    emit(Client.here().post("tokens", body), json, lambda one: str(one["secret"]))
    if not json:
        say("keep it: it is not shown again")
    return ExitCode.OK


@app.command
def revoke(
    token: Annotated[str, Parameter(help="Its id, as `token list` shows it.")], *, json: Json = False
) -> int:
    """Make a token worthless, at once and for good."""
    answer = Client.here().post(f"tokens/{segment(token)}/revoke")
    emit(answer, json, lambda one: f"{one['prefix']}… is revoked")
    return ExitCode.OK


@contextmanager
def _private(path: Path) -> Iterator[TextIO]:
    """Open a file that only its owner can read, and put it in place when the block ends well; else what stood there stays.

    It is opened before the block makes a token: none must be made for a place that cannot keep it.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise CliError(f"cannot keep a token in {path}: it is no file")
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise CliError(f"cannot keep a token in {path}: {error}") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            yield file
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
