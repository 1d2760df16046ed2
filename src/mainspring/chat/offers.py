"""Offers: what an agent is owed, handed to the session that reads for it. Takes pending rows of the offered family; leaves them held by
the session's lease until it says that they are in the agent's context, refuses them, or ends.

If it dies here, the rows are as they were before, or held by a session that asks again and is given the same ones: reading twice is
the one thing that may happen (W2), under the same message id and revision.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import random
from typing import TYPE_CHECKING, Final
from uuid import UUID

from mainspring import telemetry
from mainspring.chat import model, reads
from mainspring.chat.model import OFFERED, Delivery, Message, Session, SessionState
from mainspring.chat.rows import SQL
from mainspring.db import Scope
from mainspring.rooms import Conflict, Tx
from mainspring.spine.effects import (
    Done,
    Effect,
    EffectKind,
    Move,
    Retry,
    Settlement,
    bury_crashed,
    resolve,
)
from mainspring.spine.events import Event
from mainspring.spine.outcomes import clean
from mainspring.spine.ports import Store
from mainspring.spine.settler import dead_event
from mainspring.stores.postgres.rows import from_json

if TYPE_CHECKING:
    from asyncpg import Record

_OFFERABLE = SQL["offerable"]
_OFFER = SQL["offer"]
_LOCK_HELD = SQL["lock_held"]
_HELD = SQL["held"]
_DROP_UNSEEN = SQL["drop_unseen"]
_DROP_OUTDATED = SQL["drop_outdated"]
_BLAME = SQL["blame"]
_RELEASE = SQL["release"]
_NOTE_CRASH = SQL["note_crash"]
_NOTE_ACKED = SQL["note_acked"]
_NOTE_REASONS = SQL["note_reasons"]

# What a session holds of one kind at once: however many deliveries it has not read yet, they take no steer's place.
ROWS_MAX: Final = 100
BYTES_MAX: Final = 256 * 1024
# How often one look goes on behind messages that its agent may not see any more.
_LOOKS: Final = 10
# What the row and its events say of a refusal. The reader's own words, in which the message may stand, are its attempt's alone.
REFUSED: Final = "its reader could not take it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A row that a session holds, as the engine settles it, where it stands, and for how long its message has been settled."""

    effect: Effect
    topic_id: UUID
    message_id: UUID
    offered_at: object
    owed_seconds: float | None = None

    @property
    def line(self) -> tuple[UUID, str]:
        """What it stands in line with: acks come in that order."""
        return self.topic_id, self.effect.kind


async def offer(tx: Tx, session: Session) -> list[Delivery]:
    """Return all that a locked session holds, those rows among it that it is offered now."""
    rows, messages = await _offerable(tx, session)
    if not rows:
        return []
    if taken := _within_bounds(rows, messages):
        count = await tx.handle.execute(_OFFER, tx.tenant, [row["id"] for row in taken], str(session.id))
        telemetry.offers.inc(count)
    return [
        Delivery(
            id=held.effect.id,
            kind=held.effect.kind,
            event_seq=held.effect.event_seq or 0,
            claim_id=held.effect.claim_id,
            offered_at=held.offered_at,  # type: ignore[arg-type]
            message=messages[held.message_id],
        )
        for held in await held_by(tx, session)
        if held.message_id in messages
    ]


async def _offerable(tx: Tx, session: Session) -> tuple[list[Record], Mapping[UUID, Message]]:
    """Return what the session holds and could take, with its messages; what its agent may not see is owed to nobody any more."""
    for _ in range(_LOOKS):
        rows = await tx.handle.fetch(
            _OFFERABLE,
            tx.tenant,
            session.agent_id,
            str(session.id),
            session.topic_id,
            session.is_between_turns,
            ROWS_MAX,
        )
        if not rows:
            return [], {}
        messages = {
            message.id: message
            for message in await reads.read_messages(
                tx.handle, tx.tenant, {row["message_id"] for row in rows}
            )
        }
        seen = await _newest(tx, await _seen(tx, session, rows, messages), messages)
        if len(seen) == len(rows):
            break
    return seen, messages


