"""Rules as values: what they do, under which options and limits, and what they need from other rooms. Pure.

Takes nothing and leaves nothing: every other module of the room speaks in these values, and in those of `terms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, Self, TypeAlias
from uuid import UUID

from mainspring.agents.model import Agent, NewRun
from mainspring.boards.model import Account, Card
from mainspring.rooms import Newer
from mainspring.triggers.terms import RULE_KINDS, TERMS, Terms

if TYPE_CHECKING:
    from mainspring.rooms import Actor, Tx

__all__ = ["RULE_KINDS", "TERMS"]  # told to the API and to explain

# From this depth on, an event launches and promotes nobody: a chain of causes that long is a loop until somebody says otherwise.
DEPTH_MAX: Final = 8

# What a rule does -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Launch this agent with this prompt, on a runner that has all of these labels."""

    kind: ClassVar[Literal["launch"]] = "launch"
    agent: str
    prompt: str
    runner_labels: frozenset[str] = frozenset()

    def as_json(self) -> dict[str, Any]:
        """Return the action as it is stored and shown under `do`."""
        launch: dict[str, Any] = {"agent": self.agent, "prompt": self.prompt}
        if self.runner_labels:
            launch["runner_labels"] = sorted(self.runner_labels)
        return {"launch": launch}


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote:
    """Pin the event's card to this agent, unless a person has pinned it."""

    kind: ClassVar[Literal["promote"]] = "promote"
    agent: str

    def as_json(self) -> dict[str, Any]:
        """Return the action as it is stored and shown under `do`."""
        return {"promote": {"agent": self.agent}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Send the event to this address, signed."""

    kind: ClassVar[Literal["webhook"]] = "webhook"
    url: str

    def as_json(self) -> dict[str, Any]:
        """Return the action as it is stored and shown under `do`."""
        return {"webhook": {"url": self.url}}


Action: TypeAlias = Launch | Promote | Webhook
ACTION_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    one.kind: frozenset(one.__dataclass_fields__) - {"kind"} for one in (Launch, Promote, Webhook)
}


def agent_of(action: Action) -> str | None:
    """Return the handle of the agent that an action is about, None for one that is about none."""
    return None if isinstance(action, Webhook) else action.agent


def action_of(stored: Mapping[str, Any]) -> Action:
    """Read an action as it was stored. Raises Newer: what is passed over of it would be done otherwise."""
    [(kind, said)] = stored.items()
    if kind not in ACTION_FIELDS or (unknown := said.keys() - ACTION_FIELDS[kind]):
        raise Newer(f"do: {kind}" if kind not in ACTION_FIELDS else f"{', '.join(sorted(unknown))} of {kind}")
    match kind:
        case "webhook":
            return Webhook(url=said["url"])
        case "promote":
            return Promote(agent=said["agent"])
        case _:
            labels = frozenset(said.get("runner_labels", ()))
            return Launch(agent=said["agent"], prompt=said["prompt"], runner_labels=labels)


WhileRunning: TypeAlias = Literal["allow", "skip", "queue_one"]
WHILE_RUNNING: Final[tuple[WhileRunning, ...]] = ("allow", "skip", "queue_one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a rule fires.

    Args:
        consume_label: the launch takes the matched `labels_all` off its card; one that finds them gone does nothing.
        recheck: the card must still match when the rule is carried out.
        self_trigger: match what this rule's own effects caused, too.
        max_event_age_seconds: what happened longer ago is not acted upon any more.
        cooldown_seconds: how long the rule rests on a card after it fired on it.
        max_per_hour: one more than this within the hour pauses the rule.
        while_running: what becomes of a launch while a run of this card and agent has not ended.
        queued_timeout_seconds: how long a run waits for a runner before it is lost.
    """

    consume_label: bool = False
    recheck: bool = False
    self_trigger: bool = False
    max_event_age_seconds: float | None = None
    cooldown_seconds: float | None = None
    max_per_hour: int | None = None
    while_running: WhileRunning = "allow"
    queued_timeout_seconds: float | None = None

    @property
    def is_limited(self) -> bool:
        """Whether what fired before decides whether it fires: then it is counted under the rule's lock."""
        return self.cooldown_seconds is not None or self.max_per_hour is not None

    def as_json(self) -> dict[str, Any]:
        """Return the options as they are stored and shown: those that are set."""
        every = {name: getattr(self, name) for name in OPTIONS}
        return {name: value for name, value in every.items() if value not in (None, False, "allow")}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read options as they were stored. Raises Newer."""
        if unknown := stored.keys() - frozenset(OPTIONS):
            raise Newer(f"the option {', '.join(sorted(unknown))}")
        return cls(**stored)


OPTIONS: Final[tuple[str, ...]] = tuple(Options.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a rule says, checked."""

    name: str
    terms: Terms
    action: Action
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
    action: Action
    options: Options = Options()
    from_seq: int
    until_seq: int | None = None

    def spans(self, seq: int) -> bool:
        """Whether an event of this seq is this version's to judge."""
        return self.from_seq < seq and (self.until_seq is None or seq <= self.until_seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """Since when a rule has been paused, and why: what it owes is held until somebody resumes it."""

    since: datetime
    because: str


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
    paused: Paused | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the rule as it is shown."""
        return {
            "id": str(self.id),
            **self.definition.as_json(),
            "enabled": self.enabled,
            "paused_because": self.paused.because if self.paused else None,
            "paused_at": self.paused.since.isoformat() if self.paused else None,
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
        "paused_because": rule.paused.because if rule.paused else None,
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


@dataclass(frozen=True, slots=True)
class Will:
    """It would happen; `then` says what."""

    then: str


@dataclass(frozen=True, slots=True)
class Wont:
    """It would not happen; `then` says what would come of it instead."""

    then: str


Outlook: TypeAlias = Will | Wont


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a rule's names are looked up in: each board's states, and the kind of each account that was asked for.

    `channels` are the open ones. `reflected` are those states of a board that runs move their cards to.
    """

    boards: Mapping[str, frozenset[str]] = field(default_factory=dict)
    accounts: Mapping[str, str] = field(default_factory=dict)
    channels: frozenset[str] = frozenset()
    reflected: Mapping[str, frozenset[str]] = field(default_factory=dict)


# What this room asks of others: wiring hands in their verbs ------------------------------------------------------


class Cards(Protocol):
    """Cards, under their lock. Every verb runs in the caller's transaction."""

    async def lock_card(self, tx: Tx, card_id: UUID, /) -> Card | None:
        """Return the card, locked against every change until the transaction ends."""

    async def take_labels(self, tx: Tx, card: Card, labels: frozenset[str], actor: Actor, /) -> Card | None:
        """Take all of the labels off, or none when one is not there; None then."""

    async def set_dispatched(self, tx: Tx, card_id: UUID, eligible_version: int, /) -> Any:
        """Note that the card's eligibility of this version has been dispatched."""

    async def pinned_by_rule(self, tx: Tx, card_id: UUID, /) -> bool:
        """Tell whether the card's pin, as it is, was set by a promotion and not by hand."""

    async def promote_card(self, tx: Tx, card: Card, agent: Account, actor: Actor, /) -> Card:
        """Pin the locked card to the agent."""


class CardReader(Protocol):
    """A card by its id or key, in a transaction of its own."""

    async def get_card(self, tenant: UUID, ref: str, /) -> Card:
        """Return the card. Raises NotFound."""


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
