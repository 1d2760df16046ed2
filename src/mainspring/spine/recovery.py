"""The floor tick: one question a second, "is anything due anywhere?", and the fast path's own steps on a yes.

It finds what a lost poke, a dead process or another instance left. If it dies, the next instance's tick asks the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from mainspring.spine.ports import H, Store
from mainspring.spine.worker import Worker


class Recovery(Generic[H]):
    """Asks what is due and pokes the loop that does it."""

    def __init__(
        self,
        store: Store[H],
        worker: Worker[H],
        *,
        poke_drain: Callable[[], None],
        poke_worker: Callable[[], None],
        poke_alone: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._poke_drain = poke_drain
        self._poke_worker = poke_worker
        self._poke_alone = poke_alone

    async def run_once(self) -> bool:
        """Ask once."""
        due = await self._store.due(list(self._worker.lease_seconds))
        if due.lagging:
            self._poke_drain()
        if due.effects:
            self._poke_worker()
        if due.alone:
            self._poke_alone()
        return False
