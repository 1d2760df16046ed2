"""Children that die with us, and what the kernel says about a process that somebody else left behind.

Takes a command line, leaves a child in its own session (Ctrl-C in our terminal does not reach it) that the kernel
signals when we die. If we die here, between fork and exec, the child notices that it was orphaned and leaves.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mainspring.embedded.problems import EmbeddedError

_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.02
_REAPED_SECONDS = 2.0
PLAIN_ENVIRONMENT = {
    "PATH": os.defpath,
    "LC_ALL": "C",
    "TZ": "UTC",
}  # none of the caller's PGDATA, PGPORT, LANG
_LIBC = ctypes.CDLL(None, use_errno=True) if _LINUX else None


@dataclass(frozen=True, slots=True)
class Account:
    """The operating-system user that a child runs as; `drop` says that it is not ours, so privileges are given up."""

    uid: int
    gid: int
    drop: bool


@dataclass(frozen=True, slots=True)
class Gone:
    """No such process."""


@dataclass(frozen=True, slots=True)
class Zombie:
    """Dead, but its parent has not asked for its exit status yet. It answers to kill(pid, 0) like a living one."""


@dataclass(frozen=True, slots=True)
class Alive:
    """Running, with the command line it was started with."""

    argv: tuple[str, ...]


def inspect(pid: int) -> Gone | Zombie | Alive:
    """What the kernel knows about `pid`. Without /proc (macOS) the living have an unknown, empty command line."""
    if not Path("/proc/self/stat").exists():
        return _inspect_by_signal(pid)
    try:
        # The second field is the program's name in parentheses and may itself hold spaces and parentheses.
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        argv = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return Gone()
    if state in {"Z", "X"}:
        return Zombie()
    return Alive(tuple(os.fsdecode(part) for part in argv.split(b"\0") if part))


def birth(pid: int) -> str | None:
    """When `pid` began, as a text that no other process with this id ever has; None when it is gone, or there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        ticks = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
    return f"{boot}/{ticks}"


def _inspect_by_signal(pid: int) -> Gone | Alive:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return Gone()
    except PermissionError:
        return Alive(())
    return Alive(())


def spawn(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    stdout: int | IO[bytes],
    death_signal: signal.Signals,
    account: Account | None = None,
    cwd: str | Path = "/",
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a child in its own session, stderr joined to stdout, that gets `death_signal` when we die.

    It inherits `pass_fds`, under the same numbers, and no other open file of ours.

    The kernel ties that signal to the *thread* that forks, so this refuses to run anywhere but in the main thread:
    from a worker thread the child would be shut down the moment that thread ends.
    """
    if not _in_main_thread():
        raise EmbeddedError(
            "a child must be started from the main thread, or it dies with the thread that started it"
        )
    drop = account if account is not None and account.drop else None
    return subprocess.Popen(
        [os.fspath(part) for part in argv],
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        user=drop.uid if drop else None,
        group=drop.gid if drop else None,
        extra_groups=[] if drop else None,
        pass_fds=pass_fds,
        preexec_fn=_tie_to_parent(death_signal),  # noqa: PLW1509 - started from a process with one thread
    )


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _tie_to_parent(death_signal: signal.Signals) -> Callable[[], None] | None:
    if _LIBC is None:
        return None
    libc, parent, number = _LIBC, os.getpid(), int(death_signal)

    def tie() -> (
        None
    ):  # runs in the child, after the change of user (which would clear the wish) and before exec
        libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the wish was registered
            os._exit(1)

    return tie


def run(argv: Sequence[str | Path], *, account: Account) -> subprocess.CompletedProcess[str]:
    """Run a program to its end as that account, in no folder and no environment of ours. Killed if we are."""
    return subprocess.run(
        [os.fspath(part) for part in argv],
        user=account.uid if account.drop else None,
        group=account.gid if account.drop else None,
        extra_groups=[] if account.drop else None,
        cwd="/",
        env=PLAIN_ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=_tie_to_parent(signal.SIGKILL) if _in_main_thread() else None,
    )


def stop(child: subprocess.Popen[bytes], ladder: Sequence[tuple[signal.Signals, float]]) -> None:
    """Ask with each (signal, grace in seconds) in turn until the child is gone; reaps it."""
    for number, grace_seconds in ladder:
        if child.poll() is not None:
            return
        child.send_signal(number)
        try:
            child.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            continue


def end_strangers(
    pids: Mapping[str, int], births: Mapping[str, str], *, word: str, grace_seconds: float
) -> None:
    """Wait for processes that are not our children, and kill those that outlast the grace; return when they are gone.

    Only those that were born when `births` says, and whose command line holds `word`: a process id may belong to somebody else by
    now, to another Mainspring or to ourselves. Of whom no birth is known nobody is ended.
    """

    def is_meant(name: str, pid: int) -> bool:
        if pid == os.getpid() or name not in births or births[name] != birth(pid):
            return False
        match inspect(pid):
            case Alive(argv):
                return word in argv
            case _:
                return False

    until = time.monotonic() + grace_seconds
    for name, pid in pids.items():
        while is_meant(name, pid) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        if is_meant(name, pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            _wait_until_reaped(pid)


def _wait_until_reaped(pid: int) -> None:
    """Wait for a process that was killed: as long as any thread of it is ending it has its port, and may look like a zombie."""
    until = time.monotonic() + _REAPED_SECONDS  # where nobody reaps orphans it stays one
    while not isinstance(inspect(pid), Gone) and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
