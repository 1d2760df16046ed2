"""The fabric within one process, for tests and for the engine as a library. A server never falls back to it: it wakes nobody else.

A `Broker` is what NATS is to the other one: it keeps references, hands each to one of those who share a filter, and hands out again what is
not answered. `down` and `up` are its outages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID

from mainspring import telemetry
from mainspring.fabric.errors import NotARef, Unreachable
from mainspring.fabric.hand import Delivery, Hand
from mainspring.fabric.port import Callback, Health, Heard, Hook, Parked, Passed
from mainspring.fabric.refs import EventRef, received
from mainspring.fabric.settings import FabricSettings
from mainspring.fabric.subjects import ANY, REST


@dataclass(slots=True)
class _Message:
    place: int
    subject: str
    data: bytes


@dataclass(eq=False, slots=True)
class _Durable:
    """What is shared by all who take one filter's references."""

    filter: str
    waiting: deque[tuple[_Message, int]] = field(default_factory=deque)
    shares: list[_Share] = field(default_factory=list)
    passed: Passed | None = None


class Broker:
    """Keeps references, and hands each to one of those who share its filter."""

    def __init__(self, settings: FabricSettings | None = None) -> None:
        self.settings = settings or FabricSettings()
        self.is_up = True
        self.outages = 0
        self._place = 0
        self._seen: dict[str, float] = {}
        self._durables: dict[str, _Durable] = {}
        self._hooks: list[Hook] = []
        self._listeners: list[tuple[str, Heard]] = []
        self._parked: dict[int, Parked] = {}
        self._burying: set[asyncio.Task[None]] = set()

    def down(self) -> None:
        """Begin an outage: nothing is taken, handed out or heard."""
        self.is_up = False
        self.outages += 1

    def up(self) -> None:
        """End it; whoever may have missed something is told."""
        self.is_up = True
        for hook in list(self._hooks):
            try:
                hook()
            except Exception as error:  # noqa: BLE001 - one that breaks must not keep the others from looking
                telemetry.loop_failures.labels("fabric hook", type(error).__name__).inc()
        for durable in self._durables.values():
            self.hand_out(durable)

    def refuse_while_down(self) -> None:
        """Raise Unreachable during an outage."""
        if not self.is_up:
            raise Unreachable("the broker is down")

    def put(self, subject: str, data: bytes, message_id: str | None = None) -> None:
        """Keep what comes, unless it came within the window already."""
        self.refuse_while_down()
        now = asyncio.get_running_loop().time()
        self._seen = {
            one: at for one, at in self._seen.items() if now - at < self.settings.duplicates_seconds
        }
        if message_id is not None:
            if message_id in self._seen:
                return
            self._seen[message_id] = now
        self._place += 1
        message = _Message(self._place, subject, data)
        for durable in self._durables.values():
            if matches(durable.filter, subject):
                durable.waiting.append((message, 1))
                self.hand_out(durable)

    def share(self, share: _Share) -> _Durable:
        """Have somebody take part in what a filter brings."""
        durable = self._durables.setdefault(share.filter, _Durable(share.filter))
        durable.shares.append(share)
        durable.passed = share.passed or durable.passed
        self.hand_out(durable)
        return durable

    def hand_out(self, durable: _Durable) -> None:
        """Hand out what waits, to those with room, in turn."""
        while self.is_up and durable.waiting and (free := [one for one in durable.shares if one.hand.room]):
            share = free[0]
            durable.shares.remove(share)
            durable.shares.append(share)
            message, deliveries = durable.waiting.popleft()
            share.hand.deliver(_MemoryDelivery(self, durable, message, deliveries))

    def again(self, durable: _Durable, message: _Message, deliveries: int) -> None:
        """Hand out once more, or park what was handed out as often as may be."""
        if deliveries < self.settings.deliver_max:
            durable.waiting.append((message, deliveries + 1))
            self.hand_out(durable)
            return
        task = asyncio.create_task(self._bury(durable, message))
        self._burying.add(task)
        task.add_done_callback(self._burying.discard)

    async def _bury(self, durable: _Durable, message: _Message) -> None:
        try:
            ref = received(self.settings.names, message.subject, message.data)
            passed = durable.passed is not None and await durable.passed(ref)
        except NotARef:
            passed = False
        if not passed:
            self.park(
                message.subject, message.data, "exhausted: handed out as often as may be, and never answered"
            )

    def park(self, subject: str, data: bytes, reason: str) -> None:
        """Put away what nobody could take."""
        self.refuse_while_down()
        seq = len(self._parked) + 1 if not self._parked else max(self._parked) + 1
        self._parked[seq] = Parked(seq=seq, subject=subject, reason=reason, data=data, at=datetime.now(UTC))
        telemetry.fabric_parked.labels(reason.partition(":")[0]).inc()

    def parked(self) -> dict[int, Parked]:
        """Return what is put away, by its seq."""
        return self._parked

    def told(self, subject: str, data: bytes) -> None:
        """Tell everybody who listens now."""
        self.refuse_while_down()
        for topic, heard in list(self._listeners):
            if (tenant := self.settings.names.tenant_of(subject, topic)) is not None:
                asyncio.get_running_loop().call_soon(heard, tenant, data)

    def on_up(self, hook: Hook) -> None:
        """Call `hook` at the end of each outage."""
        self._hooks.append(hook)

    def listen(self, topic: str, heard: Heard) -> Callable[[], None]:
        """Call `heard` with what is told on a topic, until what is returned is called."""
        entry = (topic, heard)
        self._listeners.append(entry)
        return lambda: self._listeners.remove(entry)


