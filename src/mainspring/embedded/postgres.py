"""A real PostgreSQL as our own child, for `mainspring dev`, the demo and the tests.

Takes a state folder; leaves a running server that listens on a private unix socket, never on a network, and the
arguments to connect to it. If we die here at any statement, the kernel stops the server with us and the next start
finds data that PostgreSQL recovers: a cluster becomes visible only when initdb has finished, and what a killed
server leaves behind is cleared first. Started from the main thread only.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypedDict
from urllib.parse import quote, urlencode

from mainspring.embedded import accounts, binaries, homes, leftovers, processes
from mainspring.embedded.problems import EmbeddedError, HeldByAnother

SUPERUSER = "postgres"
PORT = 5432  # a part of the socket's file name only
_READY_LINE = 7  # postmaster.pid, counted from 0: "ready" once connections are accepted
_POLL_SECONDS = 0.01
_LOG_KEEP_BYTES = 8 << 20
_STOP = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 3.0), (signal.SIGKILL, 3.0))  # fast, immediate, by force
_SETTINGS = {
    "shared_buffers": "64MB",
    "max_connections": "100",
    "max_parallel_workers_per_gather": "0",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "warning",
    "unix_socket_permissions": "0700",
    "listen_addresses": "",
}


class ConnectArguments(TypedDict):
    """Everything asyncpg.connect needs, so that no PG* variable of the environment has a say."""

    host: str
    port: int
    user: str
    password: str
    database: str


class EmbeddedPostgres:
    """One cluster in one state folder. `start` and `stop` may be called again; use it as a context manager in tests."""

    def __init__(
        self, state: Path, *, durable: bool = True, settings: Mapping[str, str] | None = None
    ) -> None:
        """`durable=False` trades survival of a power cut for speed (tests); a killed process still loses nothing."""
        self.state = state.resolve()
        self._durable = durable
        self._settings = _SETTINGS | _durability(durable=durable) | dict(settings or {})
        self._lock: IO[str] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._home: Path | None = None
        self._sockets: Path | None = None
        self.version = ""

    def __repr__(self) -> str:
        return f"<EmbeddedPostgres {self.version or 'not started'} in {self.state}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ------------------------------------------------------------------ life

    def start(self, *, timeout_seconds: float = 30.0) -> Self:
        """Make the cluster if there is none, start the server, return when it accepts connections."""
        make_state_folder(self.state)
        home, account = homes.choose(self.state)
        self._hold(home)
        try:
            self._start(home, account, timeout_seconds)
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self, home: Path, account: processes.Account, timeout_seconds: float) -> None:
        programs = binaries.find(account, homes.SHARED)
        self._home, self.version = home, programs.version
        homes.make(home, account)
        data = home / "data"
        if not (data / "PG_VERSION").exists():
            self._make_cluster(home, account, programs)
        _refuse_other_major(data, programs)
        self._sockets = homes.socket_folder(data, account)
        leftovers.clear(data, self._sockets, timeout_seconds=timeout_seconds)
        argv: list[str | Path] = [
            programs.program("postgres"),
            "-D",
            data,
            "-k",
            self._sockets,
            "-p",
            str(PORT),
        ]
        for name, value in self._settings.items():
            argv += ["-c", f"{name}={value}"]
        with _open_log(home / "server.log") as log:
            self._child = processes.spawn(
                argv, env=processes.PLAIN_ENVIRONMENT, stdout=log, death_signal=signal.SIGINT, account=account
            )
        self._wait_until_ready(data, timeout_seconds)

    def _wait_until_ready(self, data: Path, timeout_seconds: float) -> None:
        until = time.monotonic() + timeout_seconds
        while not _is_ready(data / "postmaster.pid", self.pid):
            if (status := self.poll()) is not None:
                raise EmbeddedError(f"PostgreSQL stopped at once (status {status}):\n{self._log_tail()}")
            if time.monotonic() > until:
                raise EmbeddedError(
                    f"PostgreSQL was not ready after {timeout_seconds:.0f} s:\n{self._log_tail()}"
                )
            time.sleep(_POLL_SECONDS)

    def poll(self) -> int | None:
        """None while the server runs, else its exit status (negative: the signal that killed it)."""
        return 0 if self._child is None else self._child.poll()

    def stop(self) -> None:
        """Stop the server (fast shutdown, harder if it takes too long) and let go of the folder."""
        if self._child is not None:
            processes.stop(self._child, _STOP)
            self._child = None
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._sockets = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _hold(self, home: Path) -> None:
        """Take the lock beside the home: two servers on one folder, or two initdb, would race."""
        if self._lock is not None:
            return
        handle = home.with_name(f"{home.name}.lock").open(
            "a"
        )  # closed on exec: the server does not inherit it
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            handle.close()
            raise HeldByAnother(f"another mainspring already runs PostgreSQL on {home}") from taken
        self._lock = handle

    # ------------------------------------------------------------------ facts about the running server

    @property
    def pid(self) -> int:
        """The server's process id."""
        if self._child is None:
            raise EmbeddedError("PostgreSQL is not running")
        return self._child.pid

    @property
    def home(self) -> Path:
        """The folder with the data and the server's log."""
        if self._home is None:
            raise EmbeddedError("PostgreSQL was never started")
        return self._home

    def connect_arguments(
        self, database: str = "postgres", *, user: str = SUPERUSER, password: str | None = None
    ) -> ConnectArguments:
        """Arguments for asyncpg.connect; the superuser's password is filled in."""
        if self._sockets is None:
            raise EmbeddedError("PostgreSQL is not running")
        return {
            "host": str(self._sockets),
            "port": PORT,
            "user": user,
            "password": self._superuser_password() if password is None else password,
            "database": database,
        }

    def url(self, database: str = "postgres", *, user: str = SUPERUSER, password: str | None = None) -> str:
        """The same as a postgresql:// address."""
        return as_url(self.connect_arguments(database, user=user, password=password))

    def _superuser_password(self) -> str:
        return _password_file(self.state).read_text()

    def _log_tail(self) -> str:
        return (self.home / "server.log").read_bytes()[-1200:].decode(errors="replace")

    # ------------------------------------------------------------------ making a cluster

    def _make_cluster(self, home: Path, account: processes.Account, programs: binaries.Binaries) -> None:
        """Run initdb beside the final place and rename: a half-made cluster is never taken for one."""
        building = home / "data.new"
        shutil.rmtree(building, ignore_errors=True)
        password = secrets.token_urlsafe(24)
        write_secret(_password_file(self.state), password)
        handed_over = (
            home / "password.new"
        )  # initdb reads it as its own account, which may not enter our folder
        write_secret(handed_over, password)
        accounts.give(account, handed_over)
        try:
            _run_initdb(building, handed_over, account, programs, durable=self._durable)
        finally:
            handed_over.unlink()
        building.rename(home / "data")


