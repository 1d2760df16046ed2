"""A real Mainspring for your tests: `dev_server()` starts PostgreSQL, servers and the built-in runner, and ends them all.

`DevServer.crash_at` kills a server at a fault point, as the demo and our own tests do. With pytest, import the fixture:

    from mainspring.testing import server

    def test_my_agent_answers(server):
        server.call("POST", "/channels/general/messages", {"text": "@echo hello"})
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

PATIENCE_SECONDS = 30.0
START_SECONDS = 60.0


class Refused(Exception):
    """The server answered with an error; `status` and `problem` say which."""

    def __init__(self, asked: str, answer: httpx.Response) -> None:
        super().__init__(f"{asked} answered {answer.status_code}: {answer.text}")
        self.status = answer.status_code
        self.problem: dict[str, Any] = (
            answer.json() if "json" in answer.headers.get("Content-Type", "") else {}
        )


class TooLong(Exception):
    """What was waited for did not come."""


def wait_until(holds: Callable[[], bool], what: str, *, seconds: float = PATIENCE_SECONDS) -> None:
    """Ask until it holds; a server that is down meanwhile is asked again. Raises TooLong, naming `what`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(httpx.TransportError, FileNotFoundError, json.JSONDecodeError):
            if holds():
                return
        time.sleep(0.05)
    raise TooLong(f"{seconds:.0f} s have passed without {what}")


@dataclass(slots=True)
class DevServer:
    """A running `mainspring dev`, as its user sees it: addresses, a token, and files in a state folder."""

    state: Path
    process: subprocess.Popen[bytes]
    http: httpx.Client

    def holder(self) -> dict[str, Any]:
        """What it says of itself: url, urls, token, and the pids of its processes by name."""
        said: dict[str, Any] = json.loads((self.state / "dev.json").read_text())
        return said

    def url(self, server: int = 1) -> str:
        """The address of one of its servers, the first by default."""
        url: str = self.holder()["urls"][server - 1]
        return url

    def pid(self, name: str) -> int | None:
        """The pid of a process by its name, None while it is down."""
        pid: int | None = self.holder()["processes"].get(name)
        return pid

    def call(self, method: str, path: str, body: Any = None, *, server: int = 1) -> Any:
        """Call `/api/v1` of one of its servers; raises Refused, or httpx.TransportError while it is down."""
        answer = self.http.request(method, f"{self.url(server)}/api/v1{path}", json=body)
        if answer.is_error:
            raise Refused(f"{method} {path}", answer)
        return answer.json() if answer.content else None

    def arm(self, fault: str, *, server: int = 1) -> None:
        """Have a server killed (or stopped) when it reaches a point: `point[:nth][:kill|stop|raise]`."""
        self.call("POST", "/dev/faults", {"point": fault}, server=server)

    def disarm(self, *, server: int = 1) -> None:
        """Have a server forget every point that it is armed at; one that is down has forgotten them."""
        with contextlib.suppress(httpx.TransportError):
            self.call("DELETE", "/dev/faults", server=server)

    @contextlib.contextmanager
    def crash_at(self, point: str, *, server: int = 1, seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
        """Have a server killed when it reaches a point while the block runs, or soon after; return once it is up again.

        Raises TooLong when the point is not reached. Whatever it raises, or the block does, no point stays armed.
        """
        before = self._pid_of(server)
        self.arm(point, server=server)
        try:
            yield
            wait_until(
                lambda: self._pid_of(server) not in (None, before), f"{point} reached", seconds=seconds
            )
        except BaseException:
            self.disarm(server=server)
            raise
        wait_until(self.is_up, "the server up again")

    def _pid_of(self, server: int) -> int | None:
        """The pid of one of its servers; the only one has no number."""
        return self.pid("server") or self.pid(f"server-{server}")

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `mainspring` with this server's address and token."""
        environment = os.environ | {
            "MAINSPRING_URL": self.url(),
            "MAINSPRING_TOKEN": self.holder()["token"],
            "NO_COLOR": "1",
            "COLUMNS": "110",
        }
        return subprocess.run(
            [sys.executable, "-m", "mainspring", *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def is_up(self) -> bool:
        """Whether all its processes run and its servers are ready."""
        if self.process.poll() is not None:
            raise TooLong(f"mainspring dev has ended:\n{(self.state.parent / 'dev.log').read_text()}")
        holder = self.holder()
        return "runner" in holder["processes"] and all(
            self.http.get(f"{url}/readyz").status_code == httpx.codes.OK for url in holder["urls"]
        )

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(PATIENCE_SECONDS)


@contextlib.contextmanager
def dev_server(*, processes: int = 1, **settings: object) -> Iterator[DevServer]:
    """Run a `mainspring dev` in a folder of its own, forgotten afterwards.

    Args:
        processes: server processes that share the database.
        settings: any setting by its name, as `lease_seconds_transactional=2`.
    """
    folder = Path(tempfile.mkdtemp(prefix="mainspring-test-"))
    folder.chmod(0o711)  # as root, PostgreSQL runs as nobody and has to pass
    state = folder / "state"
    environment = {f"MAINSPRING_{name.upper()}": str(value) for name, value in settings.items()}
    with (folder / "dev.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mainspring", "dev", "--processes", str(processes)],
            env=os.environ | {"MAINSPRING_STATE": str(state)} | environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        with httpx.Client(timeout=10.0) as http:
            server = DevServer(state=state, process=process, http=http)
            wait_until(server.is_up, "mainspring dev ready", seconds=START_SECONDS)
            http.headers["Authorization"] = f"Bearer {server.holder()['token']}"
            yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


try:
    import pytest
except ImportError:  # whoever has no pytest has no use for its fixture
    pass
else:

    @pytest.fixture(scope="session")
    def server() -> Iterator[DevServer]:
        """A running Mainspring, one for all tests of a session."""
        with dev_server() as running:
            yield running
