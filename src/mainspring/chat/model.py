"""Channels, messages and sessions as values, and the rules of settling: who is held back, until when, and what a settled message
owes. Pure: no await, no I/O, no clock, no randomness.

A message is held while its author's turn goes on, and is owed to others from the moment it settles. What it is owed to is decided
then, from the members as they are then, and stands in its event: whoever asks later is told the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias
from uuid import UUID

from mainspring.rooms import AccountKind
from mainspring.spine.effects import EffectKind
from mainspring.spine.events import Cause, Trust

if TYPE_CHECKING:
    from mainspring.agents.model import NewRun
    from mainspring.boards.model import Card
    from mainspring.rooms import Tx

HOPS_MAX: Final = 20  # messages of agents in a topic, one after the other, until a person has to speak
ENGINES_REQUESTS: Final = (
    "mainspring:"  # how the request ids of what the engine posts in somebody's name begin, and nobody else's
)
DELIVER: Final = "deliver"
STEER: Final = "steer"
OFFERED: Final[Mapping[str, EffectKind]] = {name: EffectKind(name=name) for name in (DELIVER, STEER)}

Visibility: TypeAlias = Literal["open", "shared"]
PostPolicy: TypeAlias = Literal["members", "owner"]
Broadcast: TypeAlias = Literal["agents", "everyone"]
Block: TypeAlias = Mapping[str, Any]


class SettledBy(StrEnum):
    """What settled a message."""

    POST = "post"
    TURN = "turn"
    FINAL = "final"
    LEASE = "lease"
    DISPLACED = "displaced"


# A settle that its author did not choose: it may still say what it meant.
CUT_OFF: Final = frozenset({SettledBy.LEASE, SettledBy.DISPLACED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A channel. `board_id`: it is that board's, and its cards' topics are in it."""

    id: UUID
    name: str
    purpose: str
    visibility: Visibility
    post_policy: PostPolicy
    owner_id: UUID | None
    board_id: UUID | None
    last_seq: int
    version: int
    created_at: datetime
    archived_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic of a channel. `hops` counts the messages of agents since a person spoke last."""

    id: UUID
    channel_id: UUID
    name: str
    card_id: UUID | None
    hops: int
    archived_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An account in a channel."""

    account_id: UUID
    kind: AccountKind
    handle: str
    subscribed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as it is now."""

    id: UUID
    channel_id: UUID
    channel_name: str
    visibility: Visibility
    topic_id: UUID
    topic_name: str
    card_id: UUID | None
    channel_seq: int
    author_id: UUID
    author_kind: AccountKind
    author_handle: str
    run_id: UUID | None
    session_id: UUID | None
    turn: int | None
    blocks: Sequence[Block]
    mentions: tuple[UUID, ...]
    broadcast: Broadcast | None
    revision: int
    request_id: str
    cause: Cause
    hops: int
    settled_by: SettledBy | None
    settled_at: datetime | None
    posted_at: datetime
    edited_at: datetime | None

    @property
    def text(self) -> str:
        """What it says, its blocks one under the other."""
        return text_of(self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """Whom a message calls, from checked input: by handle, and all of its channel at once. `named`: in the field, and not in the text."""

    mentions: frozenset[str] = frozenset()
    named: Sequence[str] = ()
    broadcast: Broadcast | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message about to be posted, from checked input."""

    topic: str
    blocks: Sequence[Block]
    mentions: frozenset[str] = frozenset()
    named: Sequence[str] = ()
    broadcast: Broadcast | None = None
    request_id: str = ""
    sent: bytes = b""
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaking:
    """Under which claim of which session an agent writes, and in which of its turns; with None it is not heard to be in any.

    `delivery_id`: what it answers, read or about to be acked.
    """

    session_id: UUID
    claim_id: UUID
    turn: int | None = None
    delivery_id: UUID | None = None


def text_of(blocks: Iterable[Block]) -> str:
    """Return what blocks say: texts, questions and answers, one under the other."""
    return "\n".join(
        str(block[name]) for block in blocks for name in ("text", "question", "answer") if name in block
    )


# Sessions -----------------------------------------------------------------------------------------------------


class SessionState(StrEnum):
    """Where a session stands. The last four are final."""

    READY = "ready"
    WORKING = "working"
    STOPPED = "stopped"
    ERRORED = "errored"
    DISPLACED = "displaced"
    LOST = "lost"


LIVE: Final = frozenset({SessionState.READY, SessionState.WORKING})
# Whoever ends so, holding offers, has spent an attempt of the oldest: it may be what ends them.
ENDED_BADLY: Final = frozenset({SessionState.ERRORED, SessionState.LOST})
_SETTLES: Final[Mapping[SessionState, SettledBy]] = {
    SessionState.READY: SettledBy.TURN,
    SessionState.STOPPED: SettledBy.TURN,
    SessionState.ERRORED: SettledBy.TURN,
    SessionState.DISPLACED: SettledBy.DISPLACED,
    SessionState.LOST: SettledBy.LEASE,
}


