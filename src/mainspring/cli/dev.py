"""`mainspring dev`: everything on this machine with nothing installed; and what one may do to it while it runs."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, emit

if TYPE_CHECKING:
    from mainspring.config import Settings
    from mainspring.embedded.state import Holder, StateFolder

app = App(name="dev", help="Run everything here, on an embedded PostgreSQL and NATS.")

_Flag = Parameter(negative="")
_MOST_PROCESSES = 8


@app.default
def dev(
    *,
    ephemeral: Annotated[bool, _Flag] = False,
    port: int | None = None,
    database_url: str | None = None,
    nats_url: str | None = None,
    processes: int = 1,
) -> int:
    """Run PostgreSQL, NATS, server and built-in agents here until Ctrl-C. State is kept in ./.mainspring.

    Parameters
    ----------
    ephemeral
        Keep nothing.
    port
        Exactly this port; by default 7700, or the next free one.
    database_url
        Your own PostgreSQL (15 or newer) instead of the embedded one.
    nats_url
        Your own NATS (2.10 or newer, with JetStream) instead of the embedded one.
    processes
        How many server processes, on ports in a row, sharing the database.
    """
    from mainspring.cli import devserver, server
    from mainspring.cli.database import SqlToRun

    if not 1 <= processes <= _MOST_PROCESSES:
        raise CliError(f"--processes must be 1 to {_MOST_PROCESSES}", code=ExitCode.USAGE)
    if port is not None and not 1 <= port <= 65536 - processes:
        raise CliError(f"--port must be 1 to {65536 - processes}", code=ExitCode.USAGE)
    server.faults()  # refused here, and not by every child again and again
    options = devserver.Options(
        state=_state_path(),
        ephemeral=ephemeral,
        port=port,
        database_url=database_url,
        nats_url=nats_url,
        processes=processes,
        shutdown_grace_seconds=_settings().shutdown_grace_seconds,
    )
    try:
        return devserver.run(options, _tell)
    except SqlToRun as refused:
        _tell(f"{refused}\n")
        sys.stdout.write(refused.sql)
        return ExitCode.ERROR


@app.command
def crash(*, at: str, process: int = 1, json: Json = False) -> int:
    """Kill a running server process at a point of your choice; the supervisor starts it again, and nothing is lost.

    Parameters
    ----------
    at
        The point, as drain.before_commit, optionally :N (the Nth time it is reached) and :kill, :stop or :raise.
    process
        Which server process, counted from 1.
    """
    from mainspring import faultpoints
    from mainspring.cli.client import Client

    try:
        point, nth, action = faultpoints.parse(at)
    except ValueError as error:
        raise CliError(str(error), code=ExitCode.USAGE) from error
    holder = _running(_state())
    if not 1 <= process <= len(holder.urls):
        raise CliError(f"there are {len(holder.urls)} server processes", code=ExitCode.USAGE)
    url = holder.urls[process - 1]
    spec = f"{point}:{nth}:{action}"
    Client(url, holder.token).post("dev/faults", {"point": spec})
    emit(
        {"url": url, "fault": spec},
        json,
        lambda _: (
            f"armed: the server at {url} will {action} at {point}; watch the terminal of `mainspring dev`"
        ),
    )
    return ExitCode.OK


@app.command
def psql(
    *arguments: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="What psql is given, as -c 'select 1'.")
    ],
) -> int:
    """Open psql on the running server's database, as its owner. Further arguments go to psql (put -- before them)."""
    state = _state()
    _running(state)
    from mainspring.cli import psql as opened

    return opened.run(state, arguments)


@app.command
def reset(*, yes: Annotated[bool, _Flag] = False) -> int:
    """Forget everything: delete the state folder with its database.

    Parameters
    ----------
    yes
        Do not ask.
    """
    from mainspring.embedded import HeldByAnother

    state = _state()
    if not state.path.exists():
        _tell(f"there is no {state.path}")
        return ExitCode.OK
    if not (state.path / "lock").exists():
        raise CliError(f"{state.path} is not a state folder of mainspring: nothing deleted")
    try:
        state.hold()
    except HeldByAnother as held:
        raise CliError(f"{held}: stop it first", code=ExitCode.CONFLICT) from held
    if not yes and not _confirmed(f"Delete {state.path} and its database?"):
        state.release()
        raise CliError("nothing deleted (give --yes to delete without a question)")
    state.forget()
    _tell(f"{state.path} is gone")
    return ExitCode.OK


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        return False
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _settings() -> Settings:
    """Refuse a mistake once, here, and not in every child again and again."""
    from mainspring import config

    try:
        return config.load()
    except config.ConfigError as error:
        raise CliError(f"the settings cannot be used:\n{error}", code=ExitCode.USAGE) from error


def _state_path() -> Path:
    from mainspring.embedded.state import located

    return located(os.environ.get("MAINSPRING_STATE"))


def _state() -> StateFolder:
    from mainspring.embedded.state import StateFolder

    return StateFolder(_state_path())


def _running(state: StateFolder) -> Holder:
    holder = state.holder()
    if holder is None:
        raise CliError(f"no `mainspring dev` runs on {state.path}: start one first", code=ExitCode.NOT_FOUND)
    return holder


def _tell(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads any more: keep serving
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
