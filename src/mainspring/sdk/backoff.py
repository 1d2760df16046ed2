"""How long to wait before asking again: pure, the randomness is handed in."""

from __future__ import annotations

FIRST_SECONDS = 0.2
CAP_SECONDS = 15.0
_DOUBLINGS_TO_CAP = 10  # beyond this the power is never looked at, so it cannot overflow


def delay_seconds(failures: int, random: float, *, at_least: float | None = None) -> float:
    """Return the wait after `failures` failures in a row: doubling to a cap, half of it jittered by `random` in [0, 1).

    `at_least` is what the server asked for. Jitter matters when a server comes back to a hundred waiting runners.
    """
    if failures < 1:
        raise ValueError("a wait follows at least one failure")
    full = min(CAP_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - 1, _DOUBLINGS_TO_CAP))
    wait = full / 2 + full / 2 * random
    return max(wait, at_least or 0.0)
