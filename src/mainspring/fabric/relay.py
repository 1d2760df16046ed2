"""Commit to fabric. Takes what this process has committed and drained, leaves it told to the others.

Nobody who commits waits for it, or sees its errors. What waits here is bounded: of a tenant and kind the newest reference stands for those
before it, since whoever gets it drains the log up to there. What cannot be told in time is counted and given up; the floor tick, and the
pass after an outage, find what it stood for. If it dies here, they do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from mainspring import telemetry
from mainspring.fabric.heads import TOPIC, Heads
from mainspring.fabric.port import EventFabric
from mainspring.fabric.refs import EventRef
from mainspring.faultpoints import FaultPoint, reach
from mainspring.spine.drain import Drained
from mainspring.spine.errors import Misuse, SpineError, Transient
from mainspring.spine.events import Written

log = logging.getLogger("mainspring.fabric")

WAITING_MAX: Final = 10_000  # references, and tenants to be broadcast
ROUND_MAX: Final = 200
TRIES_MAX: Final = 3
# Between two rounds that tell something: what is committed meanwhile is told with it. The first of them is told at once, and the drain of
# this process waits for none of it, so that a busy one spends little on telling and a quiet one is heard without delay.
PACE_SECONDS: Final = 0.02

_Place = tuple[UUID, str]  # a tenant, and a kind of event


@dataclass(frozen=True, slots=True)
class _Waiting:
    ref: EventRef
    tries: int = 0


@dataclass(slots=True)
class _News:
    seq: int = 0
    kinds: set[str] = field(default_factory=set)
    owed: bool = False


class Relay:
    """What is still to be told, and the round that tells it."""

    def __init__(self, fabric: EventFabric, *, instance: UUID, pace_seconds: float = PACE_SECONDS) -> None:
        """`instance` is what our own broadcasts are known by."""
        self._fabric = fabric
        self._pace_seconds = pace_seconds
        self._instance = instance
        self._refs: dict[_Place, _Waiting] = {}
        self._news: dict[UUID, _News] = {}
        self.poke: Callable[[], None] = lambda: None  # set by whoever makes the loop

    @property
    def waiting(self) -> int:
        """How many references wait to be told."""
        return len(self._refs)

    def committed(self, tenant: UUID, written: tuple[Written, ...]) -> None:
        """Note a commit of this process. Whoever has committed is told of nothing that is wrong here."""
        for one in written:
            try:
                ref = EventRef(tenant=tenant, kind=one.kind, row_id=one.subject, seq=one.seq)
            except Misuse:  # a kind that fits no subject
                telemetry.fabric_publish_failures.labels("unfit").inc()
            else:
                self._note(ref)
        if (news := self._news_of(tenant)) is not None:
            news.seq = max(news.seq, *(one.seq for one in written))
            news.kinds.update(one.kind for one in written)
        self.poke()

    def drained(self, drained: Drained) -> None:
        """Note a round of this process's drain, for those who wait elsewhere for what it has owed."""
        if not drained.owed:
            return
        for tenant, seq in drained.reached.items():
            if (news := self._news_of(tenant)) is not None:
                news.seq, news.owed = max(news.seq, seq), True
        self.poke()

    def _note(self, ref: EventRef) -> None:
        place = (ref.tenant, ref.kind)
        if place not in self._refs and len(self._refs) >= WAITING_MAX:
            telemetry.fabric_publish_failures.labels("overflow").inc()
            return
        # commits of one tenant may be noted in another order than they were made in
        if (waiting := self._refs.get(place)) is None or waiting.ref.seq < ref.seq:
            self._refs[place] = _Waiting(ref)

    def _news_of(self, tenant: UUID) -> _News | None:
        if tenant not in self._news and len(self._news) >= WAITING_MAX:
            return None
        return self._news.setdefault(tenant, _News())

    async def run_once(self) -> bool:
        """Tell what waits, and say whether there is more that can be told at once."""
        if not self._refs and not self._news:
            return False
        if self._fabric.health.state != "connected":
            self._give_up_all()
            return False
        news, self._news = self._news, {}
        for tenant, one in news.items():
            await self._broadcast(tenant, one)
        more = await self._publish()
        await asyncio.sleep(self._pace_seconds)
        return more

    def _give_up_all(self) -> None:
        """Keep nothing through an outage: behind it everything is looked at."""
        telemetry.fabric_publish_failures.labels("down").inc(len(self._refs))
        self._refs.clear()
        self._news.clear()

    async def _broadcast(self, tenant: UUID, news: _News) -> None:
        said = Heads(by=self._instance, seq=news.seq, kinds=tuple(sorted(news.kinds)), owed=news.owed)
        try:
            await self._fabric.broadcast(tenant, TOPIC, said.encode())
        except SpineError as error:
            telemetry.fabric_publish_failures.labels("broadcast").inc()
            log.debug("fabric: a broadcast was not sent: %s", error)

    async def _publish(self) -> bool:
        places = list(self._refs)[:ROUND_MAX]
        if not places:
            return False
        batch = {place: self._refs.pop(place) for place in places}
        reach(FaultPoint.RELAY_BEFORE_PUBLISH)
        ends = await asyncio.gather(*(self._tell(waiting.ref) for waiting in batch.values()))
        reach(FaultPoint.RELAY_AFTER_PUBLISH)
        failed = [one for one, done in zip(batch.items(), ends, strict=True) if not done]
        for place, waiting in failed:
            self._again(place, waiting)
        return bool(self._refs) and not failed

    async def _tell(self, ref: EventRef) -> bool:
        try:
            await self._fabric.publish(ref)
        except Transient as error:
            log.debug("fabric: a reference was not taken: %s", error)
            return False
        telemetry.fabric_published.inc()
        return True

    def _again(self, place: _Place, waiting: _Waiting) -> None:
        """Try once more, under the same message id, unless that was enough, or a newer one stands for it by now."""
        if waiting.tries + 1 >= TRIES_MAX:
            telemetry.fabric_publish_failures.labels("unreachable").inc()
        else:
            self._refs.setdefault(place, replace(waiting, tries=waiting.tries + 1))
