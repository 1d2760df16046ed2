"""The embedded server against the ways it has really been left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from mainspring.embedded import (
    EmbeddedError,
    EmbeddedPostgres,
    HeldByAnother,
    binaries,
    homes,
    leftovers,
    processes,
)

pytestmark = pytest.mark.slow

DEADLINE_SECONDS = 20
_OLD = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture
def state() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ms-test-"))
    folder.chmod(0o711)
    yield folder / "state"
    homes.forget(folder / "state")  # a killed server leaves its socket folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def server(state) -> Iterator[EmbeddedPostgres]:
    started = EmbeddedPostgres(state, durable=False)
    with started:
        yield started


def until(condition, what: str) -> None:
    """Wait for something another process does."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.01)


async def ask(server: EmbeddedPostgres, question: str, **how):
    conn = await asyncpg.connect(**server.connect_arguments(**how))
    try:
        return await conn.fetchval(question)
    finally:
        await conn.close()


async def test_nothing_listens_on_the_network_and_nobody_is_trusted(server):
    assert await ask(server, "show listen_addresses") == ""
    assert await ask(server, "select current_user") == "postgres"
    with pytest.raises(asyncpg.InvalidPasswordError):
        await ask(server, "select 1", password="wrong")
    folder = Path(server.connect_arguments()["host"])
    assert folder.stat().st_mode & 0o077 == 0
    assert (server.state / "secrets" / "postgres.password").stat().st_mode & 0o077 == 0


async def test_text_is_utf8_and_sorts_the_same_everywhere(server):
    assert await ask(server, "show server_encoding") == "UTF8"
    assert (
        await ask(server, "select string_agg(x, '' order by x) from unnest(array['b','ä','B','a']) x")
        == "Babä"
    )
    assert await ask(server, "show timezone") == "UTC"


@pytest.mark.slow
async def test_kill_9_of_the_server_loses_nothing_that_was_committed(server):
    await ask(server, "create table kept as select 42 as n")
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: server.poll() is not None, "the server's death")
    server.start()
    assert await ask(server, "select n from kept") == 42


@pytest.mark.slow
async def test_a_zombie_in_the_lock_file_does_not_block_the_start(server):
    await ask(server, "create table kept as select 42 as n")
    os.kill(server.pid, signal.SIGKILL)
    # Not reaped yet: to kill(pid, 0), which PostgreSQL asks, the dead server is still there.
    until(lambda: processes.inspect(server.pid) == processes.Zombie(), "a zombie")
    again = EmbeddedPostgres(server.state, durable=False)
    server._lock.close()
    with again:
        assert await ask(again, "select n from kept") == 42
    server._child.wait()


@pytest.mark.slow
def test_a_lock_file_that_names_a_living_stranger_is_cleared(server):
    data = server.home / "data"
    pidfile = data / "postmaster.pid"
    text = pidfile.read_text()
    server.stop()
    pidfile.write_text(text.replace(text.split("\n", 1)[0], str(os.getpid()), 1))
    server.start()
    assert server.poll() is None


@pytest.mark.slow
def test_an_orphaned_server_is_stopped_before_the_next_one_starts(server):
    orphan = server._child
    server._lock.close()  # as if the process that started it were gone, and the kernel had not told the server
    with EmbeddedPostgres(server.state, durable=False) as again:
        assert orphan.wait() == 0
        assert again.pid != orphan.pid


def test_a_lock_file_of_a_dead_server_waits_for_its_surviving_backends(tmp_path, monkeypatch):
    """Deleting the file by force would let two servers write to the same data."""
    (tmp_path / "postmaster.pid").write_text(f"{2**22 - 1}\n{tmp_path}\n1\n5432\n/tmp\n\n  7  99\nready\n")
    shm = tmp_path / "shm"
    header = "key shmid perms size cpid lpid nattch uid\n"
    shm.write_text(header + "7 99 600 56 1 1 2 0\n")
    monkeypatch.setattr(leftovers, "_SHARED_SEGMENTS", shm)
    with pytest.raises(EmbeddedError, match="still hold its memory"):
        leftovers.clear(tmp_path, tmp_path, timeout_seconds=0)
    assert (tmp_path / "postmaster.pid").exists()
    shm.write_text(header + "7 99 600 56 1 1 0 0\n")
    leftovers.clear(tmp_path, tmp_path, timeout_seconds=0)
    assert not (tmp_path / "postmaster.pid").exists()


