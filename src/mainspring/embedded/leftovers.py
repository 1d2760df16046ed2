"""Clears what a killed server left behind, so that the next one may start on the same data.

PostgreSQL recovers from kill -9 by itself, except when the process id in its lock file is a zombie or was given to
another program: it then believes that a server is still there. Deleting the lock file by force also switches off
its check for surviving backends, so that check is made here first. Only called under the home's own lock.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from mainspring.embedded import processes
from mainspring.embedded.problems import EmbeddedError

_SHARED_SEGMENTS = Path("/proc/sysvipc/shm")
_POLL_SECONDS = 0.02


def clear(data: Path, sockets: Path, *, timeout_seconds: float) -> None:
    """Leaves no lock file of a dead server, no orphaned server, and no backend that still holds its memory."""
    pidfile = data / "postmaster.pid"
    until = time.monotonic() + timeout_seconds
    while (pid := _server_pid(pidfile)) is not None and _is_server_on(data, pid):
        _ask_to_stop(pid)
        if time.monotonic() > until:
            raise EmbeddedError(
                f"a PostgreSQL left behind (process {pid}) does not stop: kill it and start again"
            )
        time.sleep(_POLL_SECONDS)
    while (segment := _segment(pidfile)) is not None and _attached(segment):
        if time.monotonic() > until:
            raise EmbeddedError(
                f"backends of a dead PostgreSQL on {data} still hold its memory: kill them and start again"
            )
        time.sleep(_POLL_SECONDS)
    pidfile.unlink(missing_ok=True)
    for stale in sockets.glob(".s.PGSQL.*"):  # the socket's lock file names a process, too
        stale.unlink(missing_ok=True)


def _lines(pidfile: Path) -> list[str]:
    try:
        return pidfile.read_text().splitlines()
    except FileNotFoundError:
        return []


def _server_pid(pidfile: Path) -> int | None:
    match _lines(pidfile):
        case [first, *_] if first.strip().lstrip("-").isdigit():
            return abs(int(first))
        case _:
            return None


def _is_server_on(data: Path, pid: int) -> bool:
    match processes.inspect(pid):
        case processes.Alive(argv):
            return not argv or os.fspath(data) in argv
        case _:
            return False


def _ask_to_stop(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGINT)
    except ProcessLookupError:
        return


def _segment(pidfile: Path) -> int | None:
    """The id of the shared memory segment that every process of that server was attached to (line 7: key, id)."""
    match _lines(pidfile)[6:7]:
        case [line] if len(line.split()) == 2 and line.split()[1].isdigit():
            return int(line.split()[1])
        case _:
            return None


def _attached(segment: int) -> bool:
    try:
        rows = _SHARED_SEGMENTS.read_text().splitlines()[1:]
    except (FileNotFoundError, PermissionError):
        return False  # not Linux: PostgreSQL's own check is all there is
    for row in rows:
        columns = row.split()  # key shmid perms size cpid lpid nattch ...
        if int(columns[1]) == segment:
            return int(columns[6]) > 0
    return False
