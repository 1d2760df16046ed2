"""Boards and cards as values, and every decision about them. Pure: no await, no I/O, no clock.

Takes a card as it was read under its lock and what is wanted of it; leaves the card as it shall be written and the delta
that its event carries. Nothing here can be lost: the verbs write it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias
from uuid import UUID

from mainspring.spine.events import Cause

if TYPE_CHECKING:
    from mainspring.rooms import Tx

# The run states that a board may answer by moving the run's card
REFLECTED: Final = ("queued", "running", "done", "failed", "blocked", "cancelled", "lost")


def fold(text: str) -> str:
    """Return a label, handle or state as it is stored and compared: case and outer space never matter."""
    return text.strip().lower()


class Unset(Enum):
    """Tells "leave it as it is" from "set it to nothing"."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


# Boards -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardState:
    """A column of a board. A pinned card in an `eligible` one is dispatched to its agent; a `terminal` one ends the work."""

    name: str
    eligible: bool = False
    terminal: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the state as it is stored and shown."""
        return {"name": self.name, "eligible": self.eligible, "terminal": self.terminal}


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A board: its states in order, and where a run's state moves the run's card (`reflect`: run state → card state)."""

    id: UUID
    key: str
    name: str
    states: tuple[BoardState, ...]
    reflect: Mapping[str, str] = field(default_factory=dict)
    version: int = 1

    def state(self, name: str) -> BoardState | None:
        """Return the state of that name, or None when the board has none."""
        return next((state for state in self.states if state.name == name), None)

    @property
    def initial(self) -> str:
        """The state in which a card starts when nothing is said."""
        return self.states[0].name


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBoard:
    """A board about to be made, checked."""

    key: str
    name: str
    states: tuple[BoardState, ...]
    reflect: Mapping[str, str] = field(default_factory=dict)


# Cards --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Who a card is assigned or pinned to."""

    id: UUID
    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card as it is. `agent` is its pin.

    `version` grows with every change, `state_version` with moves alone. `eligible_version` is the version at which
    (eligible and pinned) last became true or the pin changed, None while it is not; `eligible_seq` is that event's seq.
    """

    id: UUID
    board: Board
    number: int
    title: str
    body: str = ""
    state: str
    state_version: int = 1
    labels: frozenset[str] = frozenset()
    agent: Account | None = None
    assignee: Account | None = None
    priority: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    eligible_version: int | None = None
    eligible_seq: int | None = None
    dispatched_version: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    deleted: bool = False

    @property
    def key(self) -> str:
        """What people call it: OPS-12."""
        return f"{self.board.key}-{self.number}"

    @property
    def board_id(self) -> UUID:
        """The board's id."""
        return self.board.id

    @property
    def agent_id(self) -> UUID | None:
        """The pin's id, None when there is no pin."""
        return self.agent.id if self.agent else None

    @property
    def assignee_id(self) -> UUID | None:
        """The assignee's id, None when there is none."""
        return self.assignee.id if self.assignee else None

    @property
    def is_eligible(self) -> bool:
        """Whether it is to be dispatched: not deleted, pinned, and in an eligible state."""
        state = self.board.state(self.state)
        return not self.deleted and self.agent is not None and state is not None and state.eligible


def snapshot(card: Card) -> dict[str, Any]:
    """Return the card as its events carry it."""
    return {
        "id": str(card.id),
        "key": card.key,
        "board_id": str(card.board.id),
        "board": card.board.key,
        "number": card.number,
        "title": card.title,
        "body": card.body,
        "state": card.state,
        "labels": sorted(card.labels),
        "agent_id": str(card.agent.id) if card.agent else None,
        "agent": card.agent.handle if card.agent else None,
        "assignee_id": str(card.assignee.id) if card.assignee else None,
        "priority": card.priority,
        "fields": dict(card.fields),
        "version": card.version,
        "state_version": card.state_version,
        "eligible_version": card.eligible_version,
    }


