"""A real NATS of our own: where it is, who may talk to it, and that nobody else gets at its store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import nats
import nats.errors
import pytest

from mainspring.embedded import EmbeddedError, HeldByAnother, processes
from mainspring.embedded.nats import EmbeddedNats, binary
from mainspring.embedded.ports import hold


async def kept(server: EmbeddedNats, said: bytes | None = None) -> list[bytes]:
    """Say something that is kept, and return all that is."""
    client = await nats.connect(server.url())
    try:
        js = client.jetstream()
        await js.add_stream(name="KEPT", subjects=["kept"])
        if said is not None:
            await js.publish("kept", said)
        count = (await js.stream_info("KEPT")).state.messages
        return [(await js.get_msg("KEPT", seq)).data or b"" for seq in range(1, count + 1)]
    finally:
        await client.close()


async def test_it_keeps_its_port_and_what_it_was_told_through_a_kill(tmp_path: Path) -> None:
    with EmbeddedNats(tmp_path / "state") as server:
        port = server.port
        await kept(server, b"one")
        os.kill(server.pid, signal.SIGKILL)
        while server.poll() is None:
            pass
        server.start()
        assert server.port == port
        assert await kept(server, b"two") == [b"one", b"two"]
        server.stop()
        server.start()
        assert server.port == port
        assert await kept(server) == [b"one", b"two"]


def test_another_port_is_taken_when_the_kept_one_is_somebody_elses(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path / "state")
    with server:
        port = server.port
    other = hold(port)
    assert other is not None
    with other, server:
        assert server.port != port


def test_a_second_server_on_one_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.embedded.nats._LEFTOVER_SECONDS", 0.05)
    with EmbeddedNats(tmp_path / "state"):
        with pytest.raises(HeldByAnother):
            EmbeddedNats(tmp_path / "state").start()


KEEPER = """
import sys, time, pathlib
from mainspring.embedded import EmbeddedNats
server = EmbeddedNats(pathlib.Path(sys.argv[1])).start()
print(server.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_what_a_killed_keeper_left_has_the_store_until_it_has_ended(tmp_path: Path) -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER, str(tmp_path / "state")], stdout=subprocess.PIPE, text=True
    )
    assert keeper.stdout is not None
    orphan = int(keeper.stdout.readline())
    os.kill(orphan, signal.SIGSTOP)  # it does not end when it is told to
    keeper.kill()
    keeper.wait()
    keeper.stdout.close()
    waited = threading.Timer(0.3, os.kill, (orphan, signal.SIGCONT))
    waited.start()
    with EmbeddedNats(tmp_path / "state"):
        assert not waited.is_alive(), "two servers had one store"
        assert not isinstance(processes.inspect(orphan), processes.Alive)


async def test_it_is_open_to_nobody_without_its_token(tmp_path: Path) -> None:
    with EmbeddedNats(tmp_path / "state") as server:
        with pytest.raises(nats.errors.Error, match=r"(?i)authorization"):
            await nats.connect(f"nats://127.0.0.1:{server.port}", allow_reconnect=False)
        secret = tmp_path / "state" / "secrets" / "nats.token"
        for path in (secret, tmp_path / "state" / "nats" / "nats.conf"):
            assert path.stat().st_mode & 0o077 == 0
        assert secret.read_text() not in " ".join(Path(f"/proc/{server.pid}/cmdline").read_text().split("\0"))


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with EmbeddedNats(state):
        pass
    store = state / "nats" / "store"
    for path in sorted(store.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    store.rmdir()
    store.write_text("a file where the folder should be")
    with pytest.raises(EmbeddedError, match="NATS stopped at once"):
        EmbeddedNats(state).start()


def test_a_program_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_NATS_SERVER", str(tmp_path / "nothing"))
    with pytest.raises(EmbeddedError, match="MAINSPRING_NATS_SERVER"):
        binary()
