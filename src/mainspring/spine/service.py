"""Loops: start, stop, poke, and one `run_once` that tests call instead.

A round that fails is counted and tried again after a growing pause; a loop ends only when it is stopped.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from mainspring import telemetry

log = logging.getLogger("mainspring.spine")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How a loop does. `succeeded_seconds_ago` is None before its first round; `failures` are those in a row, up to now."""

    name: str
    succeeded_seconds_ago: float | None
    failures: int
    error: str | None


def wall_clock() -> datetime:
    """Return what this process takes for the time: for people and comparisons of clocks, never for a decision."""
    return datetime.now(UTC)


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
        self._error: str | None = None
        self._succeeded_at: float | None = None

    @property
    def health(self) -> Health:
        """How the loop does now."""
        ago = None
        if self._succeeded_at is not None:
            ago = asyncio.get_running_loop().time() - self._succeeded_at
        return Health(name=self.name, succeeded_seconds_ago=ago, failures=self._failures, error=self._error)

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
            self._error = f"{type(error).__name__}: {error}"
            telemetry.loop_failures.labels(self.name, type(error).__name__).inc()
            log.warning(
                "%s: round failed (%d in a row): %s: %s",
                self.name,
                self._failures,
                type(error).__name__,
                error,
            )
            return False
        self._failures, self._error = 0, None
        self._succeeded_at = asyncio.get_running_loop().time()
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
