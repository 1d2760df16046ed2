"""The fabric on NATS JetStream. Takes an address, leaves a port that works whenever NATS does.

If NATS is gone, publishing raises and nothing is fetched; when it is back, requests are made anew and the hooks run. If this process dies,
what it had in hand goes to another instance after the ack wait.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Sequence
from typing import Final, Self
from uuid import UUID

import nats.js.errors
from nats.aio.client import Client

from mainspring import telemetry
from mainspring.fabric import shapes
from mainspring.fabric.errors import NotARef, Unreachable
from mainspring.fabric.hand import Delivery, Hand, printable
from mainspring.fabric.link import Address, Link, jetstream, reaching
from mainspring.fabric.port import Callback, Health, Heard, Hook, Parked, Passed
from mainspring.fabric.pulling import Pull
from mainspring.fabric.refs import EventRef, received
from mainspring.fabric.settings import FabricSettings
from mainspring.fabric.streams import Lock, Streams, no_lock, refuse_without_jetstream
from mainspring.fabric.tasks import ended

log = logging.getLogger("mainspring.fabric")

ORIGINAL_SUBJECT: Final = "Mainspring-Original-Subject"
PARK_REASON: Final = "Mainspring-Park-Reason"
_MESSAGE_ID: Final = "Nats-Msg-Id"
_ADVISORIES: Final = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"
_LOST_CAUSE: Final = "exhausted: handed out as often as may be, and never answered"


class JetStreamFabric:
    """An `EventFabric`; `open` makes one."""

    def __init__(self, address: Address, settings: FabricSettings, *, lock: Lock = no_lock) -> None:
        self.settings = settings
        self._link = Link(address=address, settings=settings)
        self._streams = Streams(settings, lock=lock)
        self._shares: list[JetStreamShare] = []
        self._closed = False

    @classmethod
    async def open(
        cls,
        address: Address,
        settings: FabricSettings | None = None,
        *,
        lock: Lock = no_lock,
        wait_seconds: float = 15.0,
    ) -> Self:
        """Connect, and have the streams as they must be. Where nobody answers in time it goes on trying, and `health` says so.

        Args:
            lock: held while streams of an older release are migrated.
            wait_seconds: how long an unreachable NATS is waited for.

        Raises Refused for what is answered and must not be used: no access, too old, no JetStream, another configuration.
        """
        fabric = cls(address, settings or FabricSettings(), lock=lock)
        try:
            await fabric._link.open(fabric._ready, wait_seconds=wait_seconds)
        except BaseException:
            await fabric._link.close()
            raise
        return fabric

    async def _ready(self, client: Client) -> None:
        js = jetstream(client, self.settings)
        await refuse_without_jetstream(js)
        await self._streams.ensure_stream(js, shapes.events_stream(self.settings))
        await self._streams.ensure_stream(js, shapes.dlq_stream(self.settings))

    # references ---------------------------------------------------------------------------------------------

    async def publish(self, ref: EventRef, *, epoch: int = 0) -> None:
        """Hand over a reference, confirmed."""
        names = self.settings.names
        await self._put(
            names.events(ref.tenant, ref.kind),
            ref.encode(),
            stream=names.stream,
            headers={_MESSAGE_ID: ref.message_id(epoch)},
        )

    async def _put(self, subject: str, data: bytes, *, stream: str, headers: dict[str, str]) -> None:
        async with reaching():
            await self._link.jetstream.publish(subject, data, stream=stream, headers=headers)

    async def subscribe(
        self, subject: str, callback: Callback, *, passed: Passed | None = None
    ) -> JetStreamShare:
        """Share the references of a subject with every other instance that does."""
        if self._closed:
            raise Unreachable("this fabric is closed")
        share = JetStreamShare(
            self, self._link, self._streams, self.settings.names.filter(subject), callback, passed
        )
        self._shares.append(share)
        await share.start()
        return share

    async def subscribe_kind(
        self, kind: str, callback: Callback, *, passed: Passed | None = None
    ) -> JetStreamShare:
        """The same, for one kind of event, of every tenant."""
        return await self.subscribe(self.settings.names.events_of_kind(kind), callback, passed=passed)

    def on_reconnect(self, hook: Hook) -> None:
        """Call `hook` whenever references may have been missed."""
        self._link.on_reconnect(hook)

    # broadcasts ---------------------------------------------------------------------------------------------

    async def broadcast(self, tenant: UUID, topic: str, data: bytes) -> None:
        """Tell every instance that listens now."""
        subject = self.settings.names.broadcast(tenant, topic)
        async with reaching():
            await self._link.client.publish(subject, data)

    async def listen(self, topic: str, heard: Heard) -> None:
        """Call `heard` for every broadcast on a topic."""
        names = self.settings.names

        def came(subject: str, data: bytes) -> None:
            if (tenant := names.tenant_of(subject, topic)) is not None:
                heard(tenant, data)

        await self._link.listen(names.broadcasts(topic), came)

    # what nobody could take ---------------------------------------------------------------------------------

    async def park(self, subject: str, data: bytes, place: int, reason: str) -> None:
        """Put away what nobody could take; confirmed when this returns, and twice is once. Raises Unreachable."""
        digest = hashlib.sha256()
        for part in (subject.encode(errors="replace"), data, str(place).encode()):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        try:
            await self._put(
                self.settings.names.dlq_subject,
                data,
                stream=self.settings.names.dlq_stream,
                headers={
                    _MESSAGE_ID: digest.hexdigest(),
                    ORIGINAL_SUBJECT: printable(subject),
                    PARK_REASON: reason,
                },
            )
        except Unreachable as error:
            if isinstance(error.__cause__, nats.js.errors.NoStreamResponseError):  # deleted under us
                await self._streams.ensure_stream(self._link.jetstream, shapes.dlq_stream(self.settings))
            raise
        telemetry.fabric_parked.labels(reason.partition(":")[0]).inc()
        log.warning("fabric: parked one of %s: %s", printable(subject), reason)

    async def parked(self, *, after: int = 0, limit: int = 100) -> Sequence[Parked]:
        """Return what nobody could take, oldest first."""
        found: list[Parked] = []
        while len(found) < limit:
            one = await self._parked_from(after + 1)
            if one is None:
                break
            found.append(one)
            after = one.seq
        return found

    async def _parked_from(self, seq: int) -> Parked | None:
        names = self.settings.names
        return await self._message(names.dlq_stream, seq, following=names.dlq_subject)

    async def _message(self, stream: str, seq: int, *, following: str | None = None) -> Parked | None:
        try:
            async with reaching():
                raw = await self._link.jetstream.get_msg(
                    stream, seq=seq, subject=following, next=following is not None
                )
        except Unreachable as error:
            if isinstance(error.__cause__, nats.js.errors.NotFoundError):
                return None
            raise
        headers: dict[str, str] = raw.headers or {}
        return Parked(
            seq=raw.seq or seq,
            subject=headers.get(ORIGINAL_SUBJECT, raw.subject or ""),
            reason=headers.get(PARK_REASON, ""),
            data=raw.data or b"",
            at=raw.time,
        )

    async def unpark(self, seq: int) -> Parked | None:
        """Take one away from what is parked, and return it."""
        found = await self._message(self.settings.names.dlq_stream, seq)
        if found is None:
            return None
        try:
            async with reaching():
                await self._link.jetstream.delete_msg(self.settings.names.dlq_stream, seq)
        except Unreachable as error:
            if isinstance(error.__cause__, nats.js.errors.APIError):
                return None  # somebody else has just taken it
            raise
        return found

    # life ---------------------------------------------------------------------------------------------------

    @property
    def health(self) -> Health:
        """How it is now."""
        refused = next((share.refusal for share in self._shares if share.refusal), "")
        return Health(
            state="refused" if refused and not self._closed else self._link.state,
            reason=refused or self._link.reason,
            server=self._link.server,
            outages=self._link.outages,
            holding=any(share.holding for share in self._shares),
        )

    async def close(self) -> None:
        """End every subscription, then the connection."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(share.close() for share in self._shares))
        await self._link.close()


