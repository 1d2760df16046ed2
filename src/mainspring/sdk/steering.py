"""What is said in a run's topic while the run goes on: a session of the run's own, begun when the handler asks for the first time.

Takes the run's client; leaves each message acked before the handler has it, and the session ended when the run is. What was not read is
left to the agent's next session. If the process dies here, the lease ends the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from mainspring.sdk import sessions
from mainspring.sdk.client import Client
from mainspring.sdk.errors import Conflict, MainspringError, SessionDisplaced, SessionLost
from mainspring.sdk.messages import Known, Message
from mainspring.sdk.sessions import Session

_log = logging.getLogger("mainspring.sdk")

LIVE = "session_live"


class Steering:
    """The session of one run. `of_card`: it reads its card's topic, and stands in nobody's way but an earlier attempt's."""

    def __init__(self, client: Client, *, of_card: bool) -> None:
        self._client = client
        self._of_card = of_card
        self._known = Known()
        self._session: Session | None = None
        self._displaced = False
        self._beating: asyncio.Task[None] | None = None

    async def read(self) -> AsyncIterator[Message]:
        """Yield what has come meanwhile, each acked as it is read on; end when there is nothing more.

        A session that was displaced is not taken back.
        """
        while not self._displaced:
            try:
                session = self._session or await self._begin()
                if session is None:
                    return
                held = await sessions.inbox(self._client, session, wait_seconds=0)
                if not held:
                    return
                for delivery in held:
                    await sessions.ack(self._client, session, [delivery.id])
                    if delivery.message not in self._known:
                        self._known.add([delivery.message])
                        yield delivery.message
            except SessionDisplaced as displaced:
                _log.warning("steering: it reads no more: %s", displaced)
                self._displaced = True
                await self._forget()
            except SessionLost as lost:
                _log.warning("steering: another session is begun: %s", lost)
                await self._forget()

    async def close(self) -> None:
        """End the session, if there is one."""
        session = self._session
        await self._forget()
        if session is not None:
            with contextlib.suppress(MainspringError):
                await sessions.end(self._client, session, reason="the run's handler has ended")

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
        if beating is not None:
            beating.cancel()
            await asyncio.wait({beating})
