"""`mainspring dev` as its user has it: a command in a terminal, signals, a second one in the same folder."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import http.server
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mainspring.embedded import processes

pytestmark = [pytest.mark.slow, pytest.mark.processes]

DEADLINE_SECONDS = 60
COMMAND = [sys.executable, "-m", "mainspring"]


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="ms-test-"))
    made.chmod(0o711)
    yield made
    subprocess.run([*COMMAND, "dev", "reset", "--yes"], env=environment(made), cwd=made, check=False)
    shutil.rmtree(made, ignore_errors=True)


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    for name in ("MAINSPRING_PG_BINDIR", "MAINSPRING_NATS_SERVER"):
        if name in os.environ:
            kept[name] = os.environ[name]
    return kept | {"MAINSPRING_STATE": str(folder / ".mainspring")} | more


class Dev:
    """A running `mainspring dev`."""

    def __init__(self, folder: Path, *arguments: str, **more: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [*COMMAND, "dev", *arguments],
            cwd=folder,
            env=environment(folder, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.said = ""

    def until(self, words: str) -> str:
        """Read on until a line holds these words; return it."""
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return line
        raise AssertionError(f"`dev` ended without {words!r}:\n{self.said}")

    def introduction(self) -> dict:
        return json.loads((self.folder / ".mainspring" / "dev.json").read_text())

    def end(self) -> int:
        self.said += self.process.stdout.read()
        self.process.stdout.close()
        return self.process.wait(DEADLINE_SECONDS)

    def ctrl_c(self) -> int:
        os.killpg(self.process.pid, signal.SIGINT)
        return self.end()


@pytest.fixture
def start(folder) -> Iterator[Callable[..., Dev]]:
    started: list[Dev] = []

    def run(*arguments: str, **more: str) -> Dev:
        started.append(Dev(folder, *arguments, **more))
        return started[-1]

    yield run
    for dev in started:
        if dev.process.poll() is None:
            dev.process.terminate()
            dev.end()


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
    )


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not made"
        time.sleep(0.01)


def call(told: dict, method: str, path: str, body: dict) -> int:
    where = urlsplit(told["url"])
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=DEADLINE_SECONDS)
    headers = {"Authorization": f"Bearer {told['token']}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, json.dumps(body), headers)
        return connection.getresponse().status
    finally:
        connection.close()


def status(url: str, path: str, token: str = "") -> int:
    connection = http.client.HTTPConnection(
        urlsplit(url).hostname, urlsplit(url).port, timeout=DEADLINE_SECONDS
    )
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status
    finally:
        connection.close()


def until_held(state: Path) -> None:
    """Until somebody has the folder's lock, whatever dev.json says."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        with (state / "lock").open("r") as handle, contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(handle, fcntl.LOCK_UN)
            assert time.monotonic() < deadline, "nobody took the folder"
            time.sleep(0.01)
            continue
        return


def until_gone(pids) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while any(isinstance(processes.inspect(pid), processes.Alive) for pid in pids):
        assert time.monotonic() < deadline, "a child was left behind"
        time.sleep(0.02)


def test_it_says_where_everything_is_serves_and_leaves_nothing_behind(start, folder):
    dev = start()
    dev.until("stop      Ctrl-C")
    for words in (
        "✓ PostgreSQL",
        "✓ NATS 2.",
        "✓ schema",
        "address   http://127.0.0.1:",
        "/docs",
        "token     ms_",
        ".mainspring",
    ):
        assert words in dev.said
    told = dev.introduction()
    assert status(told["url"], "/livez") == 200
    assert set(told["processes"]) == {"postgres", "nats", "server", "runner"}
    assert (folder / ".mainspring" / "token").stat().st_mode & 0o077 == 0

    other = run(folder, "dev")
    assert other.returncode == 5
    assert str(told["pid"]) in other.stderr
    assert told["url"] in other.stderr
    assert run(folder, "dev", "reset", "--yes").returncode == 5

    asked = run(folder, "dev", "psql", "--", "-Atc", "select count(*) > 0 from mainspring.schema_migrations")
    assert asked.stdout.strip() == "t", asked.stderr

    assert dev.ctrl_c() == 0, dev.said
    until_gone(told["processes"].values())
    assert run(folder, "dev", "psql").returncode == 3


def test_a_killed_server_is_back_by_itself_on_the_same_address(start):
    dev = start("--processes", "2")
    dev.until("stop      Ctrl-C")
    told = dev.introduction()
    assert [urlsplit(url).port for url in told["urls"]] == [urlsplit(told["url"]).port + n for n in (0, 1)]
    os.kill(told["processes"]["server-1"], signal.SIGKILL)
    dev.until("server-1: killed by SIGKILL")
    assert status(told["urls"][1], "/livez") == 200, "the other one serves meanwhile"
    dev.until("server-1: ready again")
    assert status(told["url"], "/livez") == 200
    assert dev.introduction()["processes"]["server-1"] != told["processes"]["server-1"]
    os.kill(dev.introduction()["processes"]["postgres"], signal.SIGKILL)
    dev.until("postgres: ready again")
    os.kill(dev.introduction()["processes"]["nats"], signal.SIGKILL)
    dev.until("nats: ready again")


