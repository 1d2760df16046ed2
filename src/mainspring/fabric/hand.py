"""What one subscription has in hand. Takes references as they are delivered, leaves them acknowledged, sent back, or parked.

The same for every fabric: an adapter hands in deliveries, and this decides what becomes of each. Two tasks: one calls the callback with
all that has come, and never again before it has returned; one shows meanwhile that what is in hand is being worked on. If the process
dies here, what it had comes to another instance after the ack wait; if it comes to none, the floor tick finds what it stood for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from mainspring import telemetry
from mainspring.fabric.errors import NotARef
from mainspring.fabric.port import Callback, Passed
from mainspring.fabric.refs import EventRef, received
from mainspring.fabric.settings import FabricSettings
from mainspring.fabric.tasks import ended
from mainspring.faultpoints import FaultPoint, reach
from mainspring.spine.errors import Transient

log = logging.getLogger("mainspring.fabric")

TEXT_LENGTH_MAX: Final = 256

Park: TypeAlias = Callable[["Delivery", str], Awaitable[None]]  # confirmed when it returns; raises Transient
_Taken: TypeAlias = tuple["Delivery", EventRef]


class Delivery(Protocol):
    """One reference as it was handed out, and what can be answered. An answer that is lost costs one delivery more."""

    @property
    def subject(self) -> str:
        """What it came on."""

    @property
    def data(self) -> bytes:
        """What came."""

    @property
    def deliveries(self) -> int:
        """How often it was handed out, this time included."""

    @property
    def place(self) -> int:
        """Its place in the stream."""

    async def ack(self) -> None:
        """It is done with."""

    async def nak(self, delay_seconds: float) -> None:
        """Hand it out again, not before the delay."""

    async def in_progress(self) -> None:
        """It is being worked on: wait on."""

    async def term(self) -> None:
        """Never hand it out again."""


class Hand:
    """Everything that was delivered to one subscription and not answered yet."""

    def __init__(
        self,
        settings: FabricSettings,
        callback: Callback,
        *,
        park: Park,
        passed: Passed | None = None,
        free: Callable[[], None] = lambda: None,
        hold: Callable[[bool], None] = lambda _holding: None,
    ) -> None:
        """`free` is called when room was made; `hold` with True when fetching must stop, with False when it may go on."""
        self._settings = settings
        self._callback = callback
        self._park = park
        self._passed = passed
        self._free = free
        self._hold = hold
        self._waiting: list[Delivery] = []
        self._working: list[Delivery] = []
        self._came = asyncio.Event()
        self._closing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.holding = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._working)

    @property
    def room(self) -> int:
        """How many more may come."""
        return 0 if self.holding or self._closing.is_set() else max(0, self._settings.batch - len(self))

    def deliver(self, delivery: Delivery) -> None:
        """Take one in hand."""
        if delivery.deliveries > 1:
            telemetry.fabric_redeliveries.inc()
        self._waiting.append(delivery)
        self._came.set()

    def start(self) -> None:
        """Begin to work on what comes."""
        self._tasks = [
            asyncio.create_task(self._work(), name="mainspring fabric hand"),
            asyncio.create_task(self._keep(), name="mainspring fabric keep"),
        ]

    async def close(self) -> None:
        """Finish the call that is under way, within the bound; hand back at once whatever is not answered then."""
        self._closing.set()
        self._came.set()
        if self._tasks:
            work, keep = self._tasks
            await asyncio.wait({work}, timeout=self._settings.close_seconds)
            await ended(work, keep)
        self._working += self._waiting
        self._waiting = []
        await self._send_back(0)

    async def _send_back(self, delay_seconds: float) -> None:
        for delivery in list(self._working):
            await self._answered(delivery, delivery.nak(delay_seconds), "returned")

    # the call -----------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while not self._closing.is_set():
            await self._came.wait()
            self._came.clear()
            if self._closing.is_set() or not self._waiting:
                continue
            self._working, self._waiting = self._waiting, []
            try:
                await self._handle(list(self._working))
            except Exception as error:  # noqa: BLE001 - it outlives every failure; each is counted and logged
                telemetry.loop_failures.labels("fabric", type(error).__name__).inc()
                log.warning("fabric: what was in hand goes back: %s: %s", type(error).__name__, error)
                await self._send_back(self._settings.nak_delays_seconds[0])
            if not self._closing.is_set():
                self._free()

    async def _handle(self, deliveries: Sequence[Delivery]) -> None:
        taken: list[_Taken] = []
        for delivery in deliveries:
            try:
                taken.append((delivery, received(self._settings.names, delivery.subject, delivery.data)))
            except NotARef as error:
                await self._put_away(delivery, str(error))
        if not taken:
            return
        broken = await self._call(taken)
        if isinstance(broken, Transient):
            return  # we are closing, and the store is down: all of it goes back untouched
        groups = _by_tenant(taken)
        for group in groups:
            # what fails for one tenant is no reason to send back what is another's
            failed = await self._call(group) if broken is not None and len(groups) > 1 else broken
            await (self._done(group) if failed is None else self._failed(group, failed))

    async def _call(self, taken: Sequence[_Taken]) -> Exception | None:
        """Call back until the store has answered; return what else went wrong."""
        pause, longest = self._settings.hold_seconds
        while True:
            error = await _outcome(self._callback([ref for _, ref in taken]))
            if not isinstance(error, Transient):
                self._set_holding(holding=False)
                return error
            if not self.holding:
                log.warning(
                    "fabric: the store does not answer (%s): references are kept, none are fetched", error
                )
            self._set_holding(holding=True)
            if await self._rested(pause):
                return error
            pause = min(longest, pause * 2)

    def _set_holding(self, *, holding: bool) -> None:
        if self.holding != holding:
            self.holding = holding
            self._hold(holding)

    async def _rested(self, seconds: float) -> bool:
        """Wait; tell whether we are to close meanwhile."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)
        return self._closing.is_set()

    # what becomes of them -----------------------------------------------------------------------------------

    async def _done(self, taken: Sequence[_Taken]) -> None:
        reach(FaultPoint.LISTENER_BEFORE_ACK)
        for delivery, _ in taken:
            await self._answered(delivery, delivery.ack(), "ack")

    async def _failed(self, taken: Sequence[_Taken], error: Exception) -> None:
        if isinstance(error, Transient):
            return  # we are closing, and the store is down: all of it goes back untouched
        log.warning(
            "fabric: %d references failed: %s: %s", len(taken), type(error).__name__, printable(str(error))
        )
        for delivery, ref in taken:
            if delivery.deliveries < self._settings.deliver_max:
                delay = self._settings.nak_delay(delivery.deliveries)
                await self._answered(delivery, delivery.nak(delay), "nak")
                continue
            passed = await self._is_passed(ref)
            if passed is None:
                return  # we are closing: what is left goes back
            if passed:
                await self._answered(delivery, delivery.ack(), "ack")
            else:
                await self._put_away(delivery, f"exhausted: {type(error).__name__}: {error}")

    async def _is_passed(self, ref: EventRef) -> bool | None:
        """Tell whether the drain is past it; None when we are to close before anybody can say. Until then nothing is parked: what
        fails where nobody can say may have failed for the same reason, a database that is being restored, and no fault of its own."""
        if self._passed is None:
            return False
        pause, longest = self._settings.hold_seconds
        while True:
            try:
                passed = await self._passed(ref)
            except Exception as error:  # noqa: BLE001 - it is asked again, and nothing more is fetched meanwhile
                log.warning("fabric: nobody can say whether %s is drained: %s", ref.tenant, error)
                self._set_holding(holding=True)
                if await self._rested(pause):
                    return None
                pause = min(longest, pause * 2)
            else:
                self._set_holding(holding=False)
                return passed

    async def _put_away(self, delivery: Delivery, reason: str) -> None:
        """Park one, and only when that is confirmed say that it need not come again."""
        pause, longest = self._settings.hold_seconds
        while True:
            try:
                await self._park(delivery, printable(reason))
            except Transient as error:
                log.warning("fabric: cannot park yet: %s", error)
                if await self._rested(pause):
                    return
                pause = min(longest, pause * 2)
            else:
                reach(FaultPoint.DLQ_AFTER_PUBLISH)
                await self._answered(delivery, delivery.term(), "park")
                return

    async def _answered(self, delivery: Delivery, answer: Awaitable[None], outcome: str) -> None:
        self._working.remove(delivery)
        telemetry.fabric_references.labels(outcome).inc()
        await _answer(answer)

    # meanwhile ----------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Show for everything in hand that it is being worked on, also while it waits for its call."""
        while True:
            await asyncio.sleep(self._settings.ack_wait_seconds / 3)
            for delivery in [*self._working, *self._waiting]:
                await _answer(delivery.in_progress())


def printable(text: str) -> str:
    """Return a text that fits a header and a line of a log: one line, and not too long."""
    return "".join(mark if mark.isprintable() else " " for mark in text)[:TEXT_LENGTH_MAX]


async def _outcome(call: Awaitable[None]) -> Exception | None:
    """Return what a callback raised. It runs as a task of its own: one that cancels itself ends no loop of ours."""
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        await ended(task)
        raise
    if task.cancelled():
        return RuntimeError("the callback was cancelled")
    error = task.exception()
    if error is None or isinstance(error, Exception):
        return error
    raise error


async def _answer(answer: Awaitable[None]) -> None:
    """Send an answer. One that is lost costs one delivery more, so it is counted and not tried again."""
    try:
        await answer
    except Transient as error:
        telemetry.fabric_answers_lost.inc()
        log.debug("fabric: an answer was lost: %s", error)


def _by_tenant(taken: Sequence[_Taken]) -> list[list[_Taken]]:
    groups: dict[UUID, list[_Taken]] = {}
    for one in taken:
        groups.setdefault(one[1].tenant, []).append(one)
    return list(groups.values())
