"""Interleavings placed step by step: sides that go from pause to pause as they are told, in every order in which they may go.

A step that waits for another side's lock is left waiting, and is looked for again when that side has gone on: a schedule is what
really happened, however slow the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import Context
from typing import Any

import asyncpg

Pause = Callable[[], Awaitable[None]]
Work = Callable[[Pause], Awaitable[Any]]

_WAITING = """
select count(*) from pg_stat_activity
 where datname = current_database() and wait_event_type = 'Lock' and wait_event in ('transactionid', 'tuple')
"""


def orders(steps: Mapping[str, int]) -> Iterator[str]:
    """Every order in which sides may take so many steps each, as words of their letters."""
    if not any(steps.values()):
        yield ""
    for side, left in steps.items():
        if left:
            yield from (side + rest for rest in orders({**steps, side: left - 1}))


class Side:
    """One side of a schedule. Its work is given a pause, and awaits it between any two of its steps."""

    def __init__(self, work: Work) -> None:
        self._may_go = asyncio.Semaphore(0)
        self.stands = asyncio.Event()
        self.stands.set()
        self.task = asyncio.create_task(self._run(work), context=Context())

    async def _run(self, work: Work) -> Any:
        await self._may_go.acquire()
        try:
            return await work(self._pause)
        finally:
            self.stands.set()

    async def _pause(self) -> None:
        self.stands.set()
        await self._may_go.acquire()

    def go(self) -> None:
        """Take the next step, if it stands before one; one that waits for a lock is under way already."""
        if self.stands.is_set() and not self.task.done():
            self.stands.clear()
            self._may_go.release()


async def play(schedule: str, works: Mapping[str, Work], watch: asyncpg.Connection) -> dict[str, Any]:
    """Let the sides go in this order, then each to its end; return what each came to."""
    sides = {name: Side(work) for name, work in works.items()}
    try:
        for name in schedule:
            sides[name].go()
            await _settled(sides, watch)
        while not all(side.task.done() for side in sides.values()):
            for side in sides.values():
                side.go()
                await _settled(sides, watch)
        return {name: side.task.result() for name, side in sides.items()}
    finally:
        for side in sides.values():
            side.task.cancel()
        await asyncio.gather(*(side.task for side in sides.values()), return_exceptions=True)


async def _settled(sides: Mapping[str, Side], watch: asyncpg.Connection) -> None:
    """Return once every side stands, is over, or waits for a lock."""
    while moving := [side for side in sides.values() if not side.stands.is_set()]:
        waits = [asyncio.ensure_future(side.stands.wait()) for side in moving]
        await asyncio.wait(waits, timeout=0.01)
        for one in waits:
            one.cancel()
        left = sum(not side.stands.is_set() for side in sides.values())
        if left and await watch.fetchval(_WAITING) >= left:
            return
