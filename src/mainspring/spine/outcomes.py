"""What an executor answers, and what is made of what it raises. Pure: no await, no clock.

Takes whatever an executor returned or raised; leaves one of the outcomes, with a text that every store accepts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from mainspring.spine.errors import Definitive, Misuse, OutcomeUnknown, Transient

TEXT_LENGTH_MAX = 4_000
DELAY_MAX_SECONDS = 10 * 365 * 86_400.0


def check_delay(seconds: float) -> None:
    """Raise Misuse for a wait that would never end, or that no clock can tell: such a row would be lost without a word."""
    if not 0 <= seconds <= DELAY_MAX_SECONDS:
        raise Misuse(f"a delay in seconds is 0 to {DELAY_MAX_SECONDS:.0f}, not {seconds}")


@dataclass(frozen=True, slots=True)
class Done:
    """It happened."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """It need not happen any more: the reason says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Retry:
    """It failed and may succeed later; an attempt is spent. `after_seconds` replaces the backoff when given."""

    error: str
    after_seconds: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.after_seconds is not None:
            check_delay(self.after_seconds)


@dataclass(frozen=True, slots=True)
class Deferred:
    """It could not be tried, or was told to come back later; no attempt is spent, and it waits `after_seconds`.

    Args:
        tried: whoever was to receive it has seen it. The attempt is recorded, and one that is told so again and again waits longer.
    """

    reason: str = ""
    after_seconds: float = field(kw_only=True)
    tried: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_delay(self.after_seconds)


@dataclass(frozen=True, slots=True)
class Held:
    """It may not be tried until somebody sets it free; no attempt is spent. A transactional executor's writes stand."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """It failed, and trying again changes nothing."""

    error: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may or may not have happened."""

    error: str


Outcome: TypeAlias = Done | Dropped | Retry | Deferred | Held | Failed | Unknown


def clean(text: str) -> str:
    """Return a text that every store accepts: errors quote hostile input, and must not become a second failure."""
    if not text.isascii() or "\x00" in text:
        text = text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return text[:TEXT_LENGTH_MAX]


def checked(outcome: object) -> Outcome:
    """Return what an executor answered; raise Misuse when that is none of the outcomes. None does not mean Done."""
    if not isinstance(outcome, Outcome):
        raise Misuse(
            f"an executor answers Done, Dropped, Retry, Deferred, Held, Failed or Unknown, not {outcome!r:.200}"
        )
    match outcome:
        case (
            Done(text)
            | Dropped(text)
            | Held(text)
            | Failed(text)
            | Unknown(text)
            | Retry(text)
            | Deferred(text)
        ):
            said: object = text
    if not isinstance(said, str):
        raise Misuse(f"an outcome says why in text, not as in {outcome!r:.200}")
    return outcome


def outcome_of(error: Exception) -> Outcome:
    """Classify what an executor raised: by the error tree; anything foreign may pass, so it is tried again."""
    text = f"{type(error).__name__}: {error}"
    match error:
        case Definitive() | Misuse():
            return Failed(text)
        case OutcomeUnknown() | TimeoutError():
            return Unknown(text)
        case Transient():
            return Retry(text)
        case _:
            return Retry(text)
