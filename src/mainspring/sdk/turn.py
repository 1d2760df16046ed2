"""One turn of an agent that is always on: one message, the handler that reads it, and what became of it.

Takes a delivery that the session holds; leaves it acked, with the steers that the handler read meanwhile, or refused with the error, or
untouched when the handler was stopped: then it is offered again. If the process dies here, it is offered again, too, and the same
replies are not posted twice.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal, TypeAlias

from mainspring.sdk import sessions
from mainspring.sdk.client import Client
from mainspring.sdk.errors import SessionLost
from mainspring.sdk.execution import NUDGE_SECONDS, Ending, Raised, Returned, guarded
from mainspring.sdk.messages import Message, Reply
from mainspring.sdk.sessions import Delivery, Known, Session

_log = logging.getLogger("mainspring.sdk")

MessageHandler: TypeAlias = Callable[[Message, Reply], Awaitable[object]]
Stop: TypeAlias = Literal["drain", "displaced", "timeout"]


@dataclass(frozen=True, slots=True)
class Listener:
    """An agent that is always on, for how long it may read one message, and what reads."""

    slots: ClassVar[int] = 1
    handle: str
    timeout_seconds: float
    handler: MessageHandler = field(repr=False)


class Turn:
    """A turn being taken. `stop` may be called at any time, from the loop's thread."""

    def __init__(
        self, listener: Listener, client: Client, session: Session, known: Known, first: Delivery
    ) -> None:
        self._listener = listener
        self._client = client
        self._session = session
        self._known = known
        self._first = first
        self.read = [first]
        self._why: Stop | None = None
        self._handling: asyncio.Task[Ending] | None = None
        self._nudging: asyncio.TimerHandle | None = None

    def stop(self, why: Stop) -> None:
        """Ask the handler to end. It is cancelled, and again now and then while it does not."""
        if self._why is None:
            self._why = why
            self._nudge()

    async def take(self) -> None:
        """Begin the turn, let the handler read, say what became of it, and settle. Raises SessionLost."""
        await sessions.begin_turn(self._client, self._session)
        ending = await self._handle()
        deliveries = [delivery.id for delivery in self.read]
        match ending:
            case Returned():
                self._known.add(self.read)
                await sessions.ack(self._client, self._session, deliveries)
            case Raised(error) if self._why not in ("drain", "displaced"):
                said = self._said(error)
                _log.error("%s: message %s is refused: %s", self._session.what, self._first.message.id, said)
                await sessions.nack(self._client, self._session, deliveries, said)
            case Raised():
                _log.info("%s: message %s is left unread", self._session.what, self._first.message.id)
        await sessions.settle_turn(self._client, self._session)

    async def _handle(self) -> Ending:
        if self._why is not None:  # asked to stop before it began
            return Raised(asyncio.CancelledError())
        message = replace(self._first.message, pins=self._session.pins, steers=self._steers)
        reply = Reply(self._client, message, self._first.id, self._session.speaking)
        handler = partial(self._listener.handler, message, reply)
        self._handling = asyncio.create_task(guarded(handler), name=f"{self._listener.handle} {message.id}")
        clock = asyncio.get_running_loop().call_later(self._listener.timeout_seconds, self.stop, "timeout")
        try:
            await asyncio.wait({self._handling})
        finally:
            clock.cancel()
            if self._nudging is not None:
                self._nudging.cancel()
            self._handling.cancel()  # of use only if we ourselves are being cancelled
        return Raised(asyncio.CancelledError()) if self._handling.cancelled() else self._handling.result()

    def _nudge(self) -> None:
        if self._handling is not None and not self._handling.done():
            self._handling.cancel()
            self._nudging = asyncio.get_running_loop().call_later(NUDGE_SECONDS, self._nudge)

    async def _steers(self) -> AsyncIterator[Message]:
        """Yield the steers of this topic that have come, each of them read in this turn."""
        while True:
            taken = {delivery.id for delivery in self.read}
            try:
                held = await sessions.inbox(self._client, self._session, wait_seconds=0)
            except SessionLost:  # whoever comes next is offered them
                return
            topic = self._first.message.topic_id
            new = [d for d in held if d.is_steer and d.message.topic_id == topic and d.id not in taken]
            if not new:
                return
            for delivery in new:
                seen = delivery in self._known
                self.read.append(delivery)
                if not seen:
                    yield delivery.message

    def _said(self, error: BaseException) -> str:
        told = "".join(traceback.format_exception(error))
        if self._why == "timeout":
            return f"timed out after {self._listener.timeout_seconds:g} s\n{told}"
        if isinstance(error, SystemExit):
            return f"the handler left by sys.exit({error.code!r})"
        return told
