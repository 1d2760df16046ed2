"""Events: what happened, in the order in which it committed. Pure values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Self
from uuid import UUID

from mainspring.spine.errors import Misuse

KIND = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)?")
SUBJECT_LENGTH_MAX = 200
JSON_DEPTH_MAX = 100  # far below what any reader's stack takes: what is stored can always be read again
_TEXTS = re.compile(r'"(?:[^"\\]|\\.)*"')


def too_deep(text: str) -> bool:
    """Tell whether a JSON text nests deeper than JSON_DEPTH_MAX."""
    if text.count("{") + text.count("[") <= JSON_DEPTH_MAX:
        return False
    depth = 0
    for mark in _TEXTS.sub("", text):
        depth += (mark in "{[") - (mark in "}]")
        if depth > JSON_DEPTH_MAX:
            return True
    return False


class Trust(StrEnum):
    """How far an event's origin is trusted; the least of its actor's and its causes'."""

    STRANGER = "stranger"
    FORGE = "forge"
    AGENT = "agent"
    MEMBER = "member"

    @property
    def rank(self) -> int:
        """The place in the order, 0 for the least trusted."""
        return _RANKS[self]


# asked of every event and every rule that could match it
_RANKS: Final = {level: rank for rank, level in enumerate(Trust)}


def least_trusted(*levels: Trust) -> Trust:
    """Return the lowest of the given levels."""
    return min(levels, key=lambda level: level.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What an act descends from: the event's seq, the rules passed through, the depth of the chain, the trust left."""

    seq: int | None = None
    via: tuple[UUID, ...] = ()
    depth: int = 0
    trust: Trust = Trust.MEMBER


NO_CAUSE = Cause()


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event about to be appended. `data` is an immutable snapshot of what was true; JSON values only."""

    kind: str
    subject: str = field(default="", kw_only=True)
    data: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    actor_id: UUID | None = field(default=None, kw_only=True)
    cause: Cause = field(default=NO_CAUSE, kw_only=True)
    traceparent: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not KIND.fullmatch(self.kind):
            raise Misuse(f"an event kind is one or two lower-case words joined by a dot, not {self.kind!r}")
        if len(self.subject) > SUBJECT_LENGTH_MAX:
            raise Misuse(f"an event's subject is at most {SUBJECT_LENGTH_MAX} characters")

    def caused_by(self, cause: Cause) -> Self:
        """Return the same event with another cause."""
        return replace(self, cause=cause)


@dataclass(frozen=True, slots=True)
class Written:
    """An event that was appended, as those are told who wake others: which one it is, and what about."""

    seq: int
    kind: str
    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A committed event. `seq` is gapless within its tenant and is the order of commits."""

    tenant_id: UUID
    seq: int
    id: UUID
    kind: str
    subject: str
    actor_id: UUID | None
    data: Mapping[str, Any]
    cause_seq: int | None
    via: tuple[UUID, ...]
    depth: int
    trust: Trust
    traceparent: str | None
    occurred_at: datetime

    def as_cause(self, *, via: tuple[UUID, ...] = ()) -> Cause:
        """Return the cause that acts owed by this event carry: one deeper, and through these rules as well."""
        passed = self.via + tuple(rule for rule in via if rule not in self.via)
        return Cause(seq=self.seq, via=passed, depth=self.depth + 1, trust=self.trust)
