"""Keeps the programs of `mainspring dev` running, and takes them all down with it.

Takes a database and a fabric (ours, or none when the user gave an address) and a list of programs; leaves them running, restarts
what dies, and returns when it is told to stop, with nothing left behind. If we die here, even by SIGKILL, the kernel
signals every child. One thread, the main one: the kernel's signal is bound to the thread that started a child.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from mainspring.embedded import processes
from mainspring.embedded.backoff import Backoff
from mainspring.embedded.logtail import LogTail
from mainspring.embedded.nats import EmbeddedNats
from mainspring.embedded.postgres import EmbeddedPostgres
from mainspring.embedded.problems import EmbeddedError

_POLL_SECONDS = 0.1
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DATABASE_TRIES = 5
_ONE_PRESS_SECONDS = 0.5
_FABRIC_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One child to keep running."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    only_first: Mapping[str, str] = field(
        default_factory=dict
    )  # variables of the first start (an armed fault)
    is_ready: Callable[[], bool] | None = None  # None: ready as soon as it runs
    grace_seconds: float = 12.0
    pass_fds: tuple[int, ...] = ()  # open files that each of its processes inherits
    essential: bool = True  # when it cannot start at all, neither can we
    stage: int = 0  # the highest stage is stopped first, all of one stage together


class CannotStart(EmbeddedError):
    """An essential program died again and again before it was ever ready."""


class Supervisor:
    """`start` programs, then `watch` until a signal comes, then `stop`. Not reusable."""

    def __init__(
        self,
        *,
        database: EmbeddedPostgres | None,
        fabric: EmbeddedNats | None = None,
        logs: Path,
        tell: Callable[[str], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`tell` gets lines for the terminal; `changed` is called after any process died or was started again."""
        self._database = database
        self._fabric = fabric
        self._fabric_at = 0.0  # not before then is it started again
        self._changed = changed
        self._in_stop = False
        self._asked_at = 0.0
        self._logs = logs
        self._tell = tell
        self._children: list[_Child] = []
        self._stopping = False
        self._impatient = False
        self.restarts = 0

    # ------------------------------------------------------------------ what the caller does

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Signals ask us to stop, for as long as the block runs; a second Ctrl-C kills what is left at once."""
        reader, writer = socket.socketpair()
        reader.setblocking(False)  # noqa: FBT003
        writer.setblocking(False)  # noqa: FBT003
        wanted = dict.fromkeys(_STOP_SIGNALS, self._asked_to_stop) | {signal.SIGCHLD: _noted}
        before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
        old_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._wake = reader
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in before.items():
                signal.signal(number, handler)
            reader.close()
            writer.close()

    def start(self, program: Program) -> None:
        """Start one more program and keep it running."""
        child = _Child(program, self._logs / f"{program.name}.log")
        self._children.append(child)
        child.launch()

    def wait_ready(self, *, timeout_seconds: float = 60.0) -> bool:
        """Until all are ready (True) or we were told to stop (False). Raises CannotStart."""
        until = time.monotonic() + timeout_seconds
        while not self._stopping:
            if all(child.ready for child in self._children):
                return True
            if time.monotonic() > until:
                late = ", ".join(child.program.name for child in self._children if not child.ready)
                raise CannotStart(f"not ready after {timeout_seconds:.0f} s: {late} (see {self._logs})")
            self._round()
        return False

    def watch(self) -> None:
        """Keep everything running until a signal asks us to stop."""
        while not self._stopping:
            self._round()

    @property
    def stopping(self) -> bool:
        """Whether somebody asked us to stop."""
        return self._stopping

    def pids(self) -> dict[str, int]:
        """The process id of every child that runs, by name."""
        running = {c.program.name: c.process.pid for c in self._children if c.process is not None}
        if self._database is not None and self._database.poll() is None:
            running["postgres"] = self._database.pid
        if self._fabric is not None and self._fabric.poll() is None:
            running["nats"] = self._fabric.pid
        return running

    def stop(self) -> None:
        """Stop all, stage by stage from the highest, then the fabric and the database. Idempotent."""
        self._stopping = self._in_stop = True
        for stage in sorted({child.program.stage for child in self._children}, reverse=True):
            self._stop_together([child for child in self._children if child.program.stage == stage])
        for server in (self._fabric, self._database):
            if server is not None:
                server.stop()

    def _stop_together(self, children: list[_Child]) -> None:
        asked_at = time.monotonic()
        for child in children:
            child.ask_to_stop()
        for child in children:
            while (
                child.is_running()
                and not self._impatient
                and time.monotonic() < asked_at + child.program.grace_seconds
            ):
                self._pause()
            if child.is_running():
                self._tell(f"{child.program.name}: did not stop in time, killed")
            child.finish()
            self._show(child)

    # ------------------------------------------------------------------ one round

    def _round(self) -> None:
        self._pause()
        self._keep_database()
        self._keep_fabric()
        for child in self._children:
            self._show(child)
            if child.is_running():
                self._note_readiness(child)
            elif child.restart_at is None:
                self._bury(child)
            elif time.monotonic() >= child.restart_at:
                child.launch()
                self._changed()

    def _pause(self) -> None:
        """Sleep until a signal (a child's death included) or the next round."""
        select.select([self._wake], [], [], _POLL_SECONDS)
        with contextlib.suppress(BlockingIOError):
            while self._wake.recv(4096):
                pass

    def _keep_database(self) -> None:
        if self._database is None or (status := self._database.poll()) is None:
            return
        self.restarts += 1
        self._tell(f"postgres: {how_it_ended(status)}, starting it again")
        for attempt in range(1, _DATABASE_TRIES + 1):
            try:
                self._database.start()
            except EmbeddedError as error:
                if attempt == _DATABASE_TRIES:
                    raise
                self._tell(f"postgres: {error}; trying again")
                self._pause()
            else:
                self._tell(f"postgres: ready again (restart {self.restarts})")
                self._changed()
                return

    def _keep_fabric(self) -> None:
        """Start the fabric again when it has died. Work goes on without it, so one that will not start is tried later, for ever."""
        fabric = self._fabric
        if fabric is None or (status := fabric.poll()) is None or time.monotonic() < self._fabric_at:
            return
        self.restarts += 1
        self._tell(f"nats: {how_it_ended(status)}, starting it again")
        try:
            fabric.start()
        except EmbeddedError as error:
            self._fabric_at = time.monotonic() + _FABRIC_PAUSE_SECONDS
            self._tell(
                f"nats: {error}; work goes on by the tick, trying again in {_FABRIC_PAUSE_SECONDS:.0f} s"
            )
        else:
            self._tell(f"nats: ready again (restart {self.restarts})")
            self._changed()

    def _note_readiness(self, child: _Child) -> None:
        if not child.ready and child.answers():
            child.ready = True
            if child.backoff.deaths:
                self._tell(f"{child.program.name}: ready again {child.seconds_down():.1f} s after it died")
            child.was_ever_ready = True

    def _bury(self, child: _Child) -> None:
        """A child died: say so, and decide when to start it again."""
        status = child.reap()
        name, ended = child.program.name, how_it_ended(status)
        delay = child.backoff.died(uptime_seconds=child.uptime_seconds())
        hopeless = child.backoff.hopeless and not child.was_ever_ready
        if hopeless and child.program.essential:
            raise CannotStart(
                f"{name} {ended} {child.backoff.deaths} times before it was ready:\n{child.tail.last()}"
            )
        if child.backoff.hopeless and not child.program.essential:
            child.give_up()
            self._tell(f"{name}: {ended} again and again, given up (see {child.tail.path})")
            return
        child.restart_at = time.monotonic() + delay
        self.restarts += 1
        self._tell(f"{name}: {ended}, starting it again in {delay:.1f} s (restart {child.backoff.total})")
        self._changed()

    def _show(self, child: _Child) -> None:
        for line in child.tail.essential_lines():
            self._tell(f"{child.program.name} │ {line}")

    def _asked_to_stop(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the handler's shape
        now = time.monotonic()
        if self._stopping and now < self._asked_at + _ONE_PRESS_SECONDS:
            return  # a terminal and a process manager may both pass on the same Ctrl-C
        self._impatient, self._stopping, self._asked_at = self._stopping, True, now
        if self._impatient and not self._in_stop:
            raise KeyboardInterrupt  # asked twice while some step would not end


class _Child:
    """A program, the process that runs it now, and its history."""

    def __init__(self, program: Program, log: Path) -> None:
        self.program = program
        self.tail = LogTail(log)
        self.backoff = Backoff()
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = False
        self.was_ever_ready = False
        self.restart_at: float | None = None
        self._started_at = 0.0
        self._died_at = 0.0

    def launch(self) -> None:
        env = dict(self.program.env)
        if self.backoff.total == 0:
            env |= self.program.only_first
        with self.tail.open_for_child() as log:
            self.process = processes.spawn(
                self.program.argv,
                env=env,
                stdout=log,
                death_signal=signal.SIGTERM,
                cwd=Path.cwd(),
                pass_fds=self.program.pass_fds,
            )
        self._started_at, self.restart_at = time.monotonic(), None
        self.ready = self.program.is_ready is None

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def answers(self) -> bool:
        return self.program.is_ready is None or self.program.is_ready()

    def reap(self) -> int:
        status = 0 if self.process is None else self.process.wait()
        self.process, self.ready, self._died_at = None, False, time.monotonic()
        return status

    def uptime_seconds(self) -> float:
        return self._died_at - self._started_at

    def seconds_down(self) -> float:
        return time.monotonic() - self._died_at

    def give_up(self) -> None:
        self.restart_at = float("inf")

    def ask_to_stop(self) -> None:
        if self.process is not None and self.is_running():
            self.process.send_signal(signal.SIGTERM)

    def finish(self) -> None:
        if self.process is not None:
            processes.stop(self.process, [(signal.SIGKILL, 5.0)])
            self.process = None


def how_it_ended(status: int) -> str:
    """A process's exit status in words."""
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-status).name}"
        return f"killed by signal {-status}"
    return f"exited with status {status}"


def _noted(number: int, frame: FrameType | None) -> None:
    """A child died: the wake-up byte is all that is wanted."""