class JetStreamShare:
    """One subscription: a hand, and the request that fills it."""

    def __init__(
        self,
        fabric: JetStreamFabric,
        link: Link,
        streams: Streams,
        subject: str,
        callback: Callback,
        passed: Passed | None,
    ) -> None:
        self._fabric = fabric
        self._link = link
        self._streams = streams
        self._shape = shapes.durable(fabric.settings, subject)
        self._passed = passed
        self._hand = Hand(
            fabric.settings,
            callback,
            park=self._park,
            passed=passed,
            free=self._stir,
            hold=lambda _holding: self._stir(),
        )
        self._pull = Pull(link, fabric.settings, self._hand, durable=self._shape.name, ensure=self._ensure)
        self._burying: set[asyncio.Task[None]] = set()
        self._began = False
        self._closed = False

    async def start(self) -> None:
        """Begin; where NATS answers, the consumer is there when this returns. Raises Refused."""
        if self._link.state == "connected":
            try:
                await self._ensure()
            except Unreachable as error:
                log.info("fabric: the consumer is made later: %s", error)
        self._link.at_once(self._pull.reconnected)
        await self._link.listen(
            f"{_ADVISORIES}.{self._fabric.settings.names.stream}.{self._shape.name}",
            self._exhausted,
            queue=self._shape.name,
        )
        self._hand.start()
        self._pull.start()

    def _stir(self) -> None:
        self._pull.stir()

    async def _ensure(self) -> None:
        js = self._link.jetstream
        settings = self._fabric.settings
        made = await self._streams.ensure_stream(js, shapes.events_stream(settings))
        made |= await self._streams.ensure_stream(js, shapes.dlq_stream(settings))
        made |= await self._streams.ensure_consumer(js, settings.names.stream, self._shape)
        if made and self._began:
            log.warning("fabric: a stream or consumer was gone, and is made again")
        self._began = True
        if made:  # it begins with what comes from now on: what it would have brought is found by a pass
            self._link.missed()

    async def _park(self, delivery: Delivery, reason: str) -> None:
        await self._fabric.park(delivery.subject, delivery.data, delivery.place, reason)

    # what was handed out too often, and never sent back: no callback of ours lived to answer for it ------------

    def _exhausted(self, _subject: str, data: bytes) -> None:
        if self._closed:
            return
        task = asyncio.create_task(self._bury(data), name="mainspring fabric bury")
        self._burying.add(task)
        task.add_done_callback(self._burying.discard)

    async def _bury(self, advisory: bytes) -> None:
        try:
            place = int(json.loads(advisory)["stream_seq"])
            found = await self._fabric._message(self._fabric.settings.names.stream, place)  # noqa: SLF001 - our own
            if found is None or await self._is_passed(found):
                return
            await self._fabric.park(found.subject, found.data, place, _LOST_CAUSE)
        except Exception as error:  # noqa: BLE001 - a reference less: the floor tick finds what it stood for
            telemetry.loop_failures.labels("fabric bury", type(error).__name__).inc()
            log.warning(
                "fabric: could not park what was handed out too often: %s: %s", type(error).__name__, error
            )

    async def _is_passed(self, found: Parked) -> bool:
        try:
            ref = received(self._fabric.settings.names, found.subject, found.data)
        except NotARef:
            return False
        return self._passed is not None and await self._passed(ref)

    # ----------------------------------------------------------------------------------------------------------

    @property
    def holding(self) -> bool:
        """Whether references are kept here until the store answers."""
        return self._hand.holding

    @property
    def refusal(self) -> str:
        """Why nothing is fetched, where that is not for want of a connection."""
        return self._pull.reason

    async def close(self) -> None:
        """Take no more, finish what is in hand within the bound, hand back the rest."""
        if self._closed:
            return
        self._closed = True
        await self._pull.stop()
        await self._hand.close()
        await ended(*self._burying)