def test_an_armed_fault_kills_a_server_and_not_the_one_that_starts_it_again(start):
    dev = start(MAINSPRING_FAULT="append.before_commit")  # making the demo board and its cards appends, too
    dev.until("stop      Ctrl-C")
    told = dev.introduction()
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        call(told, "POST", "/api/v1/cards", {"board": "DEMO", "title": "x"})
    dev.until("server: killed by SIGKILL")
    dev.until("server: ready again")
    assert call(told, "POST", "/api/v1/cards", {"board": "DEMO", "title": "x"}) == 201


def test_kill_9_of_the_supervisor_leaves_nothing_and_the_next_start_has_the_same_address_and_token(start):
    first = start()
    first.until("stop      Ctrl-C")
    before = first.introduction()
    first.process.kill()
    first.end()
    second = start()
    second.until("stop      Ctrl-C")
    until_gone(before["processes"].values())
    after = second.introduction()
    assert (after["url"], after["token"]) == (before["url"], before["token"])
    assert "schema (up to date)" in second.said


def test_a_frozen_server_of_a_killed_start_gives_its_port_up_to_a_later_one(start):
    """Even if the start that would have ended it is killed while it waits."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = str(unused.getsockname()[1])
    first = start("--port", port)
    first.until("stop      Ctrl-C")
    told = first.introduction()
    frozen = told["processes"]["server"]
    os.kill(frozen, signal.SIGSTOP)
    first.process.kill()
    first.end()
    second = start()
    until_held(first.folder / ".mainspring")  # from here on it waits for what the first has left behind
    second.process.kill()
    second.end()
    third = start("--port", port)
    third.until("stop      Ctrl-C")
    assert third.introduction()["url"] == told["url"]
    until_gone([frozen])
    assert third.ctrl_c() == 0


@pytest.mark.parametrize("port", ["70000", "0", "-1"])
def test_what_is_no_port_is_refused_as_such(start, port):
    dev = start("--port", port)
    assert dev.end() == 2
    assert "--port must be 1 to" in dev.said


@pytest.fixture
def folders(folder) -> Iterator[list[Path]]:
    """Two of them."""
    other = Path(tempfile.mkdtemp(prefix="ms-test-"))
    other.chmod(0o711)
    yield [folder, other]
    subprocess.run([*COMMAND, "dev", "reset", "--yes"], env=environment(other), cwd=other, check=False)
    shutil.rmtree(other, ignore_errors=True)


def test_two_that_start_at_once_take_two_ports_and_neither_answers_for_the_other(folders):
    devs = [Dev(folder, "--processes", "2") for folder in folders]
    try:
        for dev in devs:
            dev.until("stop      Ctrl-C")
        told = [dev.introduction() for dev in devs]
        assert len({url for one in told for url in one["urls"]}) == 4
        for one, other in itertools.permutations(told):
            assert {status(url, "/api/v1/whoami", one["token"]) for url in one["urls"]} == {200}
            assert {status(url, "/api/v1/whoami", other["token"]) for url in one["urls"]} == {401}
    finally:
        assert [dev.ctrl_c() for dev in devs] == [0, 0]


def test_while_a_killed_server_starts_again_its_port_is_nobody_elses_and_who_calls_waits(start):
    dev = start()
    dev.until("stop      Ctrl-C")
    told = dev.introduction()
    port = urlsplit(told["url"]).port
    os.kill(told["processes"]["server"], signal.SIGKILL)
    until_gone([told["processes"]["server"]])
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", port))
    assert status(told["url"], "/api/v1/whoami", told["token"]) == 200
    dev.until("server: ready again")
    assert dev.ctrl_c() == 0
    # another may listen there by now; it does not know this token
    with contextlib.suppress(ConnectionRefusedError):
        assert status(told["url"], "/api/v1/whoami", told["token"]) != 200


def test_where_it_stood_the_last_time_another_listens_now_it_moves_on_and_stays_there(start, folder):
    state = folder / ".mainspring"
    state.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        (state / "port").write_text(str(port))
        dev = start()
        dev.until("stop      Ctrl-C")
    now = urlsplit(dev.introduction()["url"]).port
    assert now > port
    assert f"port {port} is another's: using {now}" in dev.said
    assert (state / "url").read_text() == f"http://127.0.0.1:{now}\n"
    assert (state / "port").read_text().strip() == str(now)


def test_a_port_that_was_asked_for_is_used_or_nothing_is(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        dev = start("--port", str(port))
        assert dev.end() == 1
        assert f"port {port} is taken; leave --port out" in dev.said


def test_ephemeral_keeps_nothing(start, folder):
    dev = start("--ephemeral")
    dev.until("stop      Ctrl-C")
    [line] = [line for line in dev.said.splitlines() if "  state  " in line]
    state = Path(line.split()[1])
    assert state.is_dir()
    assert dev.ctrl_c() == 0
    assert not state.exists()
    assert not (folder / ".mainspring").exists()


@pytest.mark.parametrize("variable", ["MAINSPRING_PRT", "MAINSPRING_FAULT"])
def test_a_mistaken_setting_is_refused_before_anything_starts(folder, start, variable):
    dev = start(**{variable: "1"})
    assert dev.end() == 2
    assert variable in dev.said
    assert not (folder / ".mainspring").exists()
