"""What a handler is given: one attempt of one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from mainspring.sdk.card import Card, get_card
from mainspring.sdk.client import Client
from mainspring.sdk.errors import MainspringError
from mainspring.sdk.outcomes import Blocked, Failed, Outcome, Retry
from mainspring.sdk.protocol import Claimed, Trigger
from mainspring.sdk.runlog import RunLog


class Finish(BaseException):
    """Raised to end a handler whose outcome is decided. Not an Exception, so that `except Exception` lets it pass."""


class NoCard(MainspringError):
    """This run is about no card."""


class Run:
    """One attempt of one run, as its handler sees it.

    A handler ends by returning its result (done), by awaiting one of `blocked`, `failed` or `retry` (which never
    return), or by raising (failed, with the traceback). `client` acts with the run's own token: it reaches this run and
    its card, and nothing else, and only while this attempt holds the run.
    """

    def __init__(self, claimed: Claimed, client: Client, log: RunLog) -> None:
        self.id = claimed.run_id
        self.agent = claimed.agent
        self.attempt = claimed.attempt
        self.max_attempts = claimed.max_attempts
        self.prompt = claimed.prompt
        self.trigger: Trigger = claimed.trigger
        self.event: Mapping[str, Any] | None = claimed.event
        self.card_key: str | None = (claimed.card or {}).get("key")
        self.token = claimed.token
        self.client = client
        self.decided: Outcome | None = None
        self._log = log

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
