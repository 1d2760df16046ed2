"""Keeps the runs and sessions we hold ours: a thread of its own, with its own connection, that a busy event loop cannot starve.

Takes claims to hold; sends a heartbeat for each every third of its lease, and tells what the answers mean. One that waits for people
asks more often, since somebody waits with it. If the whole
process dies, the beats stop, the leases run out and the server gives the runs another attempt. If only the handler
hangs, `until` ends the beats: our own clock may make us give a run up, it never makes us keep one. A claim whose beats end is
lost only if the server has said so: every other is still the server's to us, and whoever stops working on it completes it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import httpx

from mainspring.sdk.backoff import delay_seconds
from mainspring.sdk.errors import ClaimLost, NotFound, Refused, SessionLost, Unreachable
from mainspring.sdk.profile import Profile
from mainspring.sdk.protocol import AskNow, Beat, beat
from mainspring.sdk.wire import API, read_answer, tls

_log = logging.getLogger("mainspring.sdk")

FOR_EVER = float("inf")
ASKING_SECONDS = 3.0  # between two beats of a claim that waits for an answer
ASKS_MAX = 100  # that one beat may name; of more, each beat names the next


class Kept(Protocol):
    """What a lease holds as long as heartbeats come: a claimed run, or a session."""

    @property
    def claim_id(self) -> str: ...
    @property
    def heartbeat_seconds(self) -> float: ...
    @property
    def what(self) -> str: ...
    def beat_request(self, asks: Sequence[str]) -> tuple[str, dict[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """Somebody wants the run to stop."""


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """The server asks this runner to take no more."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The server says that it is not ours any more; `code` is its word for it."""

    reason: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Overdue:
    """Its time is up and its handler has not ended: we have stopped keeping it, and the server does not know."""


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """The server refuses its heartbeats, and has not taken it back."""

    reason: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Heard:
    """A question of the run is over."""

    ask: AskNow


@dataclass(frozen=True, slots=True)
class Broken:
    """The thread met an error of its own and has ended: nothing is kept any more."""

    error: Exception


News: TypeAlias = CancelAsked | DrainAsked | Heard | Lost | Overdue | TurnedAway | Broken
Tell: TypeAlias = Callable[[str | None, News], None]  # claim id (None: all of them), what happened


@dataclass(slots=True)
class _Held:
    claimed: Kept
    next_at: float
    until: float
    failures: int = field(default=0)
    asks: dict[str, None] = field(default_factory=dict)  # in the order in which the beats name them

    @property
    def every_seconds(self) -> float:
        """How often it beats."""
        usual = self.claimed.heartbeat_seconds
        return min(usual, ASKING_SECONDS) if self.asks else usual


class Liveness:
    """The thread and the claims it holds. `tell` is called in the thread."""

    def __init__(
        self, profile: Callable[[], Profile], tell: Tell, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`profile` is asked before each beat: its token may have been replaced."""
        self._profile = profile
        self._tell = tell
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._http = httpx.Client(verify=tls(), timeout=10.0)

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._loop, name="mainspring-liveness", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the beat it is in, and give its connection back."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._http.close()

    def hold(self, claimed: Kept, *, for_seconds: float = FOR_EVER) -> None:
        """Keep this claim for at most so long; called again, the newer limit counts."""
        now = self._clock()
        with self._changed:
            held = self._held.get(claimed.claim_id)
            if held is None:
                self._held[claimed.claim_id] = _Held(
                    claimed, now + claimed.heartbeat_seconds, now + for_seconds
                )
            else:
                held.until = now + for_seconds
            self._changed.notify()

    def listen(self, claim_id: str, ask_id: str) -> None:
        """Let the beats of this claim fetch the answer to its question."""
        with self._changed:
            if (held := self._held.get(claim_id)) is not None:
                held.asks[ask_id] = None
                held.next_at = min(held.next_at, self._clock() + held.every_seconds)
            self._changed.notify()

    def release(self, claim_id: str) -> None:
        """Keep it no longer: it is completed, or not ours."""
        with self._changed:
            self._held.pop(claim_id, None)

    def run_once(self) -> None:
        """Send every beat that is due."""
        now = self._clock()
        with self._changed:
            due = sorted(
                (held for held in self._held.values() if held.next_at <= now), key=lambda held: held.next_at
            )
        for held in due:
            if held.until <= self._clock():
                self._let_go(held, Overdue())
            else:
                self._beat(held)

    def _loop(self) -> None:
        try:
            while not self._stopping:
                self.run_once()
                with (
                    self._changed
                ):  # looked at under the lock that `hold` notifies under, so no new claim is slept over
                    next_at = min((held.next_at for held in self._held.values()), default=FOR_EVER)
                    if not self._stopping:
                        self._changed.wait(
                            timeout=min(max(0.0, next_at - self._clock()), threading.TIMEOUT_MAX)
                        )
        except Exception as error:  # noqa: BLE001 - told to the runner, which ends for it: silence would lose every lease
            self._tell(None, Broken(error))

    def _beat(self, held: _Held) -> None:
        claimed = held.claimed
        try:
            said = self._send(held)
        except Unreachable as error:
            held.failures += 1
            wait = delay_seconds(held.failures, random.random(), at_least=error.retry_after_seconds)  # noqa: S311
            held.next_at = self._clock() + min(wait, claimed.heartbeat_seconds)
            _log.log(
                logging.WARNING if held.failures == 1 else logging.DEBUG,
                "%s: heartbeat not answered, working on: %s",
                claimed.what,
                error,
            )
        except (ClaimLost, SessionLost, NotFound) as lost:
            self._let_go(held, Lost(str(lost), lost.code))
        except Refused as refused:
            self._let_go(held, TurnedAway(str(refused), refused.code))
        else:
            held.failures = 0
            with self._changed:
                for one in said.answers:
                    held.asks.pop(one.id, None)
                held.next_at = self._clock() + held.every_seconds
            if said.cancel:
                self._tell(claimed.claim_id, CancelAsked())
            for one in said.answers:
                self._tell(claimed.claim_id, Heard(one))
            if said.drain:
                self._tell(None, DrainAsked())

    def _send(self, held: _Held) -> Beat:
        claimed = held.claimed
        with self._changed:
            asks = list(held.asks)[:ASKS_MAX]
            for ask in asks:  # behind the others
                held.asks[ask] = held.asks.pop(ask)
        path, body = claimed.beat_request(asks)
        # No answer within a beat is no answer: the next claim's beat must not wait longer behind this one.
        timeout = max(1.0, min(10.0, claimed.heartbeat_seconds))
        profile = self._profile()
        headers = {"authorization": f"Bearer {profile.token}"}
        try:
            answer = self._http.post(profile.url + API + path, json=body, headers=headers, timeout=timeout)
        except httpx.TransportError as error:
            raise Unreachable(f"{type(error).__name__} {error}".rstrip()) from error
        return beat(read_answer(answer.status_code, answer.content, answer.headers))

    def _let_go(self, held: _Held, why: Lost | Overdue | TurnedAway) -> None:
        with self._changed:
            if self._held.pop(held.claimed.claim_id, None) is None:
                return  # released while its beat was on the way: the answer speaks of a run that is over
        self._tell(held.claimed.claim_id, why)
