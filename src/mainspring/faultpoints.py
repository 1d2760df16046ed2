"""Named places where a test may kill, stop or fail this process; no-ops unless armed.

Arm one with `arm("point[:nth][:kill|stop|raise]")`; it goes off once, at the nth time it is reached. A server process also arms what
MAINSPRING_FAULT names, separated by commas. No other process does: the one that keeps servers running must outlive them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

VARIABLE = "MAINSPRING_FAULT"


class FaultPoint(StrEnum):
    """Every point where dying must lose nothing; the tests kill a process at each of them."""

    APPEND_BEFORE_COMMIT = "append.before_commit"
    APPEND_AFTER_COMMIT = "append.after_commit"
    DRAIN_AFTER_LOCK = "drain.after_lock"
    DRAIN_AFTER_INSERT = "drain.after_insert"
    DRAIN_BEFORE_COMMIT = "drain.before_commit"
    DRAIN_AFTER_COMMIT = "drain.after_commit"
    WORKER_AFTER_CLAIM = "worker.after_claim"
    WORKER_AFTER_EXECUTE = "worker.after_execute"
    WORKER_BEFORE_SETTLE = "worker.before_settle"
    WORKER_AFTER_SETTLE = "worker.after_settle"
    LAUNCH_AFTER_CONSUME = "launch.after_consume"
    LAUNCH_AFTER_RUN = "launch.after_run"
    LAUNCH_BEFORE_COMMIT = "launch.before_commit"
    RUNS_AFTER_CLAIM = "runs.after_claim"
    RUNS_BEFORE_COMPLETE = "runs.before_complete"
    RUNS_AFTER_COMPLETE = "runs.after_complete"
    DESK_AFTER_REPLAY = "desk.after_replay"
    POST_BEFORE_COMMIT = "post.before_commit"
    POST_AFTER_COMMIT = "post.after_commit"
    MESSAGE_SETTLE_BEFORE_COMMIT = "message_settle.before_commit"
    MESSAGE_SETTLE_AFTER_COMMIT = "message_settle.after_commit"
    INBOX_AFTER_OFFER = "inbox.after_offer"
    INBOX_BEFORE_ACK = "inbox.before_ack"
    INBOX_AFTER_ACK = "inbox.after_ack"
    SESSION_AFTER_START = "session.after_start"
    RELAY_BEFORE_PUBLISH = "relay.before_publish"
    RELAY_AFTER_PUBLISH = "relay.after_publish"
    LISTENER_BEFORE_ACK = "listener.before_ack"
    DLQ_AFTER_PUBLISH = "dlq.after_publish"


class FaultRaised(Exception):
    """Raised at a point armed with `raise`."""


class FaultAction(StrEnum):
    """What happens when an armed point is reached."""

    KILL = "kill"
    STOP = "stop"
    RAISE = "raise"


@dataclass(slots=True)
class _Armed:
    point: FaultPoint
    countdown: int
    action: FaultAction


_armed: list[_Armed] = []


def parse(spec: str) -> tuple[FaultPoint, int, FaultAction]:
    """Read `point[:nth][:action]`; raise ValueError, naming the known points, when it is not one."""
    name, *rest = spec.split(":")
    try:
        point = FaultPoint(name)
    except ValueError:
        known = ", ".join(FaultPoint)
        raise ValueError(f"unknown fault point {name!r}; known: {known}") from None
    nth, action = 1, FaultAction.KILL
    for part in rest:
        if part.isdigit() and int(part) > 0:
            nth = int(part)
        else:
            action = FaultAction(part)
    return point, nth, action


def arm(spec: str) -> None:
    """Arm one point, by `point[:nth][:kill|stop|raise]`."""
    point, nth, action = parse(spec)
    _armed.append(_Armed(point, nth, action))


def named_by(environ: Mapping[str, str]) -> list[str]:
    """Return what MAINSPRING_FAULT asks to arm; raise ValueError, naming the known points, when one is none."""
    specs = [spec for spec in environ.get(VARIABLE, "").split(",") if spec]
    for spec in specs:
        parse(spec)
    return specs


def is_armed() -> bool:
    """Tell whether any point is armed."""
    return bool(_armed)


def disarm() -> None:
    """Forget every armed point."""
    _armed.clear()


def reach(point: FaultPoint) -> None:
    """Say that this point is reached; die, stop or raise here when it is armed."""
    for armed in _armed:
        if armed.point is not point:
            continue
        armed.countdown -= 1
        if armed.countdown == 0:
            _armed.remove(armed)
            _go_off(armed)
            return


def _go_off(armed: _Armed) -> None:
    match armed.action:
        case FaultAction.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case FaultAction.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        case FaultAction.RAISE:
            raise FaultRaised(armed.point)
