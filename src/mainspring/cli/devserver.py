"""Puts `mainspring dev` together: state folder, database, fabric, schema, tokens, server processes, the built-in runner.

Takes what the command line said; leaves a running server until a signal comes, and then nothing. Every step is
repeatable, so a start that was killed half-way is carried on by the next one.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.cli import bootstrapping, database
from mainspring.cli.exits import CliError, ExitCode
from mainspring.embedded import EmbeddedError, EmbeddedNats, EmbeddedPostgres, HeldByAnother, ports, processes
from mainspring.embedded.postgres import write_secret
from mainspring.embedded.state import Holder, StateFolder
from mainspring.embedded.supervisor import Program, Supervisor
from mainspring.roles import LOGIN

if TYPE_CHECKING:
    import socket
    from http.client import HTTPConnection

    from mainspring.bootstrap import DevTokens

_DATABASE = "mainspring"
# What the supervisor decides for its children, whatever the shell around it says; a fault is passed on once.
_DECIDED = ("DATABASE_URL", "NATS_URL", "HOST", "PORT", "LISTEN_FD", "DEV_MODE", "FAULT", "URL", "TOKEN")
# how to reach a NATS of the user's own: of no use with ours
_TO_REACH_NATS = ("NATS_CREDS", "NATS_TLS_CA", "NATS_TLS_CERT", "NATS_TLS_KEY", "NATS_ROOT", "NATS_REPLICAS")
_FIRST_PORT = 7700
_ANSWER_SECONDS = 1.0
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
    nats_url: str | None = None
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
        processes.end_strangers(
            killed.processes or {}, killed.births or {}, word="mainspring", grace_seconds=_LEFTOVER_SECONDS
        )
    state.unintroduce()
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
        self.nats = None if options.nats_url else EmbeddedNats(state.path)
        self.supervisor = Supervisor(
            database=self.postgres, fabric=self.nats, logs=state.logs, tell=tell, changed=self._introduce
        )
        self.sockets: list[socket.socket] = []
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
                for (
                    sock
                ) in self.sockets:  # who calls from here on is refused, once the servers have stopped, too
                    sock.close()
                self.supervisor.stop()

    def _serve(self) -> int:
        self._hold_ports()
        if self.postgres is not None:
            self.postgres.start()
        if self.nats is not None:
            self.nats.start()
        write_secret(
            self.state.fabric_address,
            self.nats.url() if self.nats is not None else self.options.nats_url or "",
        )
        ready = asyncio.run(self._prepare())
        self.token = ready.tokens.operator
        kind = "embedded" if self.postgres is not None else "yours"
        self.tell(f"✓ PostgreSQL {ready.version} ({kind})")
        self.tell(
            "✓ NATS (yours)" if self.nats is None else f"✓ NATS {self.nats.version} JetStream (embedded)"
        )
        self.tell(f"✓ schema ({_counted(len(ready.applied))})")
        if self.supervisor.stopping:
            return ExitCode.OK
        for n, sock in enumerate(self.sockets):
            self.supervisor.start(
                self._server("server" if len(self.sockets) == 1 else f"server-{n + 1}", sock)
            )
        if not self.supervisor.wait_ready():
            return ExitCode.OK
        self.urls = tuple(f"http://{ports.HOST}:{sock.getsockname()[1]}" for sock in self.sockets)
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

    def _hold_ports(self) -> None:
        """Take the servers' ports before anything is started, and keep them: a server that is started again finds its own."""
        asked, count = self.options.port, self.options.processes
        if asked is not None:
            self.sockets = ports.hold_row(asked, count, search=False)
            return
        wanted = self.state.stored_port() or _FIRST_PORT
        self.sockets = ports.hold_row(wanted, count)
        taken = self.sockets[0].getsockname()[1]
        if taken != wanted:
            self.tell(f"port {wanted} is another's: using {taken}")
        self.state.store_port(taken)

    def _server(self, name: str, sock: socket.socket) -> Program:
        fault = os.environ.get("MAINSPRING_FAULT")
        port = sock.getsockname()[1]
        return Program(
            name=name,
            argv=(sys.executable, "-m", "mainspring", "server", "run"),
            env=_environment(
                () if self.nats is None else _TO_REACH_NATS,
                MAINSPRING_DATABASE_URL_FILE=str(self.state.server_address),
                MAINSPRING_NATS_URL_FILE=str(self.state.fabric_address),
                MAINSPRING_HOST=ports.HOST,
                MAINSPRING_PORT=str(port),
                MAINSPRING_LISTEN_FD=str(sock.fileno()),
                MAINSPRING_DEV_MODE="true",
            ),
            only_first={"MAINSPRING_FAULT": fault} if fault else {},
            pass_fds=(sock.fileno(),),
            is_ready=_Readiness(port),
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

    # ------------------------------------------------------------------ what others are told

    def _introduce(self) -> None:
        if not self.urls:
            return
        pids = self.supervisor.pids()
        births = {name: born for name, pid in pids.items() if (born := processes.birth(pid)) is not None}
        self.state.introduce(
            Holder(
                pid=os.getpid(),
                url=self.urls[0],
                urls=self.urls,
                token=self.token,
                token_file=str(self.state.token),
                database="yours" if self.postgres is None else "embedded",
                fabric="yours" if self.nats is None else "embedded",
                processes=pids,
                births=births,
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


def _environment(without: Sequence[str] = (), **given: str) -> dict[str, str]:
    """Ours, without what the supervisor decides, plus what it decided."""
    decided = {f"MAINSPRING_{name}{suffix}" for name in (*_DECIDED, *without) for suffix in ("", "_FILE")}
    kept: Mapping[str, str] = {name: value for name, value in os.environ.items() if name not in decided}
    return {**kept, "PYTHONUNBUFFERED": "1", **given}


class _Readiness:
    """Asks a server whether it is ready, and waits for no answer: the port is held, so one that starts answers when it can."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._asked: HTTPConnection | None = None

    def __call__(self) -> bool:
        """Whether the server has said that it is ready since it was last asked."""
        from http.client import HTTPConnection, HTTPException

        asked, self._asked = self._asked, None
        try:
            if asked is None:
                asked = HTTPConnection(ports.HOST, self._port, timeout=_ANSWER_SECONDS)
                asked.request("GET", "/readyz")
            if not select.select([asked.sock], [], [], 0)[0]:
                self._asked = asked
                return False
            with closing(asked):
                return asked.getresponse().status == 200
        except (OSError, HTTPException):
            return False


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
