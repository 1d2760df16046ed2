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

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mainspring.sdk.card import Card
    from mainspring.sdk.client import Client
    from mainspring.sdk.errors import (
        AskClosed,
        ClaimLost,
        Conflict,
        MainspringError,
        Misdeclared,
        NotAuthorized,
        NotConfigured,
        NotFound,
        Refused,
        Unreachable,
    )
    from mainspring.sdk.messages import Message, Posted, Reply
    from mainspring.sdk.outcomes import Blocked, Cancelled, Done, Failed, NeedsInput, Outcome, Retry
    from mainspring.sdk.protocol import Answered, Trigger
    from mainspring.sdk.run import NoCard, Run
    from mainspring.sdk.runner import Runner

__all__ = [
    "Answered",
    "AskClosed",
    "Blocked",
    "Cancelled",
    "Card",
    "ClaimLost",
    "Client",
    "Conflict",
    "Done",
    "Failed",
    "MainspringError",
    "Message",
    "Misdeclared",
    "NeedsInput",
    "NoCard",
    "NotAuthorized",
    "NotConfigured",
    "NotFound",
    "Outcome",
    "Posted",
    "Refused",
    "Reply",
    "Retry",
    "Run",
    "Runner",
    "Trigger",
    "Unreachable",
]

# Each is imported when it is first asked for: the command line reads a profile from here, and should not pay for a client.
_MODULES: Final = {
    "Answered": "protocol",
    "AskClosed": "errors",
    "Blocked": "outcomes",
    "Cancelled": "outcomes",
    "Card": "card",
    "ClaimLost": "errors",
    "Client": "client",
    "Conflict": "errors",
    "Done": "outcomes",
    "Failed": "outcomes",
    "MainspringError": "errors",
    "Message": "messages",
    "Misdeclared": "errors",
    "NeedsInput": "outcomes",
    "NoCard": "run",
    "NotAuthorized": "errors",
    "NotConfigured": "errors",
    "NotFound": "errors",
    "Outcome": "outcomes",
    "Posted": "messages",
    "Refused": "errors",
    "Reply": "messages",
    "Retry": "outcomes",
    "Run": "run",
    "Runner": "runner",
    "Trigger": "protocol",
    "Unreachable": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
