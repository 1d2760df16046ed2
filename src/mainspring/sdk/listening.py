"""An agent that is always on: one session after the other, and in it one message after the other, each in a turn of its own.

Takes a listener; leaves every message that is owed to its agent read and acked, or refused with a reason, and its session ended. What is
held when it stops, or dies, is offered to the agent's next session. One that another session has displaced does not come back: two
programs that take an agent from each other would read everything twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

from mainspring.sdk import sessions
from mainspring.sdk.backoff import delay_seconds
from mainspring.sdk.client import Client
from mainspring.sdk.errors import Conflict, MainspringError, SessionDisplaced, SessionLost
from mainspring.sdk.execution import UNRESPONSIVE_SECONDS
from mainspring.sdk.liveness import Liveness
from mainspring.sdk.sessions import Delivery, Known, Session
from mainspring.sdk.turn import Listener, Turn

_log = logging.getLogger("mainspring.sdk")

LIVE = "session_live"
DISPLACED = "session_displaced"
LAST_ANSWER_SECONDS = 2.0  # how long one that stops waits for the session that it has asked for
STANDBY_SECONDS = 5.0  # between two looks whether the other session is gone
TOO_SOON_SECONDS = 1.0
LOOK_SECONDS = 1.0  # how old what was polled may be before the next turn looks for steers again

T = TypeVar("T")


class Listening:
    """One listener at work, until `drained` is set. `stop` ends the turn that is under way, too."""

    def __init__(
        self,
        listener: Listener,
        client: Client,
        liveness: Liveness,
        drained: asyncio.Future[None],
        *,
        wait_seconds: float,
    ) -> None:
        self._listener = listener
        self._client = client
        self._liveness = liveness
        self._drained = drained
        self._wait_seconds = wait_seconds
        self._loop = asyncio.get_running_loop()
        self._known = Known()
        self._session: Session | None = None
        self._turn: Turn | None = None

    @property
    def claim_id(self) -> str | None:
        """The claim that it holds now."""
        return None if self._session is None else self._session.claim_id

    def stop(self) -> None:
        """Let the turn that is under way end at once; what it was reading is offered again."""
        if self._turn is not None:
            self._turn.stop("drain")

    def lost(self, code: str) -> None:
        """Take that a heartbeat was refused. Who was displaced stops; who was lost finishes, and begins another session."""
        if code == DISPLACED and self._turn is not None:
            self._turn.stop("displaced")

    async def serve(self, *, once: bool = False) -> None:
        """Read until drained, or `once`: what there is within one wait. Raises NotAuthorized, NotFound."""
        lost = 0
        while (session := await self._begin()) is not None:
            began_at = self._loop.time()
            try:
                await self._attend(session, once=once)
            except SessionDisplaced as displaced:
                _log.error("%s: it reads no more: %s", session.what, displaced)
                return
            except SessionLost as gone:
                _log.warning("%s: another is begun: %s", session.what, gone)
            else:
                return
            lost = lost + 1 if self._loop.time() - began_at < session.heartbeat_seconds else 0
            if lost:
                await self._rest(lost)

    async def _begin(self) -> Session | None:
        """Return a session that has begun; None when it is time to stop. While another lives, stand by."""
        standing_by = False
        while not self._drained.done():
            asking = asyncio.create_task(sessions.start(self._client, self._listener.handle))
            try:
                await first_of(asking, self._drained)
                if (
                    not asking.done()
                ):  # its answer may be under way, with a session that nobody else would end
                    await asyncio.wait({asking}, timeout=LAST_ANSWER_SECONDS)
                if not asking.done():
                    return None
                return asking.result()
            except Conflict as refused:
                if refused.code != LIVE:
                    raise
                if not standing_by:
                    _log.warning("agent %s: standing by: %s", self._listener.handle, refused)
                    standing_by = True
                await self._unless_drained(asyncio.sleep(STANDBY_SECONDS))
            finally:
                asking.cancel()
                await asyncio.wait({asking})
        return None

    async def _attend(self, session: Session, *, once: bool) -> None:
        """Read in this session until drained; then end it. Raises SessionLost, and then there is nothing to end."""
        _log.info("%s: begun, %d messages wait", session.what, session.owed)
        self._session = session
        self._liveness.hold(session)
        ended = False
        try:
            await self._read(session, once=once)
        except SessionLost:
            ended = True
            raise
        finally:
            self._liveness.release(session.claim_id)
            self._session = None
            if not ended:
                with contextlib.suppress(MainspringError):
                    await sessions.end(self._client, session, reason="the program stops")
                _log.info("%s: ended", session.what)

    async def _read(self, session: Session, *, once: bool) -> None:
        too_soon = 0
        while not self._drained.done():
            asked_at = self._loop.time()
            held = await self._unless_drained(
                sessions.inbox(self._client, session, wait_seconds=self._wait_seconds)
            )
            if held is None:
                return
            if held:
                too_soon = 0
                await self._take_turns(session, held)
            if once:
                return
            if not held and self._loop.time() - asked_at < TOO_SOON_SECONDS:
                # A server that is closing answers at once: asking it in a circle would keep it busy.
                too_soon += 1
                await self._rest(too_soon)

    async def _take_turns(self, session: Session, held: list[Delivery]) -> None:
        """Take turn after turn, steers first, until all is read, or what is held is to be looked at again: a steer may have come."""
        look_at = self._loop.time() + LOOK_SECONDS
        waiting = sorted(held, key=lambda delivery: not delivery.is_steer)
        while waiting and not self._drained.done():
            delivery = waiting.pop(0)
            if delivery in self._known:
                await sessions.ack(self._client, session, [delivery.id])
                continue
            turn = self._turn = Turn(self._listener, self._client, session, self._known, delivery)
            self._liveness.hold(session, for_seconds=self._listener.timeout_seconds + UNRESPONSIVE_SECONDS)
            try:
                await turn.take()
            finally:
                self._turn = None
                self._liveness.hold(session)
            read = {one.id for one in turn.read}
            waiting = [one for one in waiting if one.id not in read]
            if self._loop.time() >= look_at:
                return

    async def _rest(self, failures: int) -> None:
        rest = min(delay_seconds(failures, random.random()), TOO_SOON_SECONDS)  # noqa: S311
        await self._unless_drained(asyncio.sleep(rest))

    async def _unless_drained(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return what the work returns; None when it was cut short by the drain."""
        task = asyncio.create_task(work)
        try:
            await first_of(task, self._drained)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            await asyncio.wait({task})


async def first_of(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
    """Wait until one of them is done. None is cancelled, nor is its error raised."""
    await asyncio.wait(set(futures), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