class MemoryFabric:
    """One instance's side of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._shares: list[_Share] = []
        self._unlisten: list[Callable[[], None]] = []
        self._closed = False

    async def publish(self, ref: EventRef, *, epoch: int = 0) -> None:
        """Hand over a reference."""
        self._refuse_when_closed()
        subject = self._broker.settings.names.events(ref.tenant, ref.kind)
        self._broker.put(subject, ref.encode(), ref.message_id(epoch))

    async def subscribe(self, subject: str, callback: Callback, *, passed: Passed | None = None) -> _Share:
        """Share the references of a subject with every other instance that does."""
        self._refuse_when_closed()
        share = _Share(self._broker, self._broker.settings.names.filter(subject), callback, passed)
        self._shares.append(share)
        return share

    async def subscribe_kind(self, kind: str, callback: Callback, *, passed: Passed | None = None) -> _Share:
        """The same, for one kind of event, of every tenant."""
        return await self.subscribe(self._broker.settings.names.events_of_kind(kind), callback, passed=passed)

    def on_reconnect(self, hook: Hook) -> None:
        """Call `hook` whenever references may have been missed."""
        self._broker.on_up(lambda: None if self._closed else hook())

    async def broadcast(self, tenant: UUID, topic: str, data: bytes) -> None:
        """Tell every instance that listens now."""
        self._refuse_when_closed()
        self._broker.told(self._broker.settings.names.broadcast(tenant, topic), data)

    async def listen(self, topic: str, heard: Heard) -> None:
        """Call `heard` for every broadcast on a topic."""
        self._broker.settings.names.broadcasts(topic)
        self._unlisten.append(self._broker.listen(topic, heard))

    async def parked(self, *, after: int = 0, limit: int = 100) -> Sequence[Parked]:
        """Return what nobody could take, oldest first."""
        return [replace(one) for seq, one in sorted(self._broker.parked().items()) if seq > after][:limit]

    async def unpark(self, seq: int) -> Parked | None:
        """Take one away from what is parked, and return it."""
        return self._broker.parked().pop(seq, None)

    @property
    def health(self) -> Health:
        """How it is now."""
        state = "closed" if self._closed else "connected" if self._broker.is_up else "broken"
        return Health(
            state=state,
            server="memory",
            outages=self._broker.outages,
            holding=any(one.hand.holding for one in self._shares),
        )

    async def close(self) -> None:
        """End every subscription."""
        if self._closed:
            return
        self._closed = True
        for unlisten in self._unlisten:
            unlisten()
        await asyncio.gather(*(share.close() for share in self._shares))

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise Unreachable("this fabric is closed")


class _Share:
    """One subscription."""

    def __init__(self, broker: Broker, subject: str, callback: Callback, passed: Passed | None) -> None:
        self.filter = subject
        self.passed = passed
        self._broker = broker
        self.hand = Hand(
            broker.settings,
            callback,
            park=self._park,
            passed=passed,
            free=self._free,
            hold=lambda _holding: self._free(),
        )
        self.hand.start()
        self._durable = broker.share(self)

    def _free(self) -> None:
        self._broker.hand_out(self._durable)

    async def _park(self, delivery: Delivery, reason: str) -> None:
        self._broker.park(delivery.subject, delivery.data, reason)

    async def close(self) -> None:
        """Take no more, finish what is in hand within the bound, hand back the rest."""
        if self in self._durable.shares:
            self._durable.shares.remove(self)
            await self.hand.close()


class _MemoryDelivery:
    """One message, handed out once. Silent for the ack wait, it is handed out again."""

    def __init__(self, broker: Broker, durable: _Durable, message: _Message, deliveries: int) -> None:
        self._broker = broker
        self._durable = durable
        self._message = message
        self.subject = message.subject
        self.data = message.data
        self.deliveries = deliveries
        self.place = message.place
        self._timer = self._later(broker.settings.ack_wait_seconds)

    def _later(self, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self._again)

    def _again(self) -> None:
        self._broker.again(self._durable, self._message, self.deliveries)

    async def ack(self) -> None:
        """It is done with."""
        self._broker.refuse_while_down()
        self._timer.cancel()

    async def nak(self, delay_seconds: float) -> None:
        """Hand it out again, not before the delay."""
        self._broker.refuse_while_down()
        self._timer.cancel()
        self._timer = self._later(delay_seconds)

    async def in_progress(self) -> None:
        """It is being worked on: wait on."""
        self._broker.refuse_while_down()
        self._timer.cancel()
        self._timer = self._later(self._broker.settings.ack_wait_seconds)

    async def term(self) -> None:
        """Never hand it out again."""
        await self.ack()


def matches(subject_filter: str, subject: str) -> bool:
    """Tell whether a filter takes a subject, as NATS has it."""
    wanted, found = subject_filter.split("."), subject.split(".")
    if wanted[-1] == REST:
        wanted, found = wanted[:-1], found[: len(wanted) - 1] if len(found) >= len(wanted) else []
    return len(wanted) == len(found) and all(w in (ANY, f) for w, f in zip(wanted, found, strict=True))
