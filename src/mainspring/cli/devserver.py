"""Puts `mainspring dev` together: state folder, database, schema, tokens, server processes, the built-in runner.

Takes what the command line said; leaves a running server until a signal comes, and then nothing. Every step is
repeatable, so a start that was killed half-way is carried on by the next one.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.cli import bootstrapping, database
from mainspring.cli.exits import CliError, ExitCode
from mainspring.embedded import EmbeddedError, EmbeddedPostgres, HeldByAnother, ports, processes
from mainspring.embedded.postgres import write_secret
from mainspring.embedded.state import Holder, StateFolder
from mainspring.embedded.supervisor import GaveUp, Program, Supervisor
from mainspring.roles import LOGIN

if TYPE_CHECKING:
    from mainspring.bootstrap import DevTokens

_DATABASE = "mainspring"
_HOST = "127.0.0.1"
# What the supervisor decides for its children, whatever the shell around it says; a fault is passed on once.
_DECIDED = ("DATABASE_URL", "HOST", "PORT", "INSTANCE", "DEV_MODE", "FAULT", "URL", "TOKEN")
_FIRST_PORT = 7700
_PORTS_LOST_MAX = 20  # to others that start in the same moment
_READY_SECONDS = 1.0
_LEFTOVER_SECONDS = 5.0
_RUNNER_GRACE_SECONDS = 5
_MARGIN_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line said."""

    state: Path
    ephemeral: bool = False
    port: int | None = None
    database_url: str | None = None
    processes: int = 1
    shutdown_grace_seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A database that servers may use."""

    admin_url: str
    applied: tuple[str, ...]
    version: str
    tokens: DevTokens


def run(options: Options, tell: Callable[[str], None]) -> int:
    """Serve until told to stop. Raises CliError: CONFLICT when somebody else holds the folder."""
    path = Path(tempfile.mkdtemp(prefix="mainspring-")) if options.ephemeral else options.state
    state = StateFolder(path)
    try:
        killed = state.hold()
    except HeldByAnother as held:
        raise CliError(str(held), code=ExitCode.CONFLICT) from held
    except PermissionError as refused:
        raise CliError(f"{state.path} belongs to another user: {refused}") from refused
    if killed is not None:  # its servers were told by the kernel and are ending; they still hold their ports
        processes.end_strangers(killed.processes or {}, word="mainspring", grace_seconds=_LEFTOVER_SECONDS)
    try:
        return _Dev(options, state, tell).run()
    finally:
        if options.ephemeral:
            state.forget()
            shutil.rmtree(path, ignore_errors=True)
        state.release()


class _Dev:
    """One life of `mainspring dev`, from the held folder to the last child's end."""

    def __init__(self, options: Options, state: StateFolder, tell: Callable[[str], None]) -> None:
        self.options = options
        self.state = state
        self.tell = tell
        self.postgres = None if options.database_url else EmbeddedPostgres(state.path)
        self.supervisor = Supervisor(
            database=self.postgres, logs=state.logs, tell=tell, changed=self._introduce
        )
        self.urls: tuple[str, ...] = ()
        self.token = ""

    def run(self) -> int:
        with self.supervisor.signals():
            try:
                return self._serve()
            except EmbeddedError as error:
                if self.supervisor.stopping:  # Ctrl-C while something was starting
                    return ExitCode.OK
                code = ExitCode.CONFLICT if isinstance(error, HeldByAnother) else ExitCode.ERROR
                raise CliError(str(error), code=code) from error
            finally:
                if self.supervisor.pids():
                    self.tell("stopping")
                self.supervisor.stop()

    def _serve(self) -> int:
        self._refuse_taken_port()
        if self.postgres is not None:
            self.postgres.start()
        ready = asyncio.run(self._prepare())
        self.token = ready.tokens.operator
        kind = "embedded" if self.postgres is not None else "yours"
        self.tell(f"✓ PostgreSQL {ready.version} ({kind})")
        self.tell(f"✓ schema ({_counted(len(ready.applied))})")
        if self.supervisor.stopping:
            return ExitCode.OK
        port = self._start_servers()
        if port is None:
            return ExitCode.OK
        self.urls = tuple(f"http://{_HOST}:{port + n}" for n in range(self.options.processes))
        self._introduce()
        self.tell(f"✓ server at {' and '.join(self.urls)}")
        self.supervisor.start(self._runner())
        self._introduce()
        self._welcome()
        self.supervisor.watch()
        return ExitCode.OK

    # ------------------------------------------------------------------ database

    async def _prepare(self) -> _Ready:
        """Schema and login; the servers' address goes to a file only we and they can read."""
        if self.postgres is not None:
            await database.make_database(self.postgres.url(), _DATABASE)
            admin_url = self.postgres.url(_DATABASE)
        else:
            admin_url = self.options.database_url or ""
        server_url, login = admin_url, None
        if self.postgres is not None or await database.is_privileged(admin_url):
            password, login = self._login_password(), LOGIN
            await database.make_login(admin_url, password)
            server_url = database.with_login(admin_url, login, password)
        prepared = await database.prepare(admin_url, login=login)
        write_secret(self.state.admin_address, admin_url)
        write_secret(self.state.server_address, server_url)
        tokens = await bootstrapping.dev_tokens(server_url, self.state)
        return _Ready(admin_url=admin_url, applied=prepared.applied, version=prepared.version, tokens=tokens)

    def _login_password(self) -> str:
        path = self.state.login_password
        if not path.exists():
            write_secret(path, secrets.token_urlsafe(24))
        return path.read_text()

    # ------------------------------------------------------------------ children

    def _start_servers(self) -> int | None:
        """Start the servers on ports in a row and return the first, or None when we were told to stop meanwhile.

        A port that was free when we looked may be another's when the server comes to it: then the next ones are tried.
        """
        count, first = self.options.processes, self.options.port
        look_from = self.state.stored_port() or _FIRST_PORT
        for lost in range(1, _PORTS_LOST_MAX + 1):
            port = ports.find_row(look_from, count) if first is None else first
            for n in range(count):
                name = "server" if count == 1 else f"server-{n + 1}"
                self.supervisor.start(self._server(name, port + n))
            try:
                if not self.supervisor.wait_ready():
                    return None
            except GaveUp as gave_up:
                if first is not None or gave_up.status != ExitCode.CONFLICT:
                    raise
                self.supervisor.withdraw()
                # the second time it may be somebody who moves on just as we do
                look_from = port + 1 + (secrets.randbelow(10 * lost) if lost > 1 else 0)
                self.tell(f"port {port} was taken while we started, looking from {look_from} on")
                continue
            if first is None:
                self.state.store_port(port)
            return port
        raise EmbeddedError("others took every port that was free; name one with --port")

    def _server(self, name: str, port: int) -> Program:
        fault = os.environ.get("MAINSPRING_FAULT")
        instance = secrets.token_hex(8)
        return Program(
            name=name,
            argv=(sys.executable, "-m", "mainspring", "server", "run"),
            env=_environment(
                MAINSPRING_DATABASE_URL_FILE=str(self.state.server_address),
                MAINSPRING_HOST=_HOST,
                MAINSPRING_PORT=str(port),
                MAINSPRING_INSTANCE=instance,
                MAINSPRING_DEV_MODE="true",
            ),
            only_first={"MAINSPRING_FAULT": fault} if fault else {},
            is_ready=lambda: _answers(port, instance),
            final=frozenset({ExitCode.CONFLICT}),  # its port is another's
            grace_seconds=self.options.shutdown_grace_seconds + _MARGIN_SECONDS,
        )

    def _runner(self) -> Program:
        return Program(
            name="runner",
            argv=(
                sys.executable,
                "-m",
                "mainspring",
                "runner",
                "start",
                "--builtin",
                "--grace-seconds",
                str(_RUNNER_GRACE_SECONDS),
            ),
            env=_environment(MAINSPRING_URL=self.urls[0], MAINSPRING_TOKEN_FILE=str(self.state.runner_token)),
            essential=False,
            grace_seconds=_RUNNER_GRACE_SECONDS + _MARGIN_SECONDS,
            stage=1,
        )

    def _refuse_taken_port(self) -> None:
        """Before anything is started: a port that was asked for, and is taken, ends it here."""
        wanted = self.options.port
        if wanted is not None:
            taken = [p for p in range(wanted, wanted + self.options.processes) if not ports.is_free(p)]
            if taken:
                raise EmbeddedError(f"port {taken[0]} is taken; leave --port out to use the next free one")

    # ------------------------------------------------------------------ what others are told

    def _introduce(self) -> None:
        if not self.urls:
            return
        self.state.introduce(
            Holder(
                pid=os.getpid(),
                url=self.urls[0],
                urls=self.urls,
                token=self.token,
                token_file=str(self.state.token),
                database="yours" if self.postgres is None else "embedded",
                processes=self.supervisor.pids(),
            )
        )

    def _welcome(self) -> None:
        kept = "forgotten at the end" if self.options.ephemeral else "kept; `mainspring dev reset` forgets it"
        self.tell("")
        self.tell(f"  address   {self.urls[0]}")
        self.tell(f"  API docs  {self.urls[0]}/docs")
        self.tell(f"  token     {self.token}")
        if reached := how_to_reach_the_command(sys.executable, os.environ.get("PATH")):
            self.tell(f"  command   {reached}")
        self.tell(f"  log in    mainspring login --url {self.urls[0]} < {_short(self.state.token)}")
        self.tell(f"  state     {_short(self.state.path)} ({kept}), logs in {_short(self.state.logs)}")
        self.tell("  stop      Ctrl-C")
        self.tell("")


