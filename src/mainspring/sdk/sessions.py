"""What the session protocol says, as values; and the requests of it. All of them may be sent again, and are, until they are answered.

The heartbeat is sent by `liveness`, from its own thread.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mainspring.sdk.client import ANSWER_SECONDS, FOR_EVER, Client
from mainspring.sdk.errors import Conflict, NotFound, SessionLost
from mainspring.sdk.messages import Message, message_from
from mainspring.sdk.outcomes import clean
from mainspring.sdk.wire import segment

_log = logging.getLogger("mainspring.sdk")

DEFAULT_LEASE_SECONDS = 30.0
GOODBYE_SECONDS = 2.0
ACKS_MAX = 200
REMEMBERED = 10_000
OUT_OF_ORDER = "ack_out_of_order"
ERROR_CHARACTERS = 4_000
REASON_CHARACTERS = 1_000


@dataclass(slots=True, kw_only=True)
class Session:
    """A session that is ours while its lease is renewed, and the last turn that it began."""

    id: str
    claim_id: str
    agent: str
    heartbeat_seconds: float
    turn: int = 0
    owed: int = 0
    pins: tuple[Message, ...] = field(default=(), repr=False)

    @property
    def what(self) -> str:
        """What it is, for the log."""
        return f"session of {self.agent}"

    @property
    def speaking(self) -> dict[str, Any]:
        """What is said with a post, so that it is held until the turn is over."""
        return {"id": self.id, "claim_id": self.claim_id, "turn": self.turn or None}

    def beat_request(self, _asks: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
        """Return path and body of its heartbeat."""
        return f"/sessions/{segment(self.id)}/heartbeat", {"claim_id": self.claim_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message that the session holds for its agent until it is acked."""

    id: str
    message: Message

    @property
    def is_steer(self) -> bool:
        """Whether it goes before what is read between turns."""
        return self.message.kind == "steer"

    @property
    def revised(self) -> tuple[str, int]:
        """The message and its revision."""
        return self.message.id, self.message.revision


class Known:
    """What was read here: what comes again is acked, and not read again.

    It comes again as the same delivery, whatever its message says by now, or as another of a message that was read at that revision.
    """

    def __init__(self) -> None:
        self._read: dict[tuple[str, int] | str, None] = {}

    def __contains__(self, delivery: Delivery) -> bool:
        return delivery.id in self._read or delivery.revised in self._read

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Remember them, and forget the oldest beyond what a memory of its own should hold."""
        for delivery in deliveries:
            self._read[delivery.id] = self._read[delivery.revised] = None
        while len(self._read) > REMEMBERED:
            del self._read[next(iter(self._read))]


async def start(client: Client, agent: str | None, *, takeover: bool = False) -> Session:
    """Begin a session. Raises Conflict `session_live` when another lives, which is left alone unless it is taken over."""
    body: dict[str, Any] = {"takeover": takeover}
    if agent is not None:
        body["agent"] = agent
    said = await client.call("POST", "/sessions", body=body, key=str(uuid.uuid4()), patience_seconds=FOR_EVER)
    return Session(
        id=said["id"],
        claim_id=said["claim_id"],
        agent=said["agent"],
        heartbeat_seconds=float(said.get("lease_seconds") or DEFAULT_LEASE_SECONDS) / 3,
        turn=int(said.get("turn") or 0),
        owed=int(said.get("owed") or 0),
        pins=tuple(message_from(pin) for pin in said.get("pins") or ()),
    )


async def beat(client: Client, session: Session) -> None:
    """Renew the session's lease. Raises SessionLost."""
    await _say(client, session, "heartbeat", {})


async def begin_turn(client: Client, session: Session) -> None:
    """Begin the session's next turn: what is posted from now on is held until it is settled. Raises SessionLost."""
    turn = session.turn + 1
    await _say(client, session, "heartbeat", {"turn": turn})
    session.turn = turn


async def settle_turn(client: Client, session: Session) -> None:
    """End the turn. Raises SessionLost."""
    await _say(client, session, "settle", {"state": "ready", "turn": session.turn})


async def end(client: Client, session: Session, *, reason: str = "", errored: bool = False) -> None:
    """End the session: what it held unread is offered to the next one. A server that is away learns it from the lease."""
    body = {
        "state": "errored" if errored else "stopped",
        "turn": session.turn,
        "reason": _cut(reason, REASON_CHARACTERS),
    }
    await _say(client, session, "settle", body, patience_seconds=GOODBYE_SECONDS)


async def inbox(
    client: Client, session: Session, *, wait_seconds: float, have: Collection[str] = ()
) -> list[Delivery]:
    """Return all that the session holds, waiting until there is something that is not in `have`. Raises SessionLost."""
    params = {"claim_id": session.claim_id, "wait": wait_seconds, "have": ",".join(have)}
    try:
        said = await client.call(
            "GET",
            f"/sessions/{segment(session.id)}/inbox",
            params=params,
            answer_seconds=wait_seconds + ANSWER_SECONDS,
            patience_seconds=FOR_EVER,
        )
    except NotFound as gone:
        raise SessionLost(gone.status, gone.problem) from gone
    return [
        Delivery(id=one["id"], message=message_from(one["message"], one["kind"]))
        for one in said.get("deliveries") or ()
    ]


async def ack(
    client: Client, session: Session, deliveries: Sequence[str], *, patience_seconds: float = FOR_EVER
) -> None:
    """Say what the agent has read, in the order in which it came. Raises SessionLost.

    What stands behind something that it has not read stays unacked: it comes again, and is acked then.
    """
    for some in _batches(deliveries):
        try:
            read = {"turn": session.turn, "deliveries": some}
            await _say(client, session, "ack", read, patience_seconds=patience_seconds)
        except Conflict as refused:
            if refused.code != OUT_OF_ORDER:
                raise
            _log.warning("%s: it is acked when it comes again: %s", session.what, refused)


async def nack(client: Client, session: Session, deliveries: Sequence[str], error: str) -> None:
    """Say what could not be read, and why: it comes again later, or is a dead letter. Raises SessionLost."""
    said = _cut(error, ERROR_CHARACTERS) or "refused"
    for some in _batches(deliveries):
        refused = [{"id": one, "error": said} for one in some]
        await _say(client, session, "ack", {"turn": session.turn, "refused": refused})


async def _say(
    client: Client,
    session: Session,
    word: str,
    body: Mapping[str, Any],
    *,
    patience_seconds: float = FOR_EVER,
) -> None:
    path = f"/sessions/{segment(session.id)}/{word}"
    said = {"claim_id": session.claim_id, **body}
    try:
        await client.call("POST", path, body=said, patience_seconds=patience_seconds)
    except NotFound as gone:  # it is nobody's any more
        raise SessionLost(gone.status, gone.problem) from gone


def _batches(deliveries: Sequence[str]) -> Iterator[list[str]]:
    for first in range(0, len(deliveries), ACKS_MAX):
        yield list(deliveries[first : first + ACKS_MAX])


def _cut(text: str, characters: int) -> str:
    """Return the end of a text, where a traceback says what happened."""
    return clean(text)[-characters:].strip()
