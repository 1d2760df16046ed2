"""What the rest of Mainspring knows of a fabric: a port, and the values that pass through it.

A fabric wakes. Nothing that is owed may depend on it: a reference may be lost, doubled, late or forged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias
from uuid import UUID

from mainspring.fabric.refs import EventRef

# Takes what one fetch brought, all of it at once. Returns when it is done with it: the references are acknowledged. Raises Transient
# while the store is down: they are kept, and nothing more is fetched until it answers again. Any other exception: they come again, later.
Callback: TypeAlias = Callable[[Sequence[EventRef]], Awaitable[None]]
# Tells whether the drain is past a reference already: then there is nothing left to do for it, and it is not parked.
Passed: TypeAlias = Callable[[EventRef], Awaitable[bool]]
Heard: TypeAlias = Callable[[UUID, bytes], None]
Hook: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How the fabric is: `state` is connected, waiting (never yet reached), broken (lost, and sought again), refused or closed.

    `holding` says that references are kept here until the store answers; `outages` are those since the process began.
    """

    state: str
    reason: str = ""
    server: str = ""
    outages: int = 0
    holding: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """A reference that nobody could take, as it came: `seq` is its place among those that are parked."""

    seq: int
    subject: str
    reason: str
    data: bytes
    at: datetime | None


class Subscription(Protocol):
    """One callback's share of the references."""

    async def close(self) -> None:
        """Take no more, finish what is in hand within the bound, hand back the rest."""


class EventFabric(Protocol):
    """Carries references from whoever has committed to one instance each, and broadcasts to all."""

    async def publish(self, ref: EventRef, *, epoch: int = 0) -> None:
        """Hand over a reference, confirmed; the same one twice within two minutes is one. Raises Unreachable, Misuse."""

    async def subscribe(
        self, subject: str, callback: Callback, *, passed: Passed | None = None
    ) -> Subscription:
        """Share the references of a subject with every other instance that does: each goes to one. Calls never overlap."""

    async def subscribe_kind(
        self, kind: str, callback: Callback, *, passed: Passed | None = None
    ) -> Subscription:
        """The same, for one kind of event, of every tenant."""

    def on_reconnect(self, hook: Hook) -> None:
        """Call `hook`, a little later than at once, whenever references may have been missed. Hooks add up."""

    async def broadcast(self, tenant: UUID, topic: str, data: bytes) -> None:
        """Tell every instance that listens now, this one included; nothing is kept or confirmed. Raises Unreachable, Misuse."""

    async def listen(self, topic: str, heard: Heard) -> None:
        """Call `heard(tenant, data)` for every broadcast on a topic, of every tenant. `heard` must not wait, nor raise."""

    async def parked(self, *, after: int = 0, limit: int = 100) -> Sequence[Parked]:
        """Return what nobody could take, oldest first."""

    async def unpark(self, seq: int) -> Parked | None:
        """Take one away from what is parked, and return it; None when it is gone already."""

    @property
    def health(self) -> Health:
        """How it is now."""

    async def close(self) -> None:
        """End every subscription, then the connection, within the bound. What is called afterwards raises Unreachable."""
