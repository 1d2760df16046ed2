"""Rules as values: what a rule may say, which events can tell it, and what it needs from other rooms. Pure.

Takes nothing and leaves nothing: every other module of the room speaks in these values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, TypeAlias
from uuid import UUID

from mainspring.agents.model import Agent, NewRun
from mainspring.boards.model import Card

if TYPE_CHECKING:
    from mainspring.rooms import Actor, Tx

# From this depth on, an event launches nobody: a chain of causes that long is a loop until somebody says otherwise.
DEPTH_MAX: Final = 8

# What a rule may look at, and what each kind of event can tell it -----------------------------------------------

CARD_KINDS: Final = frozenset(
    f"card.{word}"
    for word in ("created", "moved", "updated", "labeled", "unlabeled", "assigned", "promoted", "deleted")
)
RUN_KINDS: Final = frozenset(
    f"run.{word}"
    for word in ("queued", "started", "needs_input", "done", "failed", "blocked", "cancelled", "lost")
)
RULE_KINDS: Final = CARD_KINDS | RUN_KINDS

TermName: TypeAlias = Literal[
    "kinds", "boards", "from_states", "to_states", "states", "labels_all", "labels_any", "labels_none",
    "labels_added", "actors", "agents",
]  # fmt: skip
# in the order in which they are tried: the first that does not hold is the one that explain names
TERMS: Final[tuple[TermName, ...]] = (
    "kinds", "boards", "from_states", "to_states", "states", "labels_all", "labels_any", "labels_none",
    "labels_added", "actors", "agents",
)  # fmt: skip
_EVERY: Final = frozenset[TermName](
    {"kinds", "boards", "states", "labels_all", "labels_any", "labels_none", "actors"}
)
CARRIED: Final[Mapping[str, frozenset[TermName]]] = MappingProxyType(
    dict.fromkeys(CARD_KINDS, _EVERY)
    | dict.fromkeys(RUN_KINDS, _EVERY | {"agents"})
    | {
        "card.moved": _EVERY | {"from_states", "to_states"},
        "card.labeled": _EVERY | {"labels_added"},
    }
)
EVERYONE: Final = "anyone"
ACTOR_CLASSES: Final[Mapping[str, str]] = MappingProxyType({"members": "human", "agents": "agent"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a rule asks of an event: all terms together, any value inside one, except `labels_all`. Empty asks nothing.

    Values are folded as `boards.model.fold` does; board keys are upper-case.
    """

    kinds: frozenset[str] = frozenset()
    boards: frozenset[str] = frozenset()
    from_states: frozenset[str] = frozenset()
    to_states: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    labels_all: frozenset[str] = frozenset()
    labels_any: frozenset[str] = frozenset()
    labels_none: frozenset[str] = frozenset()
    labels_added: frozenset[str] = frozenset()
    actors: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()

    def values(self, term: TermName) -> frozenset[str]:
        """Return what a term asks for; empty when it asks nothing."""
        values: frozenset[str] = getattr(self, term)
        return values

    @property
    def asked(self) -> tuple[TermName, ...]:
        """The terms that ask something, in the order in which they are tried."""
        return tuple(term for term in TERMS if self.values(term))

    @property
    def firing_kinds(self) -> frozenset[str]:
        """The kinds of event that carry every term asked; of no other kind can this match."""
        asked = set(self.asked)
        return frozenset(kind for kind in self.kinds or RULE_KINDS if asked <= CARRIED.get(kind, frozenset()))

    def as_json(self) -> dict[str, Any]:
        """Return the terms as they are stored and shown: those that ask something."""
        return {term: sorted(self.values(term)) for term in self.asked}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read terms as they were stored."""
        return cls(**{term: frozenset(values) for term, values in stored.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Launch this agent with this prompt."""

    agent: str
    prompt: str

    def as_json(self) -> dict[str, Any]:
        """Return the action as it is stored and shown under `do`."""
        return {"launch": {"agent": self.agent, "prompt": self.prompt}}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read an action as it was stored."""
        return cls(agent=stored["launch"]["agent"], prompt=stored["launch"]["prompt"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a rule fires.

    Args:
        consume_label: the launch takes the matched `labels_all` off its card; one that finds them gone does nothing.
        recheck: the card must still match when the launch is executed.
        self_trigger: match what this rule's own effects caused, too.
    """

    consume_label: bool = False
    recheck: bool = False
    self_trigger: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the options as they are stored and shown: those that are set."""
        every = {
            "consume_label": self.consume_label,
            "recheck": self.recheck,
            "self_trigger": self.self_trigger,
        }
        return {name: value for name, value in every.items() if value}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read options as they were stored."""
        return cls(**stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a rule says, checked."""

    name: str
    terms: Terms
    action: Launch
    options: Options = Options()

    def as_json(self) -> dict[str, Any]:
        """Return the definition as it is shown and taken in."""
        return {
            "name": self.name,
            "when": self.terms.as_json(),
            "do": self.action.as_json(),
            "options": self.options.as_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleVersion:
    """One version of a rule: it judges the events with from_seq < seq <= until_seq."""

    rule_id: UUID
    name: str
    version: int
    enabled: bool
    terms: Terms
    action: Launch
    options: Options = Options()
    from_seq: int
    until_seq: int | None = None

    def spans(self, seq: int) -> bool:
        """Whether an event of this seq is this version's to judge."""
        return self.from_seq < seq and (self.until_seq is None or seq <= self.until_seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule as it is now. `from_seq` is None until its own event is written, at the end of the transaction."""

    id: UUID
    definition: Definition
    enabled: bool
    version: int
    from_seq: int | None
    created_at: datetime
    changed_at: datetime
    changed_by: str
    deleted: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the rule as it is shown."""
        return {
            "id": str(self.id),
            **self.definition.as_json(),
            "enabled": self.enabled,
            "version": self.version,
            "from_seq": self.from_seq,
            "created_at": self.created_at.isoformat(),
            "changed_at": self.changed_at.isoformat(),
            "changed_by": self.changed_by,
        }


def snapshot(rule: Rule) -> dict[str, Any]:
    """Return the rule as its events carry it."""
    return {
        "id": str(rule.id),
        **rule.definition.as_json(),
        "enabled": rule.enabled,
        "version": rule.version,
        "deleted": rule.deleted,
    }


@dataclass(frozen=True, slots=True)
class Remark:
    """Something about a rule that is accepted and yet may not be what its author means."""

    pointer: str
    detail: str

    def as_json(self) -> dict[str, str]:
        """Return the remark as it is shown."""
        return {"pointer": self.pointer, "detail": self.detail}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a rule's names are looked up in: each board's states, and the kind of each account that was asked for."""

    boards: Mapping[str, frozenset[str]] = field(default_factory=dict)
    accounts: Mapping[str, str] = field(default_factory=dict)


# What this room asks of others: wiring hands in their verbs ------------------------------------------------------


class Cards(Protocol):
    """Cards, under their lock. Every verb runs in the caller's transaction."""

    async def lock_card(self, tx: Tx, card_id: UUID, /) -> Card | None:
        """Return the card, locked against every change until the transaction ends."""

    async def take_labels(self, tx: Tx, card: Card, labels: frozenset[str], actor: Actor, /) -> Card | None:
        """Take all of the labels off, or none when one is not there; None then."""

    async def set_dispatched(self, tx: Tx, card_id: UUID, eligible_version: int, /) -> Any:
        """Note that the card's eligibility of this version has been dispatched."""


class Runs(Protocol):
    """Agents and their runs. Every verb runs in the caller's transaction."""

    async def agent_by_handle(self, tx: Tx, handle: str, /) -> Agent | None:
        """Return the agent of that handle."""

    async def get_agent(self, tx: Tx, agent_id: UUID, /) -> Agent | None:
        """Return the agent of that id."""

    async def live_run_of_card(self, tx: Tx, card_id: UUID, agent_id: UUID, /) -> bool:
        """Tell whether a run of that card and agent has not ended."""

    async def queue_run(self, tx: Tx, run: NewRun, /) -> UUID:
        """Make the run that a launch owes, and its event; return its id."""
