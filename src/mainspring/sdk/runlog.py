"""A run's log lines on their way to the server: written at once, sent in order, in batches, each line once.

Takes lines from the handler without ever making it wait; leaves them in the run's log. Lines wait in memory while the
server is out of reach, the oldest are given up beyond a bound (and counted in the log itself), and what is unsent when
the runner dies is lost: a log is evidence, not a result.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from mainspring.sdk.errors import Refused
from mainspring.sdk.outcomes import clean

_log = logging.getLogger("mainspring.sdk")

BATCH_LINES = 500
BATCH_CHARACTERS = 64 * 1024
LINE_CHARACTERS = 16_000
KEPT_LINES = 10_000

Send = Callable[[int, Sequence[str]], Awaitable[bool]]


class RunLog:
    """Lines of one claim of one run. `send(offset, lines)` returns whether the log takes more."""

    def __init__(self, send: Send, *, kept_lines: int = KEPT_LINES) -> None:
        self._send = send
        self._kept_lines = kept_lines
        self._lines: deque[str] = deque()
        self._given_up = 0
        self._sent = 0
        self._open = True
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def write(self, text: str) -> None:
        """Take the lines of `text`."""
        if not self._open:
            return
        for line in clean(text).splitlines() or [""]:
            self._lines.extend(
                line[at : at + LINE_CHARACTERS] for at in range(0, len(line) or 1, LINE_CHARACTERS)
            )
        while len(self._lines) > self._kept_lines:
            self._lines.popleft()
            self._given_up += 1
        self._idle.clear()
        self._wake.set()

    async def flush(self) -> None:
        """Wait until everything written so far has been sent, or nothing more can be."""
        await self._idle.wait()

    async def run(self) -> None:
        """Send what is written, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.run_once()

    async def run_once(self) -> None:
        """Send all that is waiting."""
        try:
            while self._open and self._lines:
                batch = self._next_batch()
                self._open = await self._send(self._sent, batch)
                self._sent += len(batch)
        except Refused as refused:  # the claim is lost, or the run is over: nobody takes these lines any more
            _log.info("log lines are no longer taken: %s", refused)
            self._open = False
        finally:
            if not self._open:
                self._lines.clear()
            if not self._lines:
                self._idle.set()

    def _next_batch(self) -> list[str]:
        batch: list[str] = []
        if self._given_up:
            batch.append(f"[{self._given_up} older lines were given up: the server was out of reach]")
            self._given_up = 0
        characters = 0
        while self._lines and len(batch) < BATCH_LINES and characters < BATCH_CHARACTERS:
            line = self._lines.popleft()
            characters += len(line)
            batch.append(line)
        return batch