def settles_by(state: SessionState) -> SettledBy:
    """Return what is said of a message that settles because its author's session came into this state."""
    return _SETTLES[state]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """An agent's live connection. `turn` is the last that was begun, `settled_turn` the last that ended."""

    id: UUID
    agent_id: UUID
    agent_handle: str
    run_id: UUID | None
    state: SessionState
    turn: int
    settled_turn: int
    claim_id: UUID
    lease_until: datetime | None
    acked: Cause | None
    acked_turn: int | None
    started_at: datetime
    seen_at: datetime
    ended_at: datetime | None
    reason: str | None
    topic_id: UUID | None = None

    @property
    def is_live(self) -> bool:
        """Whether it has not ended."""
        return self.state in LIVE

    @property
    def is_between_turns(self) -> bool:
        """Whether it takes deliveries now, and not steers alone."""
        return self.state is SessionState.READY


def is_held(session: Session | None, turn: int | None) -> bool:
    """Tell whether what a session's agent writes in a turn waits until that turn ends."""
    return session is not None and session.is_live and turn is not None and turn > session.settled_turn


def cause_of_post(session: Session | None, otherwise: Cause) -> Cause:
    """Return what a post descends from: the last row that its session acked in this turn, or what its author's token says."""
    if session is None or session.acked is None or session.acked_turn != session.turn:
        return otherwise
    return session.acked


# What a settled message owes ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipients:
    """Whom a settled message is owed to, by id and in order: agents that are steered, agents it is delivered to, people's inboxes.

    `held`: agents have talked for so long that it waits for a person to speak in the topic.
    """

    steer: tuple[UUID, ...] = ()
    deliver: tuple[UUID, ...] = ()
    people: tuple[UUID, ...] = ()
    held: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return it as the event carries it."""
        return {
            "steer": [str(one) for one in self.steer],
            "deliver": [str(one) for one in self.deliver],
            "people": [str(one) for one in self.people],
            "held": self.held,
        }

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Recipients:
        """Return what an event carries."""
        return cls(
            steer=tuple(UUID(one) for one in told["steer"]),
            deliver=tuple(UUID(one) for one in told["deliver"]),
            people=tuple(UUID(one) for one in told["people"]),
            held=bool(told["held"]),
        )


def recipients(message: Message, members: Iterable[Member]) -> Recipients:
    """Return whom a message is owed to, now that it settles.

    Who is mentioned is steered, subscribed or not; who is not, and subscribes, has it delivered; never both, and never its author.
    Behind HOPS_MAX messages of agents nobody is steered, and what is delivered waits for a person.
    """
    steer, deliver, people = [], [], []
    held = message.hops > HOPS_MAX
    for member in sorted(members, key=lambda one: one.account_id):
        if member.account_id == message.author_id or member.kind == "system":
            continue
        meant = member.account_id in message.mentions or _is_called(message.broadcast, member)
        if member.kind == "human":
            if meant:
                people.append(member.account_id)
        elif message.cause.trust.rank < Trust.AGENT.rank:
            continue
        elif meant and not held:
            steer.append(member.account_id)
        elif meant or member.subscribed:
            deliver.append(member.account_id)
    return Recipients(steer=tuple(steer), deliver=tuple(deliver), people=tuple(people), held=held)


def _is_called(broadcast: Broadcast | None, member: Member) -> bool:
    return broadcast == "everyone" or (broadcast == "agents" and member.kind == "agent")


def snapshot(message: Message) -> dict[str, Any]:
    """Return a message as its events carry it."""
    return {
        "id": str(message.id),
        "channel_id": str(message.channel_id),
        "channel": message.channel_name,
        "visibility": message.visibility,
        "topic_id": str(message.topic_id),
        "topic": message.topic_name,
        "card_id": None if message.card_id is None else str(message.card_id),
        "channel_seq": message.channel_seq,
        "author_id": str(message.author_id),
        "author": message.author_handle,
        "author_kind": message.author_kind,
        "session_id": None if message.session_id is None else str(message.session_id),
        "turn": message.turn,
        "text": message.text,
        "revision": message.revision,
        "hops": message.hops,
        "settled_by": None if message.settled_by is None else str(message.settled_by),
    }


def delivery_key(message_id: UUID | str, revision: int, recipient: UUID) -> str:
    """Return the key of what one revision of a message owes to one recipient."""
    return f"{message_id}:{revision}>{recipient}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One offered row, with the message as it is now: what a session puts into its agent's context."""

    id: UUID
    kind: str
    event_seq: int
    claim_id: UUID
    offered_at: datetime
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPolicy:
    """How long a session is taken to live without a sign of life."""

    lease_seconds: float = 30.0

    @property
    def fresh_seconds(self) -> float:
        """Within two intervals of its heartbeat a session is not displaced unless that is asked for."""
        return 2 * self.lease_seconds / 3

    @property
    def gap_seconds(self) -> float:
        """Whoever did not look for longer than this could not hear sessions."""
        return self.lease_seconds / 2


class Cards(Protocol):
    """What this room asks of boards, in an open transaction."""

    async def find_card(self, tx: Tx, ref: str) -> Card | None:
        """Return the card of this id or key, None when it is not there."""


class Runs(Protocol):
    """What delivery asks of the agents' room, in an open transaction."""

    async def queue_run(self, tx: Tx, run: NewRun) -> UUID:
        """Queue a run; return its id."""
