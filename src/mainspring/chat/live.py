"""What passes: who is here and at work, and words while they are being written. Takes it as it comes, leaves it with whoever watches
its channel at this process, or with nobody.

Nothing is kept, and nothing is owed: a watcher that is slow misses some of it, and what counts is in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

QUEUED_MAX: Final = 200
TEXT_LENGTH_MAX: Final = 16_384

What: TypeAlias = Literal["presence", "text"]


@dataclass(frozen=True, slots=True)
class Passing:
    """One thing that passes in a channel."""

    what: What
    data: Mapping[str, Any]


def presence(handle: str, state: str) -> Passing:
    """Return that an agent is `working`, `idle` between turns, or `offline`, by the state of its session."""
    told = {"working": "working", "ready": "idle"}.get(state, "offline")
    return Passing("presence", {"agent": handle, "state": told})


class Watcher:
    """One who watches a channel. Of what they do not take in time, the oldest is forgotten."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Passing] = asyncio.Queue(QUEUED_MAX)

    def offer(self, passing: Passing) -> None:
        """Hand them something; what they have not taken for longest makes room for it."""
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(passing)

    async def next(self, *, within_seconds: float) -> Passing | None:
        """Return what passes next; None when nothing does in time."""
        try:
            async with asyncio.timeout(within_seconds):
                return await self._queue.get()
        except TimeoutError:
            return None

    def waiting(self) -> list[Passing]:
        """Return all that has passed and was not taken."""
        return [self._queue.get_nowait() for _ in range(self._queue.qsize())]


class Live:
    """All who watch at this process, by channel."""

    def __init__(self) -> None:
        self._watchers: dict[tuple[UUID, UUID], set[Watcher]] = {}

    @contextmanager
    def watching(self, tenant: UUID, channel: UUID) -> Iterator[Watcher]:
        """Watch a channel for the length of the block."""
        watcher, place = Watcher(), (tenant, channel)
        self._watchers.setdefault(place, set()).add(watcher)
        try:
            yield watcher
        finally:
            self._watchers[place].discard(watcher)
            if not self._watchers[place]:
                del self._watchers[place]

    @property
    def is_watched(self) -> bool:
        """Whether anybody watches anything."""
        return bool(self._watchers)

    def pass_by(self, tenant: UUID, channels: list[UUID], passing: Passing) -> None:
        """Hand something to whoever watches one of these channels."""
        for channel in channels:
            for watcher in self._watchers.get((tenant, channel), ()):
                watcher.offer(passing)
