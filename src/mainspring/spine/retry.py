"""How long to wait before trying again. Pure: the caller brings the randomness."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential delays: `base_seconds * factor ** n`, at most `cap_seconds`, spread by ± `jitter`."""

    base_seconds: float = 5.0
    factor: float = 3.0
    cap_seconds: float = 3600.0
    jitter: float = 0.2

    def delay_seconds(self, attempts_before: int, *, random: float) -> float:
        """Return the wait after `attempts_before` earlier failures; `random` is in [0, 1)."""
        assert attempts_before >= 0
        assert 0 <= random < 1
        # 60 doublings are beyond any cap; without the bound a long-lived row overflows the float
        plain = min(self.cap_seconds, self.base_seconds * self.factor ** min(attempts_before, 60))
        return plain * (1 - self.jitter + 2 * self.jitter * random)


DEFAULT_BACKOFF = Backoff()
