"""How long to wait before a program that died is started again. Pure: it is told how long the program lived."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_SECONDS = 0.1
LONGEST_SECONDS = 5.0
HEALTHY_AFTER_SECONDS = 10.0
HOPELESS_AFTER = 5


@dataclass(slots=True)
class Backoff:
    """Doubles from 0.1 s to 5 s; a program that lived for ten seconds starts over."""

    deaths: int = 0  # in a row
    total: int = 0

    def died(self, *, uptime_seconds: float) -> float:
        """Seconds to wait before the next start."""
        if uptime_seconds >= HEALTHY_AFTER_SECONDS:
            self.deaths = 0
        self.deaths += 1
        self.total += 1
        return float(min(FIRST_SECONDS * 2 ** (self.deaths - 1), LONGEST_SECONDS))

    @property
    def hopeless(self) -> bool:
        """It died so often in a row that another start would change nothing."""
        return self.deaths >= HOPELESS_AFTER
