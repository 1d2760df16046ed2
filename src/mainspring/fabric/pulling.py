"""One standing pull request on a durable consumer, watched by its heartbeats. Leaves what comes in the hand of its subscription.

The client's own fetch does not notice that the server was started again, or that its consumer is gone, and waits its whole time out; this
asks again at once. While there is no room in hand nothing is asked for. If it dies, the consumer's other instances get what it would have.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from mainspring import telemetry
from mainspring.fabric.errors import Refused, Unreachable
from mainspring.fabric.hand import Hand
from mainspring.fabric.link import Link, reaching
from mainspring.fabric.settings import FabricSettings
from mainspring.fabric.tasks import ended
from mainspring.spine.errors import Transient

log = logging.getLogger("mainspring.fabric")

_STALLED_BEATS: Final = 2.5
_STALLS_MAX: Final = 2  # requests that stay silent, until the consumer is looked for
_PAUSE_SECONDS: Final = (0.1, 5.0)
_NANO: Final = 1_000_000_000
_GONE: Final = ("503",)


class JetStreamDelivery:
    """A message of JetStream, as the hand knows deliveries."""

    def __init__(self, message: Msg) -> None:
        self._message = message
        self.subject: str = message.subject
        self.data: bytes = message.data
        self.deliveries: int = message.metadata.num_delivered
        self.place: int = message.metadata.sequence.stream

    async def ack(self) -> None:
        """It is done with."""
        async with reaching():
            await self._message.ack()

    async def nak(self, delay_seconds: float) -> None:
        """Hand it out again, not before the delay."""
        async with reaching():
            await self._message.nak(delay=delay_seconds)

    async def in_progress(self) -> None:
        """It is being worked on: wait on."""
        async with reaching():
            await self._message.in_progress()

    async def term(self) -> None:
        """Never hand it out again."""
        async with reaching():
            await self._message.term()


class Pull:
    """The request, as long as it is wanted."""

    def __init__(
        self,
        link: Link,
        settings: FabricSettings,
        hand: Hand,
        *,
        durable: str,
        ensure: Callable[[], Awaitable[None]],
    ) -> None:
        """`ensure` makes stream and consumer if they are missing. Raises Refused, Unreachable."""
        self._link = link
        self._settings = settings
        self._hand = hand
        self._ensure = ensure
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{settings.names.stream}.{durable}"
        self._left = 0
        self._round = 0
        self._stirred = asyncio.Event()
        self._heard_at = 0.0
        self._gone = False
        self._back = False
        self._denied = False
        self._task: asyncio.Task[None] | None = None
        self.reason = ""

    def start(self) -> None:
        """Begin to ask."""
        self._task = asyncio.create_task(self._run(), name="mainspring fabric pull")

    async def stop(self) -> None:
        """Ask no more, and take no more."""
        await ended(self._task)

    def stir(self) -> None:
        """There may be room now, or none any more."""
        self._stirred.set()

    def reconnected(self) -> None:
        """What was asked on the old connection is forgotten there: ask again at once."""
        self._back = True
        self._stirred.set()

    async def _run(self) -> None:
        pause, longest = _PAUSE_SECONDS
        while True:
            client = await self._link.serving()
            try:
                await self._ensure()
                self.reason = ""
                pause, _ = _PAUSE_SECONDS
                await self._serve(client)
                await self._until_room()
            except (Transient, Refused) as error:
                # Transient and not only Unreachable: the lock under which a consumer is migrated is the database's
                self.reason = str(error) if isinstance(error, Refused) else ""
                log.log(
                    logging.ERROR if isinstance(error, Refused) else logging.INFO,
                    "fabric: not fetching: %s",
                    error,
                )
                await asyncio.sleep(pause)
                pause = min(longest, pause * 2)

    async def _serve(self, client: Client) -> None:
        """Fetch on one connection until the consumer has to be looked for, or there is no room to be seen."""
        self._gone, self._back, self._denied, self._left = False, False, False, 0
        stalls = 0
        inbox = client.new_inbox()
        async with reaching():
            subscription = await client.subscribe(f"{inbox}.*", cb=self._came)
        try:
            while not self._gone and not client.is_closed:
                self._stirred.clear()
                if self._hand.holding:
                    return
                if self._denied:
                    self._denied = False
                    await asyncio.sleep(_PAUSE_SECONDS[0])
                if self._back or (self._left <= 0 and self._hand.room):
                    self._back = False
                    await self._ask(client, inbox)
                if await self._stirs():
                    stalls = 0
                elif self._left > 0 and client.is_connected:
                    stalls += 1
                    telemetry.fabric_rebuilt.labels("request").inc()
                    if stalls >= _STALLS_MAX:
                        return
                    self._back = True
        finally:
            with suppress(Unreachable):
                async with reaching():
                    await subscription.unsubscribe()

    async def _until_room(self) -> None:
        while self._hand.holding:
            self._stirred.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stirred.wait(), self._settings.beat_seconds)

    async def _ask(self, client: Client, inbox: str) -> None:
        room = self._hand.room
        if not room or not client.is_connected:
            return
        self._left = room
        self._round += 1
        self._heard_at = asyncio.get_running_loop().time()
        body = {
            "batch": room,
            "expires": int(self._settings.expires_seconds * _NANO),
            "idle_heartbeat": int(self._settings.beat_seconds * _NANO),
        }
        async with reaching():
            await client.publish(self._subject, json.dumps(body).encode(), reply=f"{inbox}.{self._round}")

    async def _stirs(self) -> bool:
        """Wait until something happens; False when a request has been silent for too long."""
        silence = _STALLED_BEATS * self._settings.beat_seconds
        try:
            await asyncio.wait_for(self._stirred.wait(), silence)
        except TimeoutError:
            return asyncio.get_running_loop().time() - self._heard_at < silence
        return True

    async def _came(self, message: Msg) -> None:
        """Something came for a request: a reference, or how the request does."""
        self._heard_at = asyncio.get_running_loop().time()
        headers: dict[str, Any] = message.headers or {}
        status = headers.get("Status")
        if status is None:  # on the subject that it was published on, whichever request it is for
            self._left -= 1
            self._hand.deliver(JetStreamDelivery(message))
        elif status == "100":
            return
        elif status in _GONE or "Deleted" in headers.get("Description", ""):
            self._gone = True
        elif message.subject.endswith(
            f".{self._round}"
        ):  # the request is over (404, 408), or is not served (409)
            self._left = 0
            self._denied = status == "409"
        if self._left <= 0 or self._gone:
            self._stirred.set()
