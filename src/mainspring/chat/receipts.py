"""What has become of a message, recipient by recipient: takes a message, or the events that settled some; leaves receipts.

They say what the rows show and no more: offered is handed to a session, acked is what its program has said of it, and a row that is not
kept any more is said to be just that. Reads only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

from mainspring.chat import reads
from mainspring.chat.model import HOPS_MAX, Message, Recipients
from mainspring.chat.rows import SQL
from mainspring.db import Database, Scope
from mainspring.rooms import Actor, NotFound
from mainspring.spine.events import Trust

Row: TypeAlias = Mapping[str, Any]
How: TypeAlias = Literal["steer", "deliver", "inbox"]
_RECEIPTS = SQL["receipts"]
_SETTLINGS = SQL["settlings"]
_PEOPLE = SQL["receipts_of_people"]
_NOT_OWED = SQL["not_owed"]
_NAMED = SQL["accounts_by_id"]

BY_HOPS: Final = (
    f"agents have written more than {HOPS_MAX} times in this topic: it waits for a person to speak there"
)
NO_MEMBER: Final = (
    "it is no member of the channel any more, and is not given it: dropped when its session asks next"
)
ABSENT_MAX: Final = 25
SAID_SHOWN_MAX: Final = 200


class ReceiptState(StrEnum):
    """How far a message has come with one recipient."""

    STORED = "stored"
    HELD = "held"
    OWED = "owed"
    WAITING = "waiting_for_session"
    OFFERED = "offered"
    ACKED = "acked"
    DEAD = "dead"
    DROPPED = "dropped"
    DISCARDED = "discarded"
    UNREAD = "unread"
    READ = "read"
    NOT_KEPT = "not_kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One recipient's. `since` is when it came into this state, `because` what it waits for, or what has ended it."""

    account_id: UUID
    handle: str
    how: How
    state: ReceiptState
    since: datetime | None = None
    because: str | None = None
    effect_id: UUID | None = None
    attempts: int = 0
    next_try_at: datetime | None = None


class Absent(NamedTuple):
    """Somebody who might be thought to be a recipient, and is none."""

    handle: str
    because: str
    mentioned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipts:
    """A message's. `held_because`: it has not settled, so that nobody is owed it yet. `absent`: to whom it is not owed, and why not."""

    message: Message
    revision: int
    held_because: str | None
    data: Sequence[Receipt] = ()
    absent: Sequence[Absent] = ()


class ReceiptService:
    """Receipts, as those who see a message are told."""

    def __init__(self, db: Database, *, runner_silence_seconds: float) -> None:
        self._db = db
        self._silence = runner_silence_seconds

    async def of(self, actor: Actor, message_id: UUID) -> Receipts:
        """Return a message's receipts. Raises NotFound."""
        async with self._db.tenant(actor.tenant_id) as scope:
            message = None
            if actor.account_id is not None:
                message = await reads.find_message(scope, actor.tenant_id, actor.account_id, message_id)
            if message is None:
                raise NotFound("message", message_id)
            return await of_message(scope, actor.tenant_id, message, self._silence)


async def of_message(scope: Scope, tenant: UUID, message: Message, silence_seconds: float) -> Receipts:
    """Return the receipts of what a message said when it last settled."""
    settled = await scope.fetchrow(_SETTLINGS, tenant, str(message.id))
    if settled is None:
        return Receipts(message=message, revision=message.revision, held_because=_still_written(message))
    told = Recipients.of_json(settled["recipients"])
    rows = {one.account_id: one for one in await of_events(scope, tenant, [settled["seq"]], silence_seconds)}
    owed: list[tuple[UUID, How]] = [(one, "steer") for one in told.steer]
    owed += [(one, "deliver") for one in told.deliver]
    names = {
        row["id"]: row["handle"]
        for row in await scope.fetch(_NAMED, tenant, [*told.steer, *told.deliver, *told.people])
    }
    drained = settled["position"] >= settled["seq"]
    agents = [
        rows.get(account) or _without_a_row(account, names[account], how, drained=drained)
        for account, how in owed
    ]
    read = {
        row["account_id"]: row["read_at"]
        for row in await scope.fetch(_PEOPLE, tenant, message.id, told.people)
    }
    people = [_of_person(account, names[account], read) for account in told.people]
    return Receipts(
        message=message,
        revision=settled["revision"],
        held_because=None,
        data=[*agents, *people],
        absent=await _absent(scope, tenant, message, {*told.steer, *told.deliver, *told.people}),
    )


async def of_events(
    scope: Scope, tenant: UUID, seqs: Collection[int], silence_seconds: float
) -> list[Receipt]:
    """Return the receipts of all deliveries that these events owe."""
    if not seqs:
        return []
    rows = await scope.fetch(_RECEIPTS, tenant, sorted(seqs), silence_seconds)
    return [receipt_of(dict(row)) for row in rows]


def _still_written(message: Message) -> str:
    return f"{message.author_handle} is still writing: turn {message.turn} of its session has not ended"


def _without_a_row(account: UUID, handle: str, how: How, *, drained: bool) -> Receipt:
    state = ReceiptState.NOT_KEPT if drained else ReceiptState.STORED
    because = "finished rows are not kept for ever" if drained else "what it owes has not been drained yet"
    return Receipt(account_id=account, handle=handle, how=how, state=state, because=because)