def _environment(**given: str) -> dict[str, str]:
    """Ours, without what the supervisor decides, plus what it decided."""
    decided = {f"MAINSPRING_{name}{suffix}" for name in _DECIDED for suffix in ("", "_FILE")}
    kept: Mapping[str, str] = {name: value for name, value in os.environ.items() if name not in decided}
    return {**kept, "PYTHONUNBUFFERED": "1", **given}


def _answers(port: int, instance: str) -> bool:
    """Whether the server on this port says that it is ready, and is the one that we called so: it may be another's."""
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(_HOST, port, timeout=_READY_SECONDS)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return answer.status == 200 and answer.getheader("Mainspring-Instance") == instance
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def how_to_reach_the_command(python: str, path: str | None) -> str | None:
    """Return what to type for `mainspring` to be found, or None when it is: the one beside this Python, and no other."""
    scripts = Path(python).parent
    command, activate = scripts / "mainspring", scripts / "activate"
    found = shutil.which("mainspring", path=path)
    if not command.exists() or (found and Path(found).resolve() == command.resolve()):
        return None
    return f"source {_short(activate)}, or type {_short(command)}" if activate.exists() else _short(command)


def _counted(applied: int) -> str:
    return "up to date" if applied == 0 else f"{applied} migration{'s' if applied > 1 else ''} applied"


def _short(path: Path) -> str:
    """Relative to the working folder when it lies inside it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
