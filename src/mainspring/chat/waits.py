"""Long polls of sessions: who waits in this process, and who is woken when there is something to read.

Takes pokes (a drain here has owed something, a turn here has ended) and the floor tick; asks one question for all that wait. Nothing is
owed by what stands here: if this process dies, its sessions ask another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from mainspring.chat.offers import ROWS_MAX
from mainspring.chat.rows import SQL
from mainspring.db import Database

_WAITING: Final = SQL["waiting_sessions"]


class Waits:
    """All sessions that wait at this process."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._waiting: dict[tuple[UUID, UUID], set[asyncio.Event]] = {}
        self.poke: Callable[[], None] = lambda: None  # set by whoever makes the loop

    @contextmanager
    def waiting(self, tenant: UUID, session_id: UUID) -> Iterator[asyncio.Event]:
        """Wait here for the length of the block; what is set when there is something is yielded."""
        woken = asyncio.Event()
        place = (tenant, session_id)
        self._waiting.setdefault(place, set()).add(woken)
        try:
            yield woken
        finally:
            self._waiting[place].discard(woken)
            if not self._waiting[place]:
                del self._waiting[place]

    @property
    def asleep(self) -> int:
        """How many wait."""
        return sum(len(waiting) for waiting in self._waiting.values())

    async def run_once(self) -> bool:
        """Ask once for all that wait, and wake those that are owed something."""
        places = sorted(self._waiting)
        if not places:
            return False
        async with self._db.system("inboxes") as scope:
            rows = await scope.fetch(_WAITING, [t for t, _ in places], [s for _, s in places], ROWS_MAX)
        for row in rows:
            for woken in self._waiting.get((row["tenant_id"], row["id"]), ()):
                woken.set()
        return False
