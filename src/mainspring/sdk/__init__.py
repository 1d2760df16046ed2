"""Mainspring's client: write agents, run them on any machine, talk to the server.

    from mainspring.sdk import Runner, Run

    runner = Runner()

    @runner.agent("greeter")
    async def greeter(run: Run) -> str:
        card = await run.card()
        return f"hello, {card.title}"

    runner.run()

This package uses httpx and the standard library, and nothing else of Mainspring's.
"""

from __future__ import annotations

from mainspring.sdk.card import Card
from mainspring.sdk.client import Client
from mainspring.sdk.errors import (
    ClaimLost,
    Conflict,
    MainspringError,
    NotAuthorized,
    NotConfigured,
    NotFound,
    Refused,
    Unreachable,
)
from mainspring.sdk.outcomes import Blocked, Cancelled, Done, Failed, Outcome, Retry
from mainspring.sdk.protocol import Trigger
from mainspring.sdk.run import NoCard, Run
from mainspring.sdk.runner import Runner

__all__ = [
    "Blocked",
    "Cancelled",
    "Card",
    "ClaimLost",
    "Client",
    "Conflict",
    "Done",
    "Failed",
    "MainspringError",
    "NoCard",
    "NotAuthorized",
    "NotConfigured",
    "NotFound",
    "Outcome",
    "Refused",
    "Retry",
    "Run",
    "Runner",
    "Trigger",
    "Unreachable",
]