def test_a_second_start_on_the_same_folder_is_refused(server):
    with pytest.raises(HeldByAnother):
        EmbeddedPostgres(server.state).start()
    assert server.poll() is None


@pytest.mark.slow
def test_a_half_made_cluster_is_not_taken_for_one(state):
    half = state / "postgres" / "data.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(state, durable=False) as server:
        assert server.poll() is None
        assert not half.exists()


@pytest.mark.slow
def test_data_of_another_major_version_is_refused_by_name(server):
    server.stop()
    (server.home / "data" / "PG_VERSION").write_text("14\n")
    with pytest.raises(EmbeddedError, match=r"made by PostgreSQL 14.*dev reset"):
        server.start()


@pytest.mark.slow
def test_it_is_not_started_from_a_thread_that_would_take_it_along(state):
    """The kernel's parent-death signal fires when the forking thread ends, not when the process does."""
    caught: list[BaseException] = []

    def start() -> None:
        try:
            EmbeddedPostgres(state, durable=False).start()
        except EmbeddedError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_kill_9_of_whoever_started_it_stops_the_server_cleanly(state):
    program = (
        "import pathlib, sys, signal; from mainspring.embedded import EmbeddedPostgres\n"
        "server = EmbeddedPostgres(pathlib.Path(sys.argv[1]), durable=False).start()\n"
        "print(server.pid, flush=True); signal.pause()"
    )
    starter = subprocess.Popen([sys.executable, "-c", program, str(state)], stdout=subprocess.PIPE, text=True)
    pid = int(starter.stdout.readline())
    starter.kill()
    starter.wait()
    starter.stdout.close()
    until(lambda: not isinstance(processes.inspect(pid), processes.Alive), "the server's end")
    assert not (state / "postgres" / "data" / "postmaster.pid").exists()
    with EmbeddedPostgres(state, durable=False) as server:
        assert server.poll() is None


@pytest.mark.slow
@pytest.mark.skipif(not _OLD.is_dir(), reason="PostgreSQL 15 is not installed")
async def test_the_oldest_supported_version_works_from_a_folder_of_binaries(state, monkeypatch):
    monkeypatch.setenv(binaries.BINDIR_VARIABLE, str(_OLD))
    with EmbeddedPostgres(state, durable=False) as server:
        assert server.version.startswith("15.")
        assert await ask(server, "show server_encoding") == "UTF8"
        assert (
            await ask(server, "select string_agg(x, '' order by x) from unnest(array['b','B','a']) x")
            == "Bab"
        )


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up its privileges")
async def test_a_private_state_folder_is_not_opened_but_its_data_moves_out(monkeypatch, tmp_path):
    private = Path(tempfile.mkdtemp(prefix="ms-test-"))  # 0700, like /root
    shared = Path(tempfile.mkdtemp(prefix="ms-test-"))
    shared.chmod(0o755)
    monkeypatch.setattr(homes, "SHARED", shared)
    try:
        with EmbeddedPostgres(private / "state", durable=False) as server:
            assert server.home.parent == shared
            await ask(server, "create table kept as select 42 as n")
        assert private.stat().st_mode & 0o777 == 0o700
        (private / "state").rename(private / "moved")
        with EmbeddedPostgres(private / "moved", durable=False) as server:
            assert await ask(server, "select n from kept") == 42
    finally:
        shutil.rmtree(private, ignore_errors=True)
        shutil.rmtree(shared, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up its privileges")
def test_a_runtime_behind_a_private_folder_is_copied_once(tmp_path, monkeypatch):
    monkeypatch.delenv(binaries.BINDIR_VARIABLE, raising=False)
    private = Path(tempfile.mkdtemp(prefix="ms-test-"))
    shared = Path(tempfile.mkdtemp(prefix="ms-test-"))
    shared.chmod(0o755)
    try:
        package = binaries.originals().parents[1]
        for name in (package.name, f"{package.name}.libs"):
            if package.with_name(name).is_dir():
                shutil.copytree(package.with_name(name), private / name, symlinks=True)
        hidden = private / package.name / binaries.originals().parent.name / "bin"
        monkeypatch.setattr(binaries, "originals", lambda: hidden)
        account = processes.Account(uid=65534, gid=65534, drop=True)
        found = binaries.find(account, shared)
        assert found.folder.is_relative_to(shared)
        assert binaries.find(account, shared).folder == found.folder
        assert private.stat().st_mode & 0o777 == 0o700
    finally:
        shutil.rmtree(private, ignore_errors=True)
        shutil.rmtree(shared, ignore_errors=True)
