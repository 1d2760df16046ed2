"""Questions that runs ask of people, as values: what may be asked, what answers it, and what is said of it. Pure.

A question keeps its run's claim (`run.ask`: the runner waits), or has given it up (`needs_input`: the answer queues the run again).
The first answer counts. Takes what was read under the run's lock; leaves what shall be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from mainspring.agents.model import FINAL, RunState
from mainspring.rooms import Conflict, FieldError, Invalid

QUESTION_LENGTH_MAX: Final = 16_384
ANSWER_LENGTH_MAX: Final = 16_384
OPTIONS_MAX: Final = 20
OPTION_LENGTH_MAX: Final = 200
# A dead letter may be replayed: who has lost its runner keeps its questions, and who has failed may ask them anew.
CLOSING: Final = FINAL | {RunState.FAILED}


class AskState(StrEnum):
    """Where a question stands. Only an open one is answered."""

    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAsk:
    """A question about to be asked. `request_id` is the asker's own name for this asking: sent again, it is the same one.

    `released`: the claim is given up for it. `timeout_seconds`: how long its asker waits; None is as long as it takes.
    """

    request_id: UUID
    question: str
    options: tuple[str, ...] = ()
    released: bool = False
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question as it is, with what people want to know of its run."""

    id: UUID
    run_id: UUID
    run_state: RunState
    agent_handle: str
    card_key: str | None
    question: str
    options: tuple[str, ...]
    released: bool
    state: AskState
    answer: str | None
    answered_by: str | None
    answered_by_id: UUID | None
    reason: str | None
    asked_at: datetime
    expires_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskEnded:
    """What the runner that waits is told of a question that is over."""

    id: UUID
    state: AskState
    answer: str | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A question of the run that has been answered, as a claim is given it."""

    id: UUID
    question: str
    options: tuple[str, ...]
    answer: str
    answered_by: str
    answered_at: datetime


def snapshot(ask: Ask) -> dict[str, Any]:
    """Return the question as its events carry it."""
    return {
        "id": str(ask.id),
        "run_id": str(ask.run_id),
        "question": ask.question,
        "options": list(ask.options),
        "released": ask.released,
        "state": str(ask.state),
        "answer": ask.answer,
        "expires_at": ask.expires_at.isoformat() if ask.expires_at else None,
    }


def checked_question(question: str, options: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return a question and its options as they are kept. Raises Invalid."""
    found: list[FieldError] = []
    asked = question.strip()
    if not 1 <= len(asked) <= QUESTION_LENGTH_MAX or "\0" in asked:
        found.append(FieldError("/question", f"1 to {QUESTION_LENGTH_MAX} characters"))
    offered = tuple(option.strip() for option in options)
    if len(offered) > OPTIONS_MAX:
        found.append(FieldError("/options", f"at most {OPTIONS_MAX}; leave them out for any text"))
    for n, option in enumerate(offered):
        if not 1 <= len(option) <= OPTION_LENGTH_MAX or "\0" in option:
            found.append(FieldError(f"/options/{n}", f"1 to {OPTION_LENGTH_MAX} characters"))
        elif option.casefold() in {other.casefold() for other in offered[:n]}:
            found.append(FieldError(f"/options/{n}", "is there already; case and outer space do not matter"))
    if found:
        raise Invalid(*found)
    return asked, offered


def checked_answer(ask: Ask, text: str) -> str:
    """Return an answer as it is kept: one of the options as the question spells it, or any text. Raises Invalid."""
    said = text.strip()
    if not 1 <= len(said) <= ANSWER_LENGTH_MAX or "\0" in said:
        raise Invalid(FieldError("/answer", f"1 to {ANSWER_LENGTH_MAX} characters"))
    if not ask.options:
        return said
    for option in ask.options:
        if option.casefold() == said.casefold():
            return option
    raise Invalid(FieldError("/answer", f"is none of the options: {', '.join(ask.options)}"))


def why_not(ask: Ask) -> Conflict:
    """Return the refusal of an answer to a question that is not open any more."""
    match ask.state:
        case AskState.ANSWERED:
            return Conflict(f"{ask.answered_by} has answered it: {ask.answer}", code="ask_answered")
        case AskState.CLOSED:
            return Conflict(f"nobody waits for it any more: {ask.reason}", code="ask_closed")
        case _:
            return Conflict("nobody waits for it any more: its time was over", code="ask_closed")
