"""Loops: start, stop, poke, and one `run_once` that tests call instead.

A round that fails is counted and tried again after a growing pause; a loop ends only when it is stopped.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from mainspring import telemetry

log = logging.getLogger("mainspring.spine")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


class Service:
    """One loop around `run_once`, which answers whether there is more to do at once.

    Args:
        every_seconds: also run this often, ± 10 %, unpoked; None to wait for a poke.
        at_once: run when it starts, too.
    """

    def __init__(
        self,
        name: str,
        run_once: Callable[[], Awaitable[bool]],
        *,
        every_seconds: float | None,
        at_once: bool = True,
    ) -> None:
        self.name = name
        self.run_once = run_once
        self._every_seconds = every_seconds
        self._at_once = at_once
        self._poked = asyncio.Event()
        self._stopped = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0

    def start(self) -> None:
        """Begin the loop; a second start is one loop still."""
        if self._task is None:
            self._stopped.clear()
            self._task = asyncio.create_task(self._loop(), name=f"mainspring {self.name}")

    async def stop(self, *, grace_seconds: float = 5.0) -> None:
        """End the loop after the round it is in; cut that short when it outlasts the grace."""
        self._stopped.set()
        self._poked.set()
        if self._task is None:
            return
        done, _ = await asyncio.wait({self._task}, timeout=grace_seconds)
        if not done:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._task = None

    def poke(self) -> None:
        """Run a round soon; many pokes before it are one."""
        self._poked.set()

    async def _loop(self) -> None:
        if not self._at_once:
            await self._pause()
        while not self._stopped.is_set():
            self._poked.clear()
            if not await self._round():
                await self._pause()

    async def _round(self) -> bool:
        try:
            more = await self.run_once()
        except Exception as error:  # noqa: BLE001 - the loop outlives every failure; each is counted and logged
            self._failures += 1
            telemetry.loop_failures.labels(self.name, type(error).__name__).inc()
            log.warning(
                "%s: round failed (%d in a row): %s: %s",
                self.name,
                self._failures,
                type(error).__name__,
                error,
            )
            return False
        self._failures = 0
        return more

    async def _pause(self) -> None:
        if self._failures:
            # even a poked loop rests after a failure: what failed is most likely the database
            rest = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures, 16))
            await _until(self._stopped, rest)
            return
        seconds = self._every_seconds
        if seconds is not None:
            seconds *= random.uniform(0.9, 1.1)  # noqa: S311 - so that instances do not tick in step
        await _until(self._poked, seconds)


async def _until(event: asyncio.Event, seconds: float | None) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