def _of_person(account: UUID, handle: str, read: Mapping[UUID, datetime | None]) -> Receipt:
    at = read.get(account)
    state = ReceiptState.UNREAD if at is None else ReceiptState.READ
    return Receipt(account_id=account, handle=handle, how="inbox", state=state, since=at)


async def _absent(scope: Scope, tenant: UUID, message: Message, owed: Collection[UUID]) -> list[Absent]:
    """Return which agents and mentioned people of those who could think so are not owed a message, and why not."""
    rows = await scope.fetch(_NOT_OWED, tenant, message.id, list(owed), ABSENT_MAX)
    return [
        Absent(row["handle"], _why_not(message, dict(row)), row["account_id"] in message.mentions)
        for row in rows
    ]


def _why_not(message: Message, row: Row) -> str:
    if row["joined_at"] is None:
        return "mentioned, and no member of the channel"
    if row["kind"] == "agent" and message.cause.trust.rank < Trust.AGENT.rank:
        return f"a {message.cause.trust}'s text is not given to agents"
    if message.settled_at is not None and row["joined_at"] > message.settled_at:
        return "it joined later, and joining owes no history"
    return "not subscribed, and not mentioned"


# One row in words ---------------------------------------------------------------------------------------------


def receipt_of(row: Row) -> Receipt:
    """Return what the row of a delivery shows. Pure."""
    state, since, because = _standing(row)
    later = state is ReceiptState.OWED and row["later"] and not row["unseen"]
    return Receipt(
        account_id=row["account_id"],
        handle=row["handle"],
        how=row["kind"],
        state=state,
        since=since,
        because=because,
        effect_id=row["id"],
        attempts=row["attempts"],
        next_try_at=row["not_before"] if later else None,
    )


def _standing(row: Row) -> tuple[ReceiptState, datetime | None, str | None]:
    refused = f"refused {_times(row['attempts'])}" + (
        f", last: {_briefly(row['said'])}" if row["said"] else ""
    )
    match row["state"]:
        case "pending" if row["held"] and not row["unseen"]:
            return ReceiptState.HELD, row["created_at"], BY_HOPS
        case "pending" if row["later"] and not row["unseen"]:
            return ReceiptState.OWED, row["created_at"], f"{refused}; it comes again later"
        case "pending" if row["unseen"]:
            return ReceiptState.OWED, row["created_at"], NO_MEMBER
        case "pending" if row["session_id"] is None:
            return ReceiptState.WAITING, row["created_at"], _no_session(row)
        case "pending" if row["ahead_seq"] is not None:
            return ReceiptState.OWED, row["created_at"], _behind(row)
        case "pending" if row["kind"] == "deliver" and row["session_state"] == "working":
            turn = row["session_turn"]
            return (
                ReceiptState.OWED,
                row["created_at"],
                f"its session is in turn {turn}: it comes behind that",
            )
        case "pending":
            before = f"{row['before']} before it in the topic" if row["before"] else None
            return ReceiptState.OWED, row["created_at"], before or "it comes when its session asks next"
        case "claimed":
            return (
                ReceiptState.OFFERED,
                row["claimed_at"],
                f"session {row['worker']} has it, and has not acked it",
            )
        case "done":
            return ReceiptState.ACKED, row["settled_at"], None
        case "dead":
            why = refused if row["outcome"] == "exhausted" else row["error"] or row["outcome"]
            return ReceiptState.DEAD, row["settled_at"], why
        case "dropped":
            return ReceiptState.DROPPED, row["settled_at"], _inside(row["outcome"])
        case _:
            return ReceiptState.DISCARDED, row["settled_at"], _inside(row["outcome"])


def _no_session(row: Row) -> str:
    """Return why nobody reads for an agent: whether it is woken, and how far that is."""
    match row["run_state"]:
        case "queued" if not row["runners_seen"]:
            return f"no session is live; it was woken, and run {row['run_id']} waits for a runner"
        case None:
            pass
        case state:
            return f"no session is live; it was woken, and run {row['run_id']} is {state}"
    if not row["wake"]:
        return "no session is live, and its wake is off"
    if row["paused"]:
        return "no session is live, and it is paused: nothing wakes it"
    if row["ahead_seq"] is not None:
        return f"no session is live, and it is {_behind(row)}"
    if row["wake_state"] is None:
        return "no session is live; it is about to be woken"
    at = f" at {row['wake_at']:%Y-%m-%d %H:%M:%S}" if row["wake_later"] else " now"
    return f"no session is live; it is woken{at}"


def _behind(row: Row) -> str:
    """Return which refused message keeps this one waiting, and until when: nothing overtakes in a topic."""
    said = f", last: {_briefly(row['ahead_said'])}" if row["ahead_said"] else ""
    refused = f"refused {_times(row['ahead_attempts'])}, again at {row['ahead_at']:%Y-%m-%d %H:%M:%S}{said}"
    return f"behind message {row['ahead_seq']} of the channel, {refused}; mend the agent's program: this comes when that is read, or dead"


def _briefly(said: str) -> str:
    """Return the line of an error that says what it is: of a traceback that is the last, of anything else the first."""
    lines = [line for line in said.splitlines() if line.strip()] or [""]
    line = lines[-1] if any(one.startswith("Traceback (") for one in lines) else lines[0]
    return line if len(line) <= SAID_SHOWN_MAX else f"{line[:SAID_SHOWN_MAX]}…"


def _inside(outcome: str | None) -> str | None:
    """Return the reason that an outcome holds in brackets, or all of it."""
    _, _, reason = (outcome or "").partition("(")
    return reason.removesuffix(")") or outcome


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"
