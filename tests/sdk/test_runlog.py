"""Log lines: in order, in batches, each once, and never in the handler's way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mainspring.sdk.errors import ClaimLost
from mainspring.sdk.runlog import BATCH_LINES, LINE_CHARACTERS, RunLog


class Sent:
    """Takes batches as the server would."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[str]]] = []
        self.takes_more = True
        self.error: Exception | None = None

    async def __call__(self, offset: int, lines: Sequence[str]) -> bool:
        if self.error is not None:
            raise self.error
        self.batches.append((offset, list(lines)))
        return self.takes_more


async def test_lines_are_numbered_through_all_batches() -> None:
    sent = Sent()
    log = RunLog(sent)
    log.write("\n".join(str(n) for n in range(BATCH_LINES + 1)))
    await log.run_once()
    log.write("more")
    await log.run_once()
    assert [(offset, len(lines)) for offset, lines in sent.batches] == [
        (0, BATCH_LINES),
        (BATCH_LINES, 1),
        (BATCH_LINES + 1, 1),
    ]


async def test_empty_lines_count_and_long_ones_are_split() -> None:
    sent = Sent()
    log = RunLog(sent)
    log.write("")
    log.write("x" * (LINE_CHARACTERS + 1))
    await log.run_once()
    assert [len(line) for _, lines in sent.batches for line in lines] == [0, LINE_CHARACTERS, 1]


async def test_the_oldest_lines_are_given_up_and_counted_in_the_log_itself() -> None:
    sent = Sent()
    log = RunLog(sent, kept_lines=2)
    log.write("a\nb\nc\nd\ne")
    await log.run_once()
    assert sent.batches == [(0, ["[3 older lines were given up: the server was out of reach]", "d", "e"])]


async def test_a_full_log_takes_no_more_and_holds_nobody_up() -> None:
    sent = Sent()
    sent.takes_more = False
    log = RunLog(sent)
    for text in ("fits", "does not"):
        log.write(text)
        await log.run_once()
        await log.flush()
    assert sent.batches == [(0, ["fits"])]


async def test_a_lost_claim_ends_the_log_and_not_the_sender() -> None:
    sent = Sent()
    sent.error = ClaimLost(409, {})
    log = RunLog(sent)
    log.write("too late")
    await log.run_once()
    await log.flush()
    assert sent.batches == []


async def test_flush_waits_for_what_was_written_before_it() -> None:
    sent = Sent()
    log = RunLog(sent)
    sending = asyncio.create_task(log.run())
    log.write("one")
    await log.flush()
    assert sent.batches == [(0, ["one"])]
    sending.cancel()
