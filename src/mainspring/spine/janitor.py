"""Retention and the net under due_tenants. Takes final rows past their time, leaves the live ones alone.

If it dies here the next round, here or elsewhere, removes the same rows.
"""

from __future__ import annotations

import logging
from typing import Generic

from mainspring import telemetry
from mainspring.spine.breaker import FORGOTTEN_SECONDS
from mainspring.spine.ports import H, Store

log = logging.getLogger("mainspring.spine")

_DAY_SECONDS = 86_400.0
_TRIM_MAX = 1_000


class Janitor(Generic[H]):
    """Keeps the tables small and their indexes right."""

    def __init__(self, store: Store[H], *, done_days: float) -> None:
        self._store = store
        self._done_seconds = done_days * _DAY_SECONDS

    async def run_once(self) -> bool:
        """Repair what is late in due_tenants and trim a batch of old final effects; True when more may be left."""
        async with self._store.system("due sweep") as tx:
            repaired = await self._store.rebuild_due(tx)
        if repaired:
            telemetry.sweep_repaired.labels("due_tenants").inc(repaired)
            log.warning("janitor: %d tenants had due effects that no claim would have looked for", repaired)
        async with self._store.system("retention") as tx:
            trimmed = await self._store.trim(tx, done_seconds=self._done_seconds, limit=_TRIM_MAX)
            await self._store.forget_breakers(tx, idle_seconds=FORGOTTEN_SECONDS)
        return trimmed == _TRIM_MAX
