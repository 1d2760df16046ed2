"""What can go wrong between a client and the server, split by what the caller should do about it.

Refused           the answer is no, and asking again will not change it
  NotAuthorized   401, 403: another token is needed
  NotFound        404: no such thing, or not for this token to see
  Conflict        409, 412: it is not what you thought it was; read it again and decide
    ClaimLost     409 claim_lost: the run belongs to another claim now; stop working on it
    SessionLost   409 session_lost: the session is over; another may be begun
      SessionDisplaced   409 session_displaced: another session stands in its place, and is not to be displaced in turn
Unreachable       no answer, or one that says "later"; asking again may help
NotConfigured     no address or token was found; the message says where they are looked for
Misdeclared       an agent, a runner or a question is declared as it cannot be; nothing was asked of any server
AskClosed         nobody will answer what the run has asked
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final


class MainspringError(Exception):
    """The root of what the SDK raises."""


class NotConfigured(MainspringError):
    """No address or no token."""


class Misdeclared(MainspringError):
    """An agent, a runner or a question is declared as it cannot be: a mistake in the program, found before it is sent."""


class AskClosed(MainspringError):
    """Nobody will answer what the run has asked: it is to be cancelled, or was ended by somebody else."""


class Unreachable(MainspringError):
    """The server gave no answer, or answered that it cannot now.

    `retry_after_seconds` is what the server asked for, if it did.
    """

    def __init__(self, detail: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class Refused(MainspringError):
    """The server understood and said no. `problem` is its RFC 9457 body, `code` its stable word for it."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.code = str(problem.get("code") or "refused")
        super().__init__(_sentence(status, problem))


class NotAuthorized(Refused):
    """The token is unknown, revoked, or does not reach this."""


class NotFound(Refused):
    """There is no such thing, or it is not for this token to see: one answer for both."""


class Conflict(Refused):
    """It was changed meanwhile, or does not fit the state that things are in. Nothing was written.

    `current` is what it is now, where the server says so.
    """

    @property
    def current(self) -> dict[str, Any] | None:
        """Return the thing as it is now, if the answer carried it."""
        current = self.problem.get("current")
        return current if isinstance(current, dict) else None


class ClaimLost(Conflict):
    """The run is another claim's now: what this one does no longer counts."""


class SessionLost(Conflict):
    """The session is over: what it held unread is offered to the agent's next one."""


class SessionDisplaced(SessionLost):
    """Another session of the agent stands in this one's place."""


_OVER: Final[Mapping[str, type[Conflict]]] = {
    "claim_lost": ClaimLost,
    "session_lost": SessionLost,
    "session_displaced": SessionDisplaced,
}


def refusal(status: int, problem: Mapping[str, Any]) -> Refused:
    """Return the error that a definitive answer means."""
    if status in {401, 403}:
        return NotAuthorized(status, problem)
    if status == 404:
        return NotFound(status, problem)
    if status in {409, 412}:
        return _OVER.get(str(problem.get("code")), Conflict)(status, problem)
    return Refused(status, problem)


def _sentence(status: int, problem: Mapping[str, Any]) -> str:
    said = str(problem.get("detail") or problem.get("title") or f"the server answered {status}")
    fields = [
        f"{error.get('pointer', '')}: {error.get('detail', '')}"
        for error in problem.get("errors") or ()
        if isinstance(error, Mapping)
    ]
    return "; ".join([said, *fields])
