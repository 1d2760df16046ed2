"""How a run's attempt can end: values, and what the protocol calls them."""

from __future__ import annotations

import math
import traceback
from dataclasses import dataclass, field
from typing import Any, TypeAlias, assert_never

RESULT_LIMIT = 16_384  # characters of a text that the server keeps; of more we send the end, which says most
CUT = "[cut: only the end is shown]\n"


@dataclass(frozen=True, slots=True)
class Done:
    """The work is done; `result` is what people and rules read about it."""

    result: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The work failed for good: the run becomes a dead letter that somebody reads and may replay."""

    error: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """The work cannot go on until somebody acts; `reason` says what is waited for."""

    reason: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Try the run again later (`None`: when the server's own backoff says), until its attempts are spent."""

    error: str = ""
    after_seconds: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class NeedsInput:
    """The work waits for a person to answer, and holds no slot meanwhile: the run goes on in another attempt, which is given
    the answer. `options` are the answers that it takes; none for any text."""

    question: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody asked for the run to stop, and it stopped."""


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The runner shuts down, and gives the run back unfinished: that spends no attempt. No handler's to say."""

    error: str = "the runner shut down"


Outcome: TypeAlias = Done | Failed | Blocked | NeedsInput | Retry | Cancelled


def sound(outcome: Outcome) -> Outcome:
    """Return a handler's outcome, or the failure that it is when a value in it is not of its kind.

    What the server thinks of a value of the right kind is the server's to say.
    """
    if isinstance(outcome, Failed) and isinstance(error := _any(outcome.error), BaseException):
        return Failed("".join(traceback.format_exception(error)))  # what it means is plain
    wrong = _wrong(outcome)
    return (
        outcome if wrong is None else Failed(f"the handler ended with {type(outcome).__name__}, and {wrong}")
    )


def _wrong(outcome: Outcome) -> str | None:
    match outcome:
        case Done(text) | Failed(text) | Blocked(text):
            return _no_text(text)
        case Retry(text, after_seconds=after_seconds):
            return _no_text(text) or _no_seconds(after_seconds)
        case NeedsInput(text, options):
            return _no_text(text) or _no_texts(options)
        case Cancelled():
            return None
        case _:
            assert_never(outcome)


def _any(value: Any) -> Any:
    """Return a value of which only the handler's author says what it is."""
    return value


def _no_text(value: Any) -> str | None:
    return None if isinstance(value, str) else f"{type(value).__name__} where a text belongs"


def _no_texts(value: Any) -> str | None:
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return None
    return "options that are no list of texts"


def _no_seconds(value: Any) -> str | None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return f"after_seconds={value}" if isinstance(value, float) and not math.isfinite(value) else None
    return f"{type(value).__name__} where seconds belong"


def tail(text: str, limit: int = RESULT_LIMIT) -> str:
    """Return the end of `text`, marked as cut if it was."""
    return text if len(text) <= limit else CUT + text[len(CUT) - limit :]


def clean(text: str) -> str:
    """Return `text` as the server takes it: NUL and lone surrogates are refused there, and must not cost a result."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def to_wire(outcome: Outcome | HandedBack) -> dict[str, Any]:
    """Return the body of a complete, without its claim."""
    match outcome:
        case Done(result):
            return {"outcome": "done", "result": tail(clean(result))}
        case Failed(error):
            return {"outcome": "failed", "error": tail(clean(error))}
        case Blocked(reason):
            return {"outcome": "blocked", "reason": tail(clean(reason))}
        case Retry(error, after_seconds=after_seconds):
            return {
                "outcome": "retry",
                "after_seconds": after_seconds,
                "error": tail(clean(error)) or None,
            }
        case NeedsInput(question, options):
            return {
                "outcome": "needs_input",
                "question": tail(clean(question)),
                "options": [clean(option) for option in options],
            }
        case Cancelled():
            return {"outcome": "cancelled"}
        case HandedBack(error):
            return {"outcome": "retry", "after_seconds": 0, "error": error, "handed_back": True}
        case _:
            assert_never(outcome)
