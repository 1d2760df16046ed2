"""`mainspring server`: one server process, and what has to be true of its database and settings before it may start."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, emit, say

if TYPE_CHECKING:
    from mainspring.config import Settings

app = App(name="server", help="Run a server process; migrate and bootstrap its database.")

_Flag = Parameter(negative="")
_Url = Annotated[str | None, Parameter(help="Instead of MAINSPRING_DATABASE_URL.")]


@app.command
def run() -> int:
    """Run one server process with the settings of MAINSPRING_* and mainspring.toml, until SIGTERM or Ctrl-C."""
    from mainspring import faultpoints

    settings = _settings()
    _needs_database(settings)
    _needs_nats(settings)
    for spec in faults():
        faultpoints.arm(spec)
    from mainspring.server.main import run as serve

    return int(serve(settings) or ExitCode.OK)


@app.command
def migrate(
    *,
    check: Annotated[bool, _Flag] = False,
    sql: Annotated[bool, _Flag] = False,
    login: str | None = None,
    database_url: _Url = None,
    json: Json = False,
) -> int:
    """Make the roles and bring the schema to this version. Connects directly, not through a transaction pooler.

    Parameters
    ----------
    check
        Change nothing; exit 1 when something is pending.
    sql
        Print the statements instead of running them (those pending, when a database is given).
    login
        The login that servers will use; the connecting one by default.
    """
    import asyncio

    from mainspring.cli import database

    if sql:
        _print_sql(login, database_url)
        return ExitCode.OK
    url = _url(database_url)
    if check:
        names = [str(m) for m in asyncio.run(database.pending(url))]
        _report({"pending": names}, json, "\n".join(f"pending {n}" for n in names) or "nothing is pending")
        return ExitCode.ERROR if names else ExitCode.OK
    try:
        done = asyncio.run(database.prepare(url, login=login))
    except database.SqlToRun as refused:
        if not json:
            sys.stdout.write(refused.sql)
        raise
    if json:
        emit({"version": done.version, "login": done.login, "applied": list(done.applied)}, json)
    else:  # talk: what this writes to stdout is SQL to run, and somebody keeps it in a file
        applied = f"applied {', '.join(done.applied)}" if done.applied else "nothing to do"
        say(f"PostgreSQL {done.version}: {applied}")
    return ExitCode.OK


def _print_sql(login: str | None, database_url: str | None) -> None:
    import asyncio

    from mainspring import migrate as migrations
    from mainspring import roles
    from mainspring.cli import database

    url = database_url or _settings().database_url
    only = asyncio.run(database.pending(url)) if url else None
    sys.stdout.write(
        roles.script(login or roles.LOGIN) + "\n" + migrations.script(migrations.SERVER_SETS, only=only)
    )


@app.command(name="check-config")
def check_config(*, json: Json = False) -> int:
    """Say what the settings are, or everything that is wrong with them."""
    settings = _settings()
    shown = settings.shown()
    _report(shown, json, "\n".join(f"{name} = {value!r}" for name, value in shown.items()))
    if not settings.database_url:
        raise CliError("database_url: not set, and `server run` needs it")
    if not settings.nats_url:
        raise CliError("nats_url: not set, and `server run` needs it")
    return ExitCode.OK


@app.command
def bootstrap(*, token_file: Path | None = None, database_url: _Url = None, json: Json = False) -> int:
    """Make the tenant and its first operator token; a token that exists is never shown again.

    Parameters
    ----------
    token_file
        Where to put the new token (readable by its owner only) instead of printing it.
    """
    import asyncio

    from mainspring.cli import bootstrapping

    made = asyncio.run(bootstrapping.first_operator(_url(database_url)))
    told: dict[str, object] = {"created": made is not None}
    if made is None:
        said = "there is an operator already: make further tokens with `mainspring token create`"
    elif token_file is not None:
        from mainspring.embedded.postgres import write_secret

        write_secret(token_file, made + "\n")
        told["token_file"], said = str(token_file), f"operator token written to {token_file}"
    else:
        told["token"], said = made, "keep it: it is not shown again"
    if json:
        emit(told, json)
        return ExitCode.OK
    if "token" in told:
        print(made)
    say(said)
    return ExitCode.OK


def _settings(**given: object) -> Settings:
    from mainspring import config

    try:
        return config.load(**given)
    except config.ConfigError as error:
        raise CliError(f"the settings cannot be used:\n{error}", code=ExitCode.USAGE) from error


def faults() -> list[str]:
    """Return the fault points that MAINSPRING_FAULT names. Raises CliError when one is none."""
    from mainspring import faultpoints

    try:
        return faultpoints.named_by(os.environ)
    except ValueError as error:
        raise CliError(f"{faultpoints.VARIABLE}: {error}", code=ExitCode.USAGE) from error


def _needs_database(settings: Settings) -> str:
    if not settings.database_url:
        raise CliError(
            "no database: set MAINSPRING_DATABASE_URL, or use `mainspring dev`", code=ExitCode.USAGE
        )
    return settings.database_url


def _url(given: str | None) -> str:
    return given or _needs_database(_settings())


def _report(data: dict[str, object], as_json: bool, text: str) -> None:
    emit(data, as_json, lambda _: text)


def _needs_nats(settings: Settings) -> None:
    if not settings.nats_url:
        raise CliError("no NATS: set MAINSPRING_NATS_URL, or use `mainspring dev`", code=ExitCode.USAGE)