async def _seen(
    tx: Tx, session: Session, rows: Sequence[Record], messages: Mapping[UUID, Message]
) -> list[Record]:
    """Return the rows whose message the agent may see; the others are owed to nobody any more."""
    channels = await reads.visible(
        tx.handle, tx.tenant, session.agent_id, {message.channel_id for message in messages.values()}
    )
    seen = {message.id for message in messages.values() if message.channel_id in channels}
    if unseen := [row["id"] for row in rows if row["message_id"] not in seen]:
        await tx.handle.execute(_DROP_UNSEEN, tx.tenant, unseen)
    return [row for row in rows if row["message_id"] in seen]


async def _newest(tx: Tx, rows: list[Record], messages: Mapping[UUID, Message]) -> list[Record]:
    """Return the rows without those whose message is owed anew at a later revision, before they were offered."""
    old = [
        row["id"]
        for row in rows
        if not row["mine"] and row["revision"] < messages[row["message_id"]].revision
    ]
    if not old:
        return rows
    dropped = {row["id"] for row in await tx.handle.fetch(_DROP_OUTDATED, tx.tenant, old)}
    return [row for row in rows if row["id"] not in dropped]


def _within_bounds(rows: Sequence[Record], messages: Mapping[UUID, Message]) -> list[Record]:
    """Return the rows to be taken: of each kind as many as fit beside those that are held; at least one, however long it is."""
    taken: list[Record] = []
    for kind in OFFERED:
        of_kind = [row for row in rows if row["kind"] == kind]
        held = sum(row["mine"] for row in of_kind)
        left = BYTES_MAX - sum(len(messages[row["message_id"]].text) for row in of_kind if row["mine"])
        for row in of_kind:
            if row["mine"]:
                continue
            left -= len(messages[row["message_id"]].text)
            if held >= ROWS_MAX or (left < 0 and held):
                break
            held += 1
            taken.append(row)
    return taken


async def held_by(tx: Tx, session: Session) -> list[Held]:
    """Return what a session holds, in the order in which it is read."""
    return [_held_of(row) for row in await tx.handle.fetch(_HELD, tx.tenant, str(session.id))]


# What becomes of them -----------------------------------------------------------------------------------------


async def lock(tx: Tx, session: Session, ids: Collection[UUID]) -> None:
    """Lock what a session holds of these, in the order in which rows of one table are: for whoever settles some one way, some another."""
    await tx.handle.fetch(_LOCK_HELD, tx.tenant, str(session.id), ids)


async def ack(tx: Tx, store: Store[Scope], session: Session, ids: Collection[UUID]) -> int:
    """Settle what is in the agent's context now; return how many rows that were. What is not held any more is left alone.

    Raises Conflict when a row is left out that stands before one of them.
    """
    held = await held_by(tx, session)
    acked = _beginnings(held, ids)
    if not acked:
        return 0
    await store.settle(
        tx.handle, _in_order(resolve(one.effect, Done(), _kind(one), random=0.0) for one in acked)
    )
    event = await _event_of(tx, store, acked[-1].effect)
    if event is not None:
        cause = event.as_cause()
        await tx.handle.execute(
            _NOTE_ACKED, tx.tenant, session.id, cause.seq, list(cause.via), cause.depth, str(cause.trust)
        )
    telemetry.acks.inc(len(acked))
    for one in acked:
        if one.owed_seconds is not None:
            telemetry.message_ack.observe(one.owed_seconds)
    return len(acked)


