"""How a fabric behaves: its names, times and bounds, checked together. Pure.

The defaults are the contract; tests shorten the times.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mainspring.fabric.subjects import Names
from mainspring.spine.errors import Misuse

HOURS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricSettings:
    """How one instance uses the fabric. Durations are in seconds.

    Args:
        ack_wait_seconds: how long a reference in hand may stay silent until another instance gets it.
        nak_delays_seconds: how long a reference whose callback failed stays away, the first time, the second...
        deliver_max: how often it is handed out before it is parked.
        batch: how many references are in hand at most.
        beat_seconds: how often an idle pull request shows that it is alive.
        hold_seconds: the first and the longest pause between two tries while the store is down.
        jitter_seconds: at most so much later than a reconnect its hooks run, so that instances do not all at once.
        close_seconds: how long closing may take.
        replicas: of the streams, where this instance makes them.
    """

    names: Names = field(default_factory=Names)
    ack_wait_seconds: float = 30.0
    nak_delays_seconds: tuple[float, ...] = (1.0, 5.0, 15.0, 30.0)
    deliver_max: int = 5
    inactive_seconds: float = 48 * HOURS
    max_age_seconds: float = 24 * HOURS
    duplicates_seconds: float = 120.0
    parked_max: int = 10_000
    batch: int = 100
    expires_seconds: float = 30.0
    beat_seconds: float = 2.0
    request_seconds: float = 2.0
    hold_seconds: tuple[float, float] = (0.2, 5.0)
    jitter_seconds: float = 0.5
    close_seconds: float = 10.0
    replicas: int = 1

    def __post_init__(self) -> None:
        if self.deliver_max < 2 or len(self.nak_delays_seconds) < 1 or not 1 <= self.batch <= 1000:
            raise Misuse("deliver_max is at least 2, batch is 1 to 1000, and there is a delay at least")
        if list(self.nak_delays_seconds) != sorted(self.nak_delays_seconds):
            raise Misuse("nak_delays_seconds grow")
        if self.beat_seconds * 2 > self.expires_seconds:
            raise Misuse("beat_seconds is at most half of expires_seconds: NATS refuses more")

    def nak_delay(self, deliveries: int) -> float:
        """Return for how long a reference stays away that failed when it was handed out for the `deliveries`th time."""
        return self.nak_delays_seconds[min(max(deliveries, 1), len(self.nak_delays_seconds)) - 1]
