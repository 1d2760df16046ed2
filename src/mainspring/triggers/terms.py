"""What a rule may ask of an event, and which kinds of event can tell it. Pure, and a leaf of the room.

Takes nothing and leaves nothing: the matcher, the checks and the API speak in these values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, Self, TypeAlias

from mainspring.rooms import Newer
from mainspring.spine.events import Trust

# Kinds ----------------------------------------------------------------------------------------------------------

CARD_KINDS: Final = frozenset(
    f"card.{word}"
    for word in ("created", "moved", "updated", "labeled", "unlabeled", "assigned", "promoted", "deleted")
)
RUN_KINDS: Final = frozenset(
    f"run.{word}"
    for word in ("queued", "started", "needs_input", "done", "failed", "blocked", "cancelled", "lost")
)
MESSAGE_KINDS: Final = frozenset({"message.posted", "message.updated", "message.settled"})
MEMBER_KINDS: Final = frozenset({"member.joined", "member.left"})
ASK_KINDS: Final = frozenset({"ask.opened", "ask.answered"})
EFFECT_KINDS: Final = frozenset({"effect.dead", "effect.replayed", "effect.discarded"})
RULE_CHANGED: Final = "rule.changed"
# what a rule that names no kinds looks at: alerts, talk and what others post are asked for by name
DEFAULT_KINDS: Final = CARD_KINDS | RUN_KINDS
# every kind that a rule may name, beside custom.<name>
RULE_KINDS: Final = DEFAULT_KINDS | MESSAGE_KINDS | MEMBER_KINDS | ASK_KINDS | EFFECT_KINDS | {RULE_CHANGED}
SHOWN_LENGTH_MAX: Final = 100
_CUSTOM: Final = re.compile(r"custom\.[a-z0-9_-]+")


def is_custom(kind: str) -> bool:
    """Tell whether a kind is one that somebody outside makes up."""
    return _CUSTOM.fullmatch(kind) is not None


# Terms ----------------------------------------------------------------------------------------------------------

TermName: TypeAlias = Literal[
    "kinds", "boards", "channels", "from_states", "to_states", "states", "labels_all", "labels_any", "labels_none",
    "labels_added", "fields", "changes", "actors", "agents", "min_trust",
]  # fmt: skip
# in the order in which they are tried: the first that does not hold is the one that explain names
TERMS: Final[tuple[TermName, ...]] = (
    "kinds", "boards", "channels", "from_states", "to_states", "states", "labels_all", "labels_any", "labels_none",
    "labels_added", "fields", "changes", "actors", "agents", "min_trust",
)  # fmt: skip
# those whose values are words in a list
LISTED: Final[tuple[TermName, ...]] = tuple(term for term in TERMS if term not in ("fields", "min_trust"))

_EVERY: Final = frozenset[TermName]({"kinds", "actors", "min_trust"})
_CARD: Final = _EVERY | frozenset[TermName](
    {"boards", "states", "labels_all", "labels_any", "labels_none", "fields"}
)
CARRIED: Final[Mapping[str, frozenset[TermName]]] = MappingProxyType(
    dict.fromkeys(CARD_KINDS, _CARD)
    | dict.fromkeys(RUN_KINDS, _CARD | {"agents"})
    | dict.fromkeys(MESSAGE_KINDS | MEMBER_KINDS, _EVERY | {"channels"})
    | dict.fromkeys(ASK_KINDS, _CARD | {"channels", "agents"})  # of messages, or of runs
    | dict.fromkeys(EFFECT_KINDS, _EVERY)
    | {
        "card.moved": _CARD | {"from_states", "to_states"},
        "card.labeled": _CARD | {"labels_added"},
        RULE_CHANGED: _EVERY | {"changes"},
    }
)
_NONE: Final = frozenset[TermName]()


def carried_by(kind: str) -> frozenset[TermName]:
    """Return the terms that events of a kind can tell; none when rules do not look at it."""
    return CARRIED.get(kind, _CARD if is_custom(kind) else _NONE)


EVERYONE: Final = "anyone"
ACTOR_CLASSES: Final[Mapping[str, str]] = MappingProxyType({"members": "human", "agents": "agent"})
CHANGES: Final = frozenset({"created", "edited", "enabled", "disabled", "deleted", "paused", "resumed"})
# who may set something in motion when nothing is said: members, and our own agents not acting on a stranger's text
MIN_TRUST: Final = Trust.AGENT


Scalar: TypeAlias = str | int | float | bool | None


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are the same in JSON: true is not 1, though Python says so."""
    return isinstance(one, bool) is isinstance(other, bool) and one == other


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """A card's field that must be one of these values; null stands for a field that is not there."""

    name: str
    values: tuple[Scalar, ...]

    def holds(self, fields: Mapping[str, Any]) -> bool:
        """Tell whether a card with these fields fulfils it."""
        value = fields.get(self.name)
        if (
            len(self.values) == 1
        ):  # as a rule; of a hundred rules on a board a generator is most of what they cost
            return same(value, self.values[0])
        return any(same(value, asked) for asked in self.values)

    def as_json(self) -> Scalar | list[Scalar]:
        """Return what is asked of the field: a value, or a list of which one will do."""
        return self.values[0] if len(self.values) == 1 else list(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a rule asks of an event: all terms together, any value inside one, except `labels_all`. Empty asks nothing.

    Values are folded as `boards.model.fold` does; board keys are upper-case. Fields are compared as they are.
    """

    kinds: frozenset[str] = frozenset()
    boards: frozenset[str] = frozenset()
    channels: frozenset[str] = frozenset()
    from_states: frozenset[str] = frozenset()
    to_states: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    labels_all: frozenset[str] = frozenset()
    labels_any: frozenset[str] = frozenset()
    labels_none: frozenset[str] = frozenset()
    labels_added: frozenset[str] = frozenset()
    fields: tuple[FieldTerm, ...] = ()
    changes: frozenset[str] = frozenset()
    actors: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    min_trust: Trust | None = None
    # the terms that ask something, in the order in which they are tried
    asked: tuple[TermName, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "asked", tuple(term for term in TERMS if getattr(self, term)))

    def values(self, term: TermName) -> frozenset[str]:
        """Return the words that a listed term asks for; empty when it asks nothing."""
        values: frozenset[str] = getattr(self, term)
        return values

    @property
    def trust_needed(self) -> Trust:
        """How far an event must be trusted, whether the rule says so or not."""
        return self.min_trust or MIN_TRUST

    @property
    def looked_at(self) -> frozenset[str]:
        """The kinds of event that the rule names, or those that it looks at without naming any."""
        return self.kinds or DEFAULT_KINDS

    @property
    def firing_kinds(self) -> frozenset[str]:
        """The kinds of event that carry every term asked; of no other kind can this match."""
        asked = set(self.asked)
        return frozenset(kind for kind in self.looked_at if asked <= carried_by(kind))

    def as_json(self) -> dict[str, Any]:
        """Return the terms as they are stored and shown: those that ask something."""
        shown: dict[str, Any] = {}
        for term in self.asked:
            match term:
                case "fields":
                    shown[term] = {one.name: one.as_json() for one in self.fields}
                case "min_trust":
                    shown[term] = str(self.min_trust)
                case _:
                    shown[term] = sorted(self.values(term))
        return shown

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read terms as they were stored. Raises Newer: a term that is passed over would match too much."""
        if unknown := stored.keys() - frozenset(TERMS):
            raise Newer(f"the term {', '.join(sorted(unknown))}")
        listed = {term: frozenset(stored[term]) for term in LISTED if term in stored}
        return cls(
            **listed,
            fields=tuple(
                FieldTerm(name, tuple(value) if isinstance(value, list) else (value,))
                for name, value in sorted(stored.get("fields", {}).items())
            ),
            min_trust=Trust(stored["min_trust"]) if "min_trust" in stored else None,
        )

    def told(self, term: TermName) -> str:
        """Return what a term asks for, for people."""
        match term:
            case "fields":
                return ", ".join(f"{one.name} = {' or '.join(map(shown, one.values))}" for one in self.fields)
            case "min_trust":
                return str(self.trust_needed)
            case _:
                return ", ".join(sorted(self.values(term)))


def shown(value: Any) -> str:
    """Return a field's value for people, in short."""
    text = "nothing" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= SHOWN_LENGTH_MAX else text[:SHOWN_LENGTH_MAX] + "…"
