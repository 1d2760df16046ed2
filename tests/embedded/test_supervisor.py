"""The supervisor as a real process over real children; and its pure parts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.embedded import EmbeddedError, HeldByAnother, homes, ports, processes
from mainspring.embedded.backoff import HOPELESS_AFTER, LONGEST_SECONDS, Backoff
from mainspring.embedded.logtail import LogTail
from mainspring.embedded.state import Holder, StateFolder
from mainspring.embedded.supervisor import how_it_ended

SCRIPT = Path(__file__).with_name("supervised.py")
DEADLINE_SECONDS = 30


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is named as ours are."""
    with subprocess.Popen([sys.executable, "-c", "input()", "mainspring"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("said", ["nothing", "another birth"])
def test_whoever_has_the_process_id_of_a_dead_child_lives_on(
    stranger: subprocess.Popen[bytes], said: str
) -> None:
    births = {} if said == "nothing" else {"server": f"{processes.birth(stranger.pid)}0"}
    processes.end_strangers({"server": stranger.pid}, births, word="mainspring", grace_seconds=0)
    assert isinstance(processes.inspect(stranger.pid), processes.Alive)
    assert stranger.poll() is None


def test_nobody_ends_himself() -> None:
    mine = processes.birth(os.getpid())
    assert mine is not None
    argv = processes.inspect(os.getpid())
    assert isinstance(argv, processes.Alive)
    processes.end_strangers(
        {"server": os.getpid()}, {"server": mine}, word=argv.argv[0], grace_seconds=0
    )  # or no test ran from here on


def test_a_child_that_was_left_behind_is_ended(stranger: subprocess.Popen[bytes]) -> None:
    born = processes.birth(stranger.pid)
    assert born is not None
    processes.end_strangers({"server": stranger.pid}, {"server": born}, word="mainspring", grace_seconds=0)
    assert stranger.wait(DEADLINE_SECONDS) == -signal.SIGKILL


class Supervised:
    """A running supervised.py and what it says."""

    def __init__(self, state: Path, kind: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(state), kind],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.said: list[str] = []

    def until(self, key: str):
        """Read on until it says something of that kind."""
        for line in self.process.stdout:
            message = json.loads(line)
            if "said" in message:
                self.said.append(message["said"])
            if key in message:
                return message[key]
        raise AssertionError(f"ended without {key}; said {self.said}")

    def end(self) -> int:
        status = self.process.wait(DEADLINE_SECONDS)
        self.process.stdout.close()
        return status


@pytest.fixture
def state() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ms-test-"))
    folder.chmod(0o711)
    yield folder / "state"
    homes.forget(folder / "state")  # a killed server leaves its socket folder
    shutil.rmtree(folder, ignore_errors=True)


def run(state: Path, kind: str = "faithful") -> Supervised:
    return Supervised(state, kind)


def gone(pids) -> bool:
    return not any(isinstance(processes.inspect(pid), processes.Alive) for pid in pids)


def wait_gone(pids) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not gone(pids):
        assert time.monotonic() < deadline, "a child was left behind"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_and_leaves_nobody_behind(state, number):
    supervised = run(state)
    pids = supervised.until("pids")
    assert set(pids) == {"one", "other", "postgres"}
    os.killpg(supervised.process.pid, number)  # as Ctrl-C in a terminal does
    assert supervised.until("left") == {}
    assert supervised.end() == 0
    assert gone(pids.values())


@pytest.mark.slow
@pytest.mark.processes
def test_what_dies_is_started_again_counted_and_said(state):
    supervised = run(state)
    before = supervised.until("pids")
    os.kill(before["one"], signal.SIGKILL)
    assert "one" not in supervised.until("pids")
    after = supervised.until("pids")
    assert after["one"] != before["one"]
    assert after["other"] == before["other"]
    assert any(
        "one: killed by SIGKILL, starting it again" in line and "restart 1" in line
        for line in supervised.said
    )
    os.kill(after["postgres"], signal.SIGKILL)
    last = supervised.until("pids")
    assert last["postgres"] != after["postgres"]
    supervised.process.terminate()
    assert supervised.end() == 0
    wait_gone([*before.values(), *after.values(), *last.values()])


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_kill_9_of_the_supervisor_leaves_nobody_behind(state):
    supervised = run(state)
    pids = supervised.until("pids")
    supervised.process.kill()
    assert supervised.end() == -signal.SIGKILL
    wait_gone(pids.values())


@pytest.mark.slow
@pytest.mark.processes
def test_a_child_that_will_not_go_is_killed_after_its_grace(state):
    supervised = run(state, "stubborn")
    pids = supervised.until("pids")
    supervised.process.terminate()
    supervised.until("left")
    assert supervised.end() == 0
    assert any("stubborn: did not stop in time" in line for line in supervised.said)
    assert gone(pids.values())


@pytest.mark.slow
@pytest.mark.processes
def test_a_program_that_never_gets_ready_ends_the_start_with_its_last_words(state):
    supervised = run(state, "broken")
    assert "cannot work like this" in supervised.until("failed")
    assert supervised.end() == 1


@pytest.mark.slow
@pytest.mark.processes
def test_a_minor_program_is_given_up_and_its_loud_lines_were_shown(state):
    supervised = run(state, "noisy")
    while not any("given up" in line for line in supervised.said):
        supervised.until("said")
    assert sum("it broke" in line for line in supervised.said) == HOPELESS_AFTER
    assert not any("quiet talk" in line for line in supervised.said)
    assert "first" in (state / "logs" / "noisy.log").read_text().splitlines()[1]
    assert (state / "logs" / "noisy.log").read_text().count("first") == 1, (
        "an armed fault is for the first start only"
    )
    supervised.process.terminate()
    assert supervised.end() == 0


def test_the_pause_grows_to_a_limit_and_starts_over_after_a_healthy_life():
    backoff = Backoff()
    pauses = [backoff.died(uptime_seconds=0.5) for _ in range(10)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_SECONDS
    assert backoff.hopeless
    assert backoff.died(uptime_seconds=60) == pauses[0]
    assert not backoff.hopeless
    assert backoff.total == 11


def test_exit_statuses_in_words():
    assert how_it_ended(-9) == "killed by SIGKILL"
    assert how_it_ended(3) == "exited with status 3"


def test_a_line_cut_in_two_is_shown_once_and_whole(tmp_path):
    tail = LogTail(tmp_path / "x.log")
    assert tail.essential_lines() == []
    with tail.open_for_child() as log:
        log.write(b'{"level": "info", "event": "fine"}\n{"level": "warning", "event": "ho')
        log.flush()
        assert tail.essential_lines() == []
        log.write(b't", "degrees": 90}\n')
    assert tail.essential_lines() == ["hot degrees=90"]
    assert tail.essential_lines() == []


def test_a_held_folder_says_who_holds_it_and_only_while_he_does(state):
    mine = StateFolder(state)
    mine.hold()
    mine.introduce(Holder(pid=4711, url="http://127.0.0.1:7701", urls=("http://127.0.0.1:7701",), token="t"))
    other = StateFolder(state)
    assert other.holder() == Holder(
        pid=4711, url="http://127.0.0.1:7701", urls=("http://127.0.0.1:7701",), token="t"
    )
    with pytest.raises(HeldByAnother, match=r"process 4711.*7701"):
        other.hold()
    assert (state / "dev.json").stat().st_mode & 0o077 == 0
    mine.release()
    assert other.holder() is None
    other.hold()
    other.forget()
    assert not state.exists()


def test_a_stale_introduction_is_not_believed(state):
    held = StateFolder(state)
    held.hold()
    held.introduce(Holder(pid=4711, url="http://127.0.0.1:7701"))
    held._lock.close()  # the kernel's part of kill -9
    assert StateFolder(state).holder() is None
    again = StateFolder(state)
    assert again.hold() == Holder(pid=4711, url="http://127.0.0.1:7701"), "his children may still be ending"
    assert (state / "dev.json").exists(), "whoever is killed while he waits for them leaves that to the next"
    again.unintroduce()
    assert not (state / "dev.json").exists()
    again.release()


def test_a_row_of_ports_skips_what_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert ports.hold(port) is None
        one, other = ports.hold_row(port, 2)
        with one, other:
            assert port < one.getsockname()[1] == other.getsockname()[1] - 1
        with pytest.raises(EmbeddedError, match=f"port {port} is taken"):
            ports.hold_row(port, 2, search=False)


def test_a_port_that_is_held_is_nobody_elses_and_one_that_is_given_up_is_free():
    [sock] = ports.hold_row(20_000, 1)
    port = sock.getsockname()[1]
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            bound.bind(("127.0.0.1", port))
    sock.close()
    again = ports.hold(port)
    assert again is not None
    again.close()
