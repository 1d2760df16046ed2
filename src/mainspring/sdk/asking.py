"""What an attempt asks of people. Takes a question; leaves the answer, and the time-out clock as it was before.

While somebody is asked, the claim is kept, the clock stands still, and the heartbeats fetch the answer. If the runner dies here, the
question stays open: the run's next attempt is given the answer, or waits for the same question when it asks it again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from mainspring.sdk import protocol
from mainspring.sdk.client import FOR_EVER, Client
from mainspring.sdk.errors import AskClosed, ClaimLost, Misdeclared, NotFound
from mainspring.sdk.outcomes import RESULT_LIMIT, clean
from mainspring.sdk.protocol import AskNow, Claimed

OPTIONS_MAX = 20
OPTION_CHARACTERS = 200

Question: TypeAlias = tuple[str, tuple[str, ...]]


class TimeOut:
    """A handler's time: calls `then` once it has worked for so long. What it waits for people in does not count.

    `keep` is told for how long the claim is to be kept from now on.
    """

    def __init__(self, seconds: float, then: Callable[[], None], keep: Callable[[float], None]) -> None:
        self._left = seconds
        self._then = then
        self._keep = keep
        self._loop = asyncio.get_running_loop()
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stops = 0
        self._over = False

    def start(self) -> None:
        """Let it run, from where it stood."""
        if not self._over:
            self._since = self._loop.time()
            self._timer = self._loop.call_later(self._left, self._fire)
            self._keep(self._left)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let it stand still for the block; several at once are one."""
        self._stops += 1
        if self._stops == 1 and self._timer is not None and not self._over:
            self._timer.cancel()
            self._left = max(0.0, self._left - (self._loop.time() - self._since))
            self._keep(FOR_EVER)
        try:
            yield
        finally:
            self._stops -= 1
            if self._stops == 0:
                self.start()

    def cancel(self) -> None:
        """End it for good."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self._over = True
        self._then()


class Asking:
    """The questions of one attempt, and the answers that were given before it began.

    `listen` lets the heartbeats fetch the answer of an open question, which comes by `hear`; `lose` is called when the run turns
    out to be another claim's.
    """

    def __init__(
        self,
        claimed: Claimed,
        client: Client,
        clock: TimeOut,
        *,
        listen: Callable[[str], None],
        lose: Callable[[], None],
    ) -> None:
        self._claimed = claimed
        self._client = client
        self._clock = clock
        self._listen = listen
        self._lose = lose
        self._waiting: dict[str, asyncio.Future[AskNow]] = {}
        self._given: dict[Question, deque[str]] = defaultdict(deque)
        for one in claimed.answers:
            self._given[one.question, one.options].append(one.answer)

    def given(self, question: Question) -> str | None:
        """Return, once, the answer that this question was given before the attempt began."""
        answers = self._given.get(question)
        return answers.popleft() if answers else None

    async def ask(self, question: Question, timeout_seconds: float | None) -> str | None:
        """Return the answer; None when nobody gave one in time. Raises AskClosed, and Refused."""
        if (given := self.given(question)) is not None:
            return given
        with self._clock.stopped():
            now = await self._answer(question, timeout_seconds)
        match now.state:
            case "answered":
                return now.answer
            case "expired":
                return None
            case _:
                raise AskClosed(now.reason or f"the question is {now.state}")

    def hear(self, now: AskNow) -> None:
        """Take the end of a question."""
        waiting = self._waiting.get(now.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(now)

    async def _answer(self, question: Question, timeout_seconds: float | None) -> AskNow:
        try:
            now = await protocol.ask(
                self._client, self._claimed, str(uuid.uuid4()), *question, timeout_seconds=timeout_seconds
            )
        except (ClaimLost, NotFound):
            self._lose()
            await asyncio.Event().wait()  # for the cancellation that this brings
            raise
        if now.state != "open":
            return now
        waiting: asyncio.Future[AskNow] = asyncio.get_running_loop().create_future()
        self._waiting[now.id] = waiting
        try:
            self._listen(now.id)
            return await waiting
        finally:
            del self._waiting[now.id]


def question_of(question: str, options: Sequence[str]) -> Question:
    """Return a question as the server has it. Raises Misdeclared for what it would refuse."""
    asked = clean(question).strip() if isinstance(question, str) else ""
    if not 1 <= len(asked) <= RESULT_LIMIT:
        raise Misdeclared(f"a question is a text of 1 to {RESULT_LIMIT} characters")
    if isinstance(options, str) or not all(isinstance(option, str) for option in options):
        raise Misdeclared("the options of a question are a list of texts")
    offered = tuple(clean(option).strip() for option in options)
    if len(offered) > OPTIONS_MAX or not all(1 <= len(option) <= OPTION_CHARACTERS for option in offered):
        raise Misdeclared(
            f"a question has at most {OPTIONS_MAX} options, of 1 to {OPTION_CHARACTERS} characters"
        )
    if len({option.casefold() for option in offered}) < len(offered):
        raise Misdeclared("two options of a question are the same, but for their case")
    return asked, offered