def _run_initdb(
    building: Path, password: Path, account: processes.Account, programs: binaries.Binaries, *, durable: bool
) -> None:
    # The builtin provider needs no locale of the machine; PostgreSQL 15 and 16 do not have it.
    locale = (
        ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
        if programs.major >= 17
        else ["--locale=C.UTF-8"]
    )
    argv: list[str | Path] = [
        programs.program("initdb"),
        "-D",
        building,
        "-U",
        SUPERUSER,
        "--encoding=UTF8",
        *locale,
    ]
    argv += ["--auth=scram-sha-256", f"--pwfile={password}", "--no-instructions"]
    if not durable:
        argv.append("--no-sync")
    finished = processes.run(argv, account=account)
    if finished.returncode != 0:
        raise EmbeddedError(f"initdb failed:\n{finished.stdout}{finished.stderr}")


def _durability(*, durable: bool) -> dict[str, str]:
    if durable:
        return {"fsync": "on", "synchronous_commit": "on"}
    return {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"}


def _is_ready(pidfile: Path, pid: int) -> bool:
    try:
        lines = pidfile.read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) > _READY_LINE and lines[0].strip() == str(pid) and lines[_READY_LINE].strip() == "ready"


def _refuse_other_major(data: Path, programs: binaries.Binaries) -> None:
    found = (data / "PG_VERSION").read_text().strip()
    if found != str(programs.major):
        raise EmbeddedError(
            f"the data in {data} was made by PostgreSQL {found}, the server here is {programs.version}: "
            f"set {binaries.BINDIR_VARIABLE} to a PostgreSQL {found}, or forget the data with `mainspring dev reset`"
        )


def _open_log(path: Path) -> IO[bytes]:
    if path.exists() and path.stat().st_size > _LOG_KEEP_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path.open("ab")


def _password_file(state: Path) -> Path:
    return state / "secrets" / "postgres.password"


def make_state_folder(state: Path) -> None:
    """The state folder, closed to others; as root it may be passed through, since PostgreSQL runs as another user."""
    state.mkdir(parents=True, exist_ok=True)
    state.chmod(0o711 if os.geteuid() == 0 else 0o700)
    (state / "secrets").mkdir(mode=0o700, exist_ok=True)


def write_secret(path: Path, content: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    building = path.with_name(f".{path.name}.new")
    building.unlink(missing_ok=True)
    with os.fdopen(os.open(building, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as handle:
        handle.write(content)
    building.replace(path)


def as_url(arguments: ConnectArguments) -> str:
    """A postgresql:// address for a server on a unix socket."""
    who = f"{quote(arguments['user'], safe='')}:{quote(arguments['password'], safe='')}"
    where = urlencode({"host": arguments["host"], "port": arguments["port"]})
    return f"postgresql://{who}@/{quote(arguments['database'], safe='')}?{where}"
