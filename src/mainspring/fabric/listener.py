"""Fabric to drain. Takes what other instances tell, leaves their tenants drained and whoever waits here woken.

A reference makes this process's own drain look at that tenant's own log, as after a commit of its own; a broadcast makes those look who
wait. Neither is believed more than that. If it dies here, the reference goes to another instance, or the floor tick does what it asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol
from uuid import UUID

from mainspring import telemetry
from mainspring.fabric.errors import NotARef
from mainspring.fabric.heads import TOPIC, Heads
from mainspring.fabric.port import EventFabric, Subscription
from mainspring.fabric.refs import EventRef
from mainspring.fabric.subjects import Names
from mainspring.spine.drain import Drained
from mainspring.spine.errors import OutcomeUnknown, Transient

log = logging.getLogger("mainspring.fabric")

REMEMBERED_MAX: Final = 10_000  # tenants


class Wakes(Protocol):
    """The engine, as far as it is told what happened elsewhere."""

    def heard(self, tenant: UUID, kinds: tuple[str, ...]) -> None:
        """Another process has committed."""

    def heard_owed(self) -> None:
        """Another process's drain has owed something."""

    def look_everywhere(self) -> None:
        """Something may have been missed."""

    def catch_up(self, tenants: Iterable[UUID]) -> Awaitable[None]:
        """Drain these tenants."""


class Listener:
    """This instance's ear."""

    def __init__(
        self,
        fabric: EventFabric,
        names: Names,
        engine: Wakes,
        *,
        instance: UUID,
        position: Callable[[UUID], Awaitable[int | None]],
    ) -> None:
        """`position` tells up to where a tenant's log is drained, whoever did it."""
        self._fabric = fabric
        self._names = names
        self._engine = engine
        self._instance = instance
        self._position = position
        self._reached: dict[UUID, int] = {}
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Begin to listen. Raises Refused."""
        self._fabric.on_reconnect(self._engine.look_everywhere)
        await self._fabric.listen(TOPIC, self.heard)
        self._subscription = await self._fabric.subscribe(
            self._names.all_events, self.took, passed=self.passed
        )

    async def stop(self) -> None:
        """Take no more references."""
        if self._subscription is not None:
            await self._subscription.close()

    def drained(self, drained: Drained) -> None:
        """Note how far this process has drained itself: what it is told of that is news no more."""
        if len(self._reached) + len(drained.reached) > REMEMBERED_MAX:
            self._reached.clear()
        self._reached.update(drained.reached)

    async def took(self, refs: Sequence[EventRef]) -> None:
        """Drain the tenants of what one fetch brought, in one round. Raises Transient while the store is down."""
        behind = {ref.tenant for ref in refs if self._reached.get(ref.tenant, 0) < ref.seq}
        if not behind:
            return
        try:
            await self._engine.catch_up(sorted(behind))
        except OutcomeUnknown as error:  # the same round again does no harm
            raise Transient(str(error)) from error

    async def passed(self, ref: EventRef) -> bool:
        """Tell whether a reference's event is drained."""
        position = await self._position(ref.tenant)
        return position is not None and position >= ref.seq

    def heard(self, tenant: UUID, data: bytes) -> None:
        """Wake those who wait here for what another instance has committed or owed."""
        try:
            heads = Heads.decode(data)
        except NotARef as error:
            telemetry.fabric_references.labels("broken").inc()
            log.debug("fabric: a broadcast of %s is broken: %s", tenant, error)
            return
        if heads.by == self._instance:
            return
        if heads.kinds:
            self._engine.heard(tenant, heads.kinds)
        if heads.owed:
            self._engine.heard_owed()