def shown(card: Card) -> dict[str, Any]:
    """Return the card as people and programs read it: its snapshot, and what no event needs."""
    return snapshot(card) | {
        "assignee": card.assignee.handle if card.assignee else None,
        "dispatched_version": card.dispatched_version,
        "created_at": card.created_at.isoformat() if card.created_at else None,
        "updated_at": card.updated_at.isoformat() if card.updated_at else None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCard:
    """A card about to be made; `agent` and `assignee` are handles, no `state` is the board's first."""

    title: str
    body: str = ""
    state: str | None = None
    labels: Collection[str] = ()
    agent: str | None = None
    assignee: str | None = None
    priority: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardQuery:
    """Which cards to list, oldest first; every term that is given must hold. `board` is an id or a key."""

    board: str | None = None
    state: str | None = None
    labels: Collection[str] = ()
    assignee: str | None = None
    agent: str | None = None
    after: UUID | None = None
    limit: int = 50


_KEY = re.compile(r"([A-Za-z][A-Za-z0-9]{0,9})-([1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class CardKey:
    """A card by its board's key and its number."""

    board: str
    number: int


CardRef: TypeAlias = UUID | CardKey


def parse_ref(text: str) -> CardRef | None:
    """Read a card's id or key; None when it is neither, and so names no card."""
    if match := _KEY.fullmatch(text.strip()):
        return CardKey(match[1].upper(), int(match[2]))
    try:
        return UUID(text)
    except ValueError:
        return None


# Eligibility --------------------------------------------------------------------------------------------------

Eligibility: TypeAlias = Literal["set", "keep", "clear"]


def next_eligibility(before: Card | None, after: Card) -> Eligibility:
    """Decide what a change does to the card's eligibility; `before` is None for a new card.

    It is set only when (eligible and pinned) becomes true or the pin changes, so that later edits, and moves from one
    eligible state to another, dispatch nothing twice.
    """
    if not after.is_eligible:
        return "clear"
    if before is None or before.eligible_version is None or before.agent_id != after.agent_id:
        return "set"
    return "keep"


def _settled(before: Card | None, after: Card) -> Card:
    match next_eligibility(before, after):
        case "set":
            return replace(after, eligible_version=after.version, eligible_seq=None, dispatched_version=None)
        case "clear":
            return replace(after, eligible_version=None, eligible_seq=None, dispatched_version=None)
        case "keep":
            return after


def became_eligible(after: Card) -> bool:
    """Whether the change that made this version is the one whose event's seq `eligible_seq` shall name."""
    return after.eligible_version == after.version


# Changes: each returns the same card when there is nothing to change -------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CardEdit:
    """What shall change of a card's text; None leaves it. `fields` are merged by name, and a null takes a name away."""

    title: str | None = None
    body: str | None = None
    priority: int | None = None
    fields: Mapping[str, Any] | None = None


def created(card: Card) -> Card:
    """Return a new card with its eligibility decided."""
    return _settled(None, card)


def moved(card: Card, to_state: str) -> Card:
    """Return the card in another state."""
    if card.state == to_state:
        return card
    after = replace(card, state=to_state, state_version=card.state_version + 1, version=card.version + 1)
    return _settled(card, after)


def assigned(
    card: Card, *, assignee: Account | Unset | None = UNSET, agent: Account | Unset | None = UNSET
) -> Card:
    """Return the card with another assignee, another pin, or both."""
    after = replace(
        card,
        assignee=card.assignee if isinstance(assignee, Unset) else assignee,
        agent=card.agent if isinstance(agent, Unset) else agent,
    )
    if (after.assignee_id, after.agent_id) == (card.assignee_id, card.agent_id):
        return card
    return _settled(card, replace(after, version=card.version + 1))


def labeled(card: Card, *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Card:
    """Return the card with labels put on and taken off."""
    labels = (card.labels | frozenset(add)) - frozenset(remove)
    return card if labels == card.labels else replace(card, labels=labels, version=card.version + 1)


def merged(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with the changes laid over them by name; a null takes the name away."""
    return {name: value for name, value in {**fields, **changes}.items() if value is not None}


def edited(card: Card, edit: CardEdit) -> Card:
    """Return the card with other text, priority or fields."""
    after = replace(
        card,
        title=card.title if edit.title is None else edit.title,
        body=card.body if edit.body is None else edit.body,
        priority=card.priority if edit.priority is None else edit.priority,
        fields=card.fields if edit.fields is None else merged(card.fields, edit.fields),
    )
    if after == card and _same(after.fields, card.fields):
        return card
    return replace(after, version=card.version + 1)


def _same(one: Any, other: Any) -> bool:
    # in Python true equals 1; in JSON it does not
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def deleted(card: Card) -> Card:
    """Return the card as deleted; nothing is dispatched for it any more."""
    return _settled(card, replace(card, deleted=True, version=card.version + 1))


def changes(before: Card, after: Card) -> dict[str, Any]:
    """Return what an edit or an assignment changed, by name: `{"from", "to"}`; a body only says that it did.

    A body's texts stand in this event's snapshot and in the one before it: no event carries one thrice.
    """
    was, now = snapshot(before), snapshot(after)
    names = ("title", "priority", "agent_id", "agent", "assignee_id")
    delta: dict[str, Any] = {n: {"from": was[n], "to": now[n]} for n in names if was[n] != now[n]}
    if before.body != after.body:
        delta["body"] = {"from_length": len(before.body), "to_length": len(after.body)}
    touched = {
        name: {"from": before.fields.get(name), "to": after.fields.get(name)}
        for name in sorted({*before.fields, *after.fields})
        if not _same(before.fields.get(name), after.fields.get(name))
    }
    return delta | ({"fields": touched} if touched else {})


# Reflection: a run's state moves its card ---------------------------------------------------------------------


class RunNow(Protocol):
    """A run as it is at this moment, as the agents room tells it."""

    @property
    def id(self) -> UUID: ...
    @property
    def state(self) -> str: ...
    @property
    def card_id(self) -> UUID | None: ...
    @property
    def card_state_version(self) -> int | None: ...
    @property
    def newest_of_card(self) -> bool: ...
    @property
    def agent_handle(self) -> str: ...
    @property
    def cause(self) -> Cause: ...


class RunHooks(Protocol):
    """What this room asks of runs: how one stands, and to note which state of its card it has seen or set."""

    async def run_now(self, tx: Tx, run_id: UUID) -> RunNow | None: ...

    async def saw_card_state(self, tx: Tx, run_id: UUID, state_version: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Apply:
    """Move the card to this state."""

    to_state: str


@dataclass(frozen=True, slots=True)
class MovedSince:
    """Somebody has moved the card since this run last saw or set its state, and that wins."""


@dataclass(frozen=True, slots=True)
class Leave:
    """There is nothing to move; `reason` says why."""

    reason: str


Reflection: TypeAlias = Apply | MovedSince | Leave


def reflection(card: Card, run: RunNow) -> Reflection:
    """Decide where the run's state, as it is now, moves its card.

    Only the card's newest run counts, and only while no one else has moved the card.
    """
    to_state = card.board.reflect.get(run.state)
    if to_state is None:
        return Leave(f"nothing to reflect for {run.state}")
    if not run.newest_of_card:
        return Leave("a newer run of the card")
    if run.card_state_version != card.state_version:
        return MovedSince()
    if card.state == to_state:
        return Leave(f"already {to_state}")
    return Apply(to_state)