async def nack(tx: Tx, store: Store[Scope], session: Session, refused: Mapping[UUID, str]) -> int:
    """Note that these could not be put into the agent's context: each has spent an attempt, and comes again later, or is dead."""
    settlements = [
        (one.effect, resolve(one.effect, Retry(REFUSED), _kind(one), random=random()))  # noqa: S311 - a jitter
        for one in await held_by(tx, session)
        if one.effect.id in refused
    ]
    await _settle(tx, store, settlements)
    if settlements:
        await tx.handle.execute(
            _NOTE_REASONS,
            tx.tenant,
            [effect.id for effect, _ in settlements],
            [effect.claim_id for effect, _ in settlements],
            [clean(refused[effect.id]) for effect, _ in settlements],
        )
    return len(settlements)


async def release(tx: Tx, store: Store[Scope], session: Session, state: SessionState, reason: str) -> int:
    """Let go of what an ended session holds; return how many rows that were.

    Free of charge, unless it ended badly: then what is read first has spent one of the crashes that it has, since it may be what ended it.
    """
    held = await held_by(tx, session)
    if not held:
        return 0
    if state in model.ENDED_BADLY:
        first = held[0]
        await lock(tx, session, [one.effect.id for one in held])
        await tx.handle.execute(_BLAME, tx.tenant, first.effect.id)
        crashed = replace(first.effect, crashes=first.effect.crashes + 1)
        if (burial := bury_crashed(crashed, _kind(first))) is not None:
            await _settle(tx, store, [(crashed, burial)])
        else:
            await tx.handle.execute(_NOTE_CRASH, tx.tenant, first.effect.id, f"session_{state}", reason)
    await tx.handle.execute(_RELEASE, tx.tenant, str(session.id))
    return len(held)


async def _settle(tx: Tx, store: Store[Scope], settlements: Sequence[tuple[Effect, Settlement]]) -> None:
    """Write settlements, and tell of the dead among them."""
    settled = await store.settle(tx.handle, _in_order(row for _, row in settlements))
    for effect, row in settlements:
        if row.move is Move.BURY and effect.id in settled.accepted:
            tx.append(dead_event(effect, row, await _event_of(tx, store, effect)))


async def _event_of(tx: Tx, store: Store[Scope], effect: Effect) -> Event | None:
    if effect.event_seq is None:
        return None
    return (await store.events_at(tx.handle, tx.tenant, [effect.event_seq])).get(effect.event_seq)


def _beginnings(held: Sequence[Held], ids: Collection[UUID]) -> list[Held]:
    """Return the held rows that are acked. In each line they are its beginning, or they are refused."""
    asked, left_out = set(ids), set[tuple[UUID, str]]()
    acked: list[Held] = []
    for one in held:
        if one.effect.id not in asked:
            left_out.add(one.line)
        elif one.line in left_out:
            raise Conflict(
                f"delivery {one.effect.id} is acked, and one that stands before it is not: ack in the order in which they came",
                code="ack_out_of_order",
            )
        else:
            acked.append(one)
    return acked


def _in_order(settlements: object) -> list[Settlement]:
    return sorted(settlements, key=lambda row: row.id)  # type: ignore[call-overload, no-any-return]


def _kind(held: Held) -> EffectKind:
    return OFFERED[held.effect.kind]


def _held_of(row: Record) -> Held:
    effect = Effect(
        tenant_id=row["tenant_id"],
        id=row["id"],
        kind=row["kind"],
        key=row["key"],
        payload=from_json(row["payload"]),
        event_seq=row["event_seq"],
        rule_id=row["rule_id"],
        rule_version=row["rule_version"],
        target=row["target"],
        attempts=row["attempts"],
        crashes=row["crashes"],
        epoch=row["epoch"],
        claim_id=row["claim_id"],
        deferred_seconds=0.0,
        waited_seconds=0.0,
        reclaimed=False,
        deferrals=row["deferrals"],
    )
    return Held(
        effect=effect,
        topic_id=row["topic_id"],
        message_id=row["message_id"],
        offered_at=row["claimed_at"],
        owed_seconds=row["owed_seconds"],
    )
