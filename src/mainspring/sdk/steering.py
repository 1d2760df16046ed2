"""What is said in a run's topic while the run goes on: a session of the run's own, begun when the handler asks for the first time.

Takes the run's client; leaves each message acked when the handler asks for the next one, the last when its run has come to an end, and
the session ended with it. What was not read is left to the agent's next session, and so is the one that the handler had in hand when it
raised, or when the process died here: it comes again, or, when that has happened five times, is a dead letter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Literal, TypeAlias

from mainspring.sdk import sessions
from mainspring.sdk.client import FOR_EVER, Client
from mainspring.sdk.errors import Conflict, MainspringError, SessionDisplaced, SessionLost
from mainspring.sdk.messages import Message
from mainspring.sdk.sessions import Delivery, Known, Session

_log = logging.getLogger("mainspring.sdk")

LIVE = "session_live"
ENDED = "the run's handler has ended"
LAST_ACK_SECONDS = 10.0  # how long a run's result waits for a server that is away to hear what was read
# How its run has ended, for the message that the handler has in hand: it is done with that, it begins again, or it failed, maybe over it.
Ending: TypeAlias = Literal["handled", "again", "failed"]


class Steering:
    """The session of one run. `of_card`: it reads its card's topic, and stands in nobody's way but an earlier attempt's."""

    def __init__(self, client: Client, *, of_card: bool) -> None:
        self._client = client
        self._of_card = of_card
        self._known = Known()
        self._in_hand: Delivery | None = None
        self._session: Session | None = None
        self._displaced = False
        self._beating: asyncio.Task[None] | None = None

    async def read(self) -> AsyncIterator[Message]:
        """Yield what has come meanwhile, each acked when the next is asked for; end when there is nothing more.

        A session that was displaced is not taken back.
        """
        while not self._displaced:
            try:
                session = self._session or await self._begin()
                if session is None:
                    return
                await self._put_down()
                held = await sessions.inbox(self._client, session, wait_seconds=0)
                if not held:
                    return
                for delivery in held:
                    self._in_hand = delivery
                    if delivery not in self._known:
                        self._known.add([delivery])
                        yield delivery.message
                    await self._put_down()
            except SessionDisplaced as displaced:
                _log.warning("steering: it reads no more: %s", displaced)
                self._displaced = True
                await self._forget()
            except SessionLost as lost:
                _log.warning("steering: another session is begun: %s", lost)
                await self._forget()

    async def close(self, ending: Ending = "again") -> None:
        """End the session, if there is one: what the handler has in hand is acked, or comes again, when it had failed at a price."""
        session = self._session
        try:
            if session is not None:
                with contextlib.suppress(MainspringError):
                    if ending == "handled":
                        await self._put_down(patience_seconds=LAST_ACK_SECONDS)
                    errored = ending == "failed" and self._in_hand is not None
                    await sessions.end(self._client, session, reason=ENDED, errored=errored)
        finally:
            await self._forget()

    async def _put_down(self, *, patience_seconds: float = FOR_EVER) -> None:
        """Ack what the handler had in hand."""
        if self._in_hand is not None and self._session is not None:
            read = [self._in_hand.id]
            await sessions.ack(self._client, self._session, read, patience_seconds=patience_seconds)
        self._in_hand = None

    async def _begin(self) -> Session | None:
        """Return a session that has begun; None when the agent's own reads all that this run could."""
        try:
            self._session = await sessions.start(self._client, None, takeover=self._of_card)
        except Conflict as refused:
            if refused.code != LIVE:
                raise
            return None
        self._beating = asyncio.create_task(self._beat(self._session), name="keep the run's session")
        return self._session

    async def _beat(self, session: Session) -> None:
        """Keep the session between two readings. One that is lost is found to be by whoever reads next."""
        with contextlib.suppress(MainspringError):
            while True:
                await asyncio.sleep(session.heartbeat_seconds)
                await sessions.beat(self._client, session)

    async def _forget(self) -> None:
        beating, self._beating, self._session = self._beating, None, None
        self._in_hand = None  # if it was not acked it comes again, and is known
        if beating is not None:
            beating.cancel()
            await asyncio.wait({beating})
