"""What a handler is given: one attempt of one run."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NoReturn, overload

from mainspring.sdk.asking import Asking, question_of
from mainspring.sdk.card import Card, get_card
from mainspring.sdk.client import Client
from mainspring.sdk.errors import MainspringError, Misdeclared
from mainspring.sdk.messages import Message, Posted, post
from mainspring.sdk.outcomes import Blocked, Done, Failed, HandedBack, NeedsInput, Outcome, Retry
from mainspring.sdk.protocol import Answered, Claimed, Trigger
from mainspring.sdk.runlog import RunLog
from mainspring.sdk.steering import Steering
from mainspring.sdk.wire import segment


class Finish(BaseException):
    """Raised to end a handler whose outcome is decided. Not an Exception, so that `except Exception` lets it pass."""


class NoCard(MainspringError):
    """This run is about no card."""


class Run:
    """One attempt of one run, as its handler sees it.

    A handler ends by returning its result (done), by awaiting one of `blocked`, `failed` or `retry` (which never
    return), or by raising (failed, with the traceback). It asks people by `ask`, which waits, or by `needs_input`, which ends
    here until somebody has answered; `answers` are those that earlier attempts of the run have got. `client` acts with the run's own token: it reaches this run and
    its card, and nothing else, and only while this attempt holds the run.
    """

    def __init__(self, claimed: Claimed, client: Client, log: RunLog, asking: Asking) -> None:
        self.id = claimed.run_id
        self.agent = claimed.agent
        self.attempt = claimed.attempt
        self.max_attempts = claimed.max_attempts
        self.prompt = claimed.prompt
        self.trigger: Trigger = claimed.trigger
        self.event: Mapping[str, Any] | None = claimed.event
        self.card_key: str | None = (claimed.card or {}).get("key")
        self.answers: tuple[Answered, ...] = claimed.answers
        self.token = claimed.token
        self.client = client
        self.decided: Outcome | None = None
        self._log = log
        self._asking = asking
        self._steering = Steering(client, of_card=self.card_key is not None)

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.agent} attempt {self.attempt} card {self.card_key}>"

    async def card(self) -> Card:
        """Return the run's card as it is now. Raises NoCard if the run is about none."""
        if self.card_key is None:
            raise NoCard(f"run {self.id} is about no card")
        return await get_card(self.client, self.card_key)

    async def progress(self, text: str) -> None:
        """Write `text` to the run's log. It never fails and never waits for the server."""
        self._log.write(text)

    async def post(
        self,
        channel: str,
        text: str,
        *,
        topic: str | None = None,
        key: str | None = None,
        mentions: Sequence[str] = (),
    ) -> Posted:
        """Post `text` to a channel's topic (`general` without one), once for its `key`: again with other words, it is edited.

        A key that has the run's id in it makes the run's next attempt say it no second time. `mentions` are called by their handles:
        an `@` in an agent's text calls nobody. Raises NotFound for a channel that the agent does not see, and Refused.
        """
        path = f"/channels/{segment(channel)}/messages"
        more: dict[str, Any] = {} if topic is None else {"topic": topic}
        return await post(self.client, path, text, key or str(uuid.uuid4()), mentions=mentions, **more)

    def steering(self) -> AsyncIterator[Message]:
        """Yield what was said in the card's topic meanwhile, and is owed to the agent; end when there is nothing more.

        `async for note in run.steering()`, as often as it suits. A message is acked when the next one is asked for, and the last when
        the run is done or blocked: then it comes no more. The one in hand when the run ends in another way, or the process dies, comes
        again, to the run's next attempt as well; one that ends five runs so is a dead letter. What is not read is left to the
        agent's next session. A run without a card reads the agent's other messages, if no session does.
        """
        return self._steering.read()

    async def close(self, outcome: Outcome | HandedBack | None = None) -> None:
        """Let go of what the run holds beside its claim, now that it has come to this: for whoever has called the handler."""
        match outcome:
            case Done() | Blocked():
                await self._steering.close("handled")
            case Failed():
                await self._steering.close("failed")
            case _:
                await self._steering.close("again")

    @overload
    async def ask(self, question: str, options: Sequence[str] = ()) -> str: ...

    @overload
    async def ask(
        self, question: str, options: Sequence[str] = (), *, timeout_seconds: float
    ) -> str | None: ...

    async def ask(
        self, question: str, options: Sequence[str] = (), *, timeout_seconds: float | None = None
    ) -> str | None:
        """Ask people, wait for the first answer, and return it; None when nobody gave one within `timeout_seconds`.

        With `options` the answer is one of them. The run is held meanwhile, and the time of waiting does not count for its
        time-out: for questions that may take hours there is `needs_input`. If this runner dies, the next attempt that asks the
        same gets the answer. Raises Misdeclared for what is no question, and AskClosed when nobody will answer any more.
        """
        asked = question_of(question, options)
        if timeout_seconds is not None and not timeout_seconds > 0:
            raise Misdeclared("timeout_seconds must be positive")
        return await self._asking.ask(asked, timeout_seconds)

    async def needs_input(self, question: str, options: Sequence[str] = ()) -> str:
        """Return the answer to the question, if somebody has given it; if not, end here until somebody does.

        Until then the run holds no slot and no runner. The answer queues it again: the handler begins anew, and this returns.
        What it asks twice in the same words needs two answers. Raises Misdeclared for what is no question.
        """
        asked = question_of(question, options)
        given = self._asking.given(asked)
        return given if given is not None else self._decide(NeedsInput(*asked))

    async def blocked(self, reason: str) -> NoReturn:
        """End here: nothing can be done until somebody acts, for this reason."""
        self._decide(Blocked(reason))

    async def failed(self, error: str) -> NoReturn:
        """End here, failed for good: it becomes a dead letter for a person to read and replay."""
        self._decide(Failed(error))

    async def retry(self, *, after_seconds: float | None = None, error: str = "") -> NoReturn:
        """End here, and start again later: after so many seconds, or when the server's own backoff says."""
        self._decide(Retry(after_seconds=after_seconds, error=error))

    def _decide(self, outcome: Outcome) -> NoReturn:
        # Remembered here too: a handler's task group wraps what is raised, and a bare except may swallow it.
        if self.decided is None:
            self.decided = outcome
        raise Finish
