"""How much this process takes on at once. Takes requests as they come; leaves each served, or turned away at once, never queued.

A request works until it waits: a long poll or a stream costs little while it does, and has a bound of its own. No tenant has
more than half of the waiting places, so that none keeps the others' runners out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from mainspring import telemetry
from mainspring.rooms import Refusal

WORKING_MAX: Final = 500
WAITING_MAX: Final = 5_000


class Busy(Refusal):
    """There is too much to do; `code` says whether for all (`overloaded`) or for this tenant (`too_many_requests`)."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class Load:
    """Counts what is being served, and refuses what is too much."""

    def __init__(self, *, working_max: int = WORKING_MAX, waiting_max: int = WAITING_MAX) -> None:
        self.working_max = working_max
        self.waiting_max = waiting_max
        self.working = 0
        self.waiting = 0
        self._waiting_of: Counter[UUID] = Counter()

    @property
    def full(self) -> bool:
        """Whether no more can be worked on."""
        return self.working >= self.working_max

    @contextmanager
    def work(self) -> Iterator[None]:
        """Work on a request for the length of the block."""
        self.working += 1
        self._tell()
        try:
            yield
        finally:
            self.working -= 1
            self._tell()

    @contextmanager
    def wait(self, tenant: UUID) -> Iterator[None]:
        """Wait, inside of `work`, for the length of the block. Raises Busy when too many do."""
        if self.waiting >= self.waiting_max:
            raise _turned_away("overloaded", f"{self.waiting_max} polls and streams are waiting here already")
        if self._waiting_of[tenant] >= max(1, self.waiting_max // 2):
            raise _turned_away(
                "too_many_requests", f"{self._waiting_of[tenant]} polls and streams are waiting already"
            )
        self._waiting_of[tenant] += 1
        self.waiting += 1
        self.working -= 1
        self._tell()
        try:
            yield
        finally:
            self._waiting_of[tenant] -= 1
            if not self._waiting_of[tenant]:
                del self._waiting_of[tenant]
            self.waiting -= 1
            self.working += 1
            self._tell()

    def _tell(self) -> None:
        telemetry.requests_in_hand.labels("working").set(self.working)
        telemetry.requests_in_hand.labels("waiting").set(self.waiting)


def _turned_away(code: str, detail: str) -> Busy:
    telemetry.requests_turned_away.labels(code).inc()
    return Busy(code, detail)
