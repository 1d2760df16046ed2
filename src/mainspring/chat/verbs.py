"""What can be done to messages inside an open transaction: posting, editing, settling. Takes rows read under their locks; leaves them
written and their events appended, which the transaction writes at its end. If it dies here, the transaction was never committed.

Locks are taken in one order: session, channel, topic, message. A settle edge locks its session first, so that a post of that session
comes wholly before it, and is settled by it, or wholly after it, and sees that its turn is over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from mainspring.boards.model import Board, Card
from mainspring.chat import model, reads, words
from mainspring.chat.model import (
    Block,
    Called,
    Channel,
    Member,
    Message,
    NewMessage,
    Recipients,
    Session,
    SettledBy,
    Topic,
)
from mainspring.chat.questions import open_asks
from mainspring.chat.rows import SQL, session_of, topic_of
from mainspring.db import Scope
from mainspring.ids import new_id
from mainspring.rooms import Actor, Conflict, FieldError, Forbidden, Invalid, NotFound, Tx
from mainspring.spine.events import Cause, NewEvent, Trust, least_trusted

_LOCK_CHANNEL = SQL["lock_channel"]
_ADD_CHANNEL = SQL["add_channel"]
_CHANNEL_OF_BOARD = SQL["channel_of_board"]
_TOPIC_OF_CARD = SQL["topic_of_card"]
_MESSAGE_OF_REQUEST = SQL["message_of_request"]
_MAKE_TOPIC = SQL["make_topic"]
_BRING_BACK_TOPIC = SQL["bring_back_topic"]
_ADD_MESSAGE = SQL["add_message"]
_ADD_WORDS = SQL["add_words"]
_DROP_WORDS = SQL["drop_words"]
_ACCOUNTS = SQL["accounts_by_handle"]
_JOIN_BY_POSTING = SQL["join_by_posting"]
_CONCERNED = SQL["concerned"]
_ADD_INBOX_ITEMS = SQL["add_inbox_items"]
_RELEASE_HELD = SQL["release_held"]
_SETTLE_TURNS = SQL["settle_turns"]
_SETTLE_MESSAGE = SQL["settle_message"]
_LOCK_MESSAGE = SQL["lock_message"]
_WRITE_EDIT = SQL["write_edit"]
_LAST_SETTLING = SQL["last_settling"]
_LOCK_SESSION = SQL["lock_session"]
_CAUSE_OF_DELIVERY = SQL["cause_of_delivery"]
_SESSIONS = SQL["sessions"]
_FOLLOW_TURN = SQL["follow_turn"]

POSTED: Final = "message.posted"
UPDATED: Final = "message.updated"
SETTLED: Final = "message.settled"


async def lock_session(tx: Tx, session_id: UUID) -> Session | None:
    """Lock a session until the transaction ends and return it as it is then."""
    if await tx.handle.fetchval(_LOCK_SESSION, tx.tenant, session_id) is None:
        return None
    return (await read_sessions(tx.handle, tx.tenant, [session_id]))[0]


async def read_sessions(scope: Scope, tenant: UUID, ids: Collection[UUID]) -> list[Session]:
    """Return those of the sessions that exist, by id."""
    return [session_of(row) for row in await scope.fetch(_SESSIONS, tenant, list(ids))]


async def follow_turn(tx: Tx, session: Session, turn: int | None) -> None:
    """Let a locked session be in the turn in which its agent has spoken, if it was not heard that this began."""
    if model.is_held(session, turn):
        await tx.handle.execute(_FOLLOW_TURN, tx.tenant, session.id, turn)


# Posting ------------------------------------------------------------------------------------------------------


async def lock_channel(tx: Tx, channel: Channel, actor: Actor) -> Channel:
    """Lock a channel that the actor sees until the transaction ends and return it as it is then. Raises NotFound.

    What it was before counts for nothing: whoever held the lock may have archived it, or taken the actor out of it.
    """
    await tx.handle.execute(_LOCK_CHANNEL, tx.tenant, channel.id)
    found = await reads.find_channel(tx.handle, tx.tenant, actor.account_id, str(channel.id))
    if found is None:
        raise NotFound("channel", channel.name)
    return found


def may_speak(channel: Channel, actor: Actor) -> None:
    """Raise Conflict where nothing is said any more, and Forbidden where that is its owner's alone."""
    if channel.archived_at is not None:
        raise Conflict(f"channel {channel.name} is archived", code="channel_archived")
    if channel.post_policy == "owner" and channel.owner_id != actor.account_id:
        raise Forbidden(f"nobody but its owner posts to {channel.name}")


async def post(
    tx: Tx,
    channel: Channel,
    new: NewMessage,
    actor: Actor,
    *,
    session: Session | None = None,
    turn: int | None = None,
    topic: Topic | None = None,
    answers: Cause | None = None,
    joins: bool = True,
) -> tuple[Message, bool]:
    """Post a message; return it, and whether it is new. Raises NotFound, Conflict or Forbidden where its author may not, and Invalid.

    The same request is the same message. `session` is locked, and is the author's. `topic` is where it goes, if not by its name.
    `answers` is what it descends from, if its author says which delivery it answers. `joins`: who posts to an open channel is a
    member from then on.
    """
    channel = await lock_channel(tx, channel, actor)
    if (stored := await _posted_before(tx, channel, new, actor)) is not None:
        return stored, False
    may_speak(channel, actor)
    topic = topic or await _topic(tx, channel, new.topic)
    if topic.archived_at is not None:
        await tx.handle.execute(_BRING_BACK_TOPIC, tx.tenant, topic.id)
    if joins and channel.visibility == "open":
        await _join_by_posting(tx, channel, actor)
    mentions = await _accounts(tx, new.mentions, new.named)
    held = model.is_held(session, turn) and not new.final
    message_id = new_id()
    cause = _cause(session, actor, answers)
    written = await tx.handle.fetchval(
        _ADD_MESSAGE, tx.tenant, message_id, channel.id, topic.id, actor.account_id, actor.run_id,
        None if session is None else session.id, turn, list(new.blocks), mentions, new.broadcast, new.request_id, new.sent,
        cause.seq, list(cause.via), cause.depth, cause.trust, _hops(topic, actor),
        None if held else str(_settled_at_once(session, turn, new)),
    )  # fmt: skip
    if written is None:  # the same name, in another channel, a moment ago
        raise _taken(new, None)
    [message] = await reads.read_messages(tx.handle, tx.tenant, [message_id])
    await tx.handle.execute(_ADD_WORDS, tx.tenant, message_id, words.words(message.text))
    _append(tx, POSTED, message, actor)
    if not held:
        await _announce_settled(tx, [message], actor)
    if actor.kind == "human" and topic.hops > model.HOPS_MAX:
        await tx.handle.execute(_RELEASE_HELD, tx.tenant, topic.id)
    return message, True


async def _topic(tx: Tx, channel: Channel, named: str) -> Topic:
    """Return the topic of a locked channel with this id, or of this name, which is made if need be. Raises NotFound.

    What looks like an id makes no topic: whoever means one by its id does not mean another of that name.
    """
    if reads.as_topic_id(named) is None:
        return await make_topic(tx, channel, named)
    found = await reads.find_topic(tx.handle, tx.tenant, channel.id, named)
    topic = None if found is None else await reads.read_topic(tx.handle, tx.tenant, found)
    if topic is None:
        raise NotFound("topic", named)
    return topic


async def _join_by_posting(tx: Tx, channel: Channel, actor: Actor) -> None:
    subscribed = actor.kind == "human"
    joined = await tx.handle.execute(_JOIN_BY_POSTING, tx.tenant, channel.id, actor.account_id, subscribed)
    if joined:
        assert actor.account_id is not None
        who = Member(account_id=actor.account_id, kind=actor.kind, handle=actor.handle, subscribed=subscribed)
        append_member(tx, "member.joined", channel, who, actor)


def append_member(tx: Tx, kind: str, channel: Channel, who: Member, actor: Actor) -> None:
    """Tell that an account has joined a channel, or left it."""
    data = {
        "channel": {"id": str(channel.id), "name": channel.name, "visibility": channel.visibility},
        "member": {"id": str(who.account_id), "kind": who.kind, "handle": who.handle},
        "actor": actor.snapshot(),
    }
    tx.append(
        NewEvent(kind, subject=str(channel.id), data=data, actor_id=actor.account_id, cause=actor.cause)
    )


async def make_topic(tx: Tx, channel: Channel, name: str, *, card_id: UUID | None = None) -> Topic:
    """Return the topic of that name, made or brought back if need be."""
    row = await tx.handle.fetchrow(_MAKE_TOPIC, tx.tenant, new_id(), channel.id, name, card_id)
    assert row is not None
    return topic_of(row)


async def channel_of_board(tx: Tx, board: Board) -> Channel:
    """Return a board's channel, made if need be: open to all, named as the board is, or the nearest to it that is free."""
    key = board.key.lower()
    for name in (None, key, f"{key}-board", f"board-{board.id.hex}"):
        if name is not None:
            await tx.handle.fetchval(
                _ADD_CHANNEL,
                tx.tenant,
                new_id(),
                name,
                f"Board {board.key}",
                "open",
                "members",
                None,
                board.id,
            )
        found = await tx.handle.fetchval(_CHANNEL_OF_BOARD, tx.tenant, board.id)
        if found is not None:
            channel = await reads.find_channel(tx.handle, tx.tenant, None, str(found))
            assert channel is not None
            return channel
    raise Conflict(f"no name is free for the channel of board {board.key}", code="channel_name_taken")


async def topic_of_card(tx: Tx, card: Card) -> Topic:
    """Return a card's topic in its board's channel; both are made if need be."""
    channel = await channel_of_board(tx, card.board)
    await tx.handle.execute(_LOCK_CHANNEL, tx.tenant, channel.id)
    row = await tx.handle.fetchrow(_TOPIC_OF_CARD, tx.tenant, card.id)
    return topic_of(row) if row is not None else await make_topic(tx, channel, card.key, card_id=card.id)


async def _posted_before(tx: Tx, channel: Channel, new: NewMessage, actor: Actor) -> Message | None:
    row = await tx.handle.fetchrow(_MESSAGE_OF_REQUEST, tx.tenant, actor.account_id, new.request_id)
    if row is None:
        return None
    if row["channel_id"] != channel.id:  # its author may not see that one any more, and is not told of it
        raise _taken(new, None)
    [stored] = await reads.read_messages(tx.handle, tx.tenant, [row["id"]])
    if row["sent"] != new.sent:
        raise _taken(new, stored)
    return stored


def _taken(new: NewMessage, stored: Message | None) -> Invalid:
    return Invalid(
        FieldError("/request_id", f"another message was posted under {new.request_id!r}"),
        code="request_id_reused",
        current=None if stored is None else model.snapshot(stored),
    )


async def _accounts(tx: Tx, handles: Collection[str], named: Sequence[str]) -> list[UUID]:
    """Return whom a message means. An `@` in a person's text may stand for nobody; a name in the field that does is refused."""
    if not handles:
        return []
    found = {row["handle"]: row["id"] for row in await tx.handle.fetch(_ACCOUNTS, tx.tenant, sorted(handles))}
    unknown = [
        FieldError(f"/mentions/{n}", f"there is nobody called {name}")
        for n, name in enumerate(named)
        if name in handles and name not in found
    ]
    if unknown:
        raise Invalid(*unknown)
    return sorted(found.values())


async def cause_of_delivery(tx: Tx, session: Session, delivery_id: UUID) -> Cause:
    """Return what an answer to a delivery of the session's agent descends from. Raises NotFound."""
    row = await tx.handle.fetchrow(_CAUSE_OF_DELIVERY, tx.tenant, delivery_id, session.agent_id)
    if row is None:
        raise NotFound("delivery", delivery_id)
    return Cause(seq=row["seq"], via=tuple(row["via"]), depth=row["depth"] + 1, trust=Trust(row["trust"]))


def _cause(session: Session | None, actor: Actor, answers: Cause | None) -> Cause:
    cause = answers or model.cause_of_post(session, actor.cause)
    if actor.kind == "agent":
        return replace(cause, trust=least_trusted(cause.trust, Trust.AGENT))
    return cause


def _hops(topic: Topic, actor: Actor) -> int:
    return topic.hops + 1 if actor.kind == "agent" else 0


def _settled_at_once(session: Session | None, turn: int | None, new: NewMessage) -> SettledBy:
    return SettledBy.FINAL if new.final and model.is_held(session, turn) else SettledBy.POST


# Editing ------------------------------------------------------------------------------------------------------


async def lock_message(tx: Tx, message_id: UUID) -> Message | None:
    """Lock a message until the transaction ends and return it as it is then."""
    if await tx.handle.fetchval(_LOCK_MESSAGE, tx.tenant, message_id) is None:
        return None
    return (await reads.read_messages(tx.handle, tx.tenant, [message_id]))[0]


async def edit(
    tx: Tx,
    channel: Channel,
    message: Message,
    blocks: Sequence[Block],
    actor: Actor,
    *,
    final: bool,
    called: Called | None = None,
) -> Message:
    """Give a locked message of a locked channel new blocks, and while it is held others to call. What was settled for its author, not
    by them, settles again, and is owed again to whoever was owed it before; any other edit of a settled message owes nothing.

    What has settled says other words only where its author may still speak; what they have begun to say they may finish, whatever has
    become of the channel. Raises Invalid, and Conflict or Forbidden as `may_speak`.
    """
    mentions, broadcast = list(message.mentions), message.broadcast
    if called is not None:
        mentions, broadcast = await _accounts(tx, called.mentions, called.named), called.broadcast
    calls_others = set(mentions) != set(message.mentions) or broadcast != message.broadcast
    if message.settled_by is not None and calls_others:
        raise Invalid(FieldError("/mentions", "whom it calls stays as it was, once the message has settled"))
    if message.settled_by is not None and _questions(blocks) != _questions(message.blocks):
        raise Invalid(
            FieldError("/blocks", "questions stay as they were asked, once the message has settled")
        )
    changed = calls_others or tuple(blocks) != tuple(message.blocks)
    if changed:
        if message.settled_by is not None:
            may_speak(channel, actor)
        await tx.handle.fetchval(
            _WRITE_EDIT, tx.tenant, message.id, message.revision, list(blocks), mentions, broadcast
        )
        [message] = await reads.read_messages(tx.handle, tx.tenant, [message.id])
        found = words.words(message.text)
        await tx.handle.execute(_DROP_WORDS, tx.tenant, message.id, found)
        await tx.handle.execute(_ADD_WORDS, tx.tenant, message.id, found)
        _append(tx, UPDATED, message, actor)
    if message.settled_by is None:
        return await settle_early(tx, message, actor) if final else message
    if changed and message.settled_by in model.CUT_OFF:
        told = await tx.handle.fetchval(_LAST_SETTLING, tx.tenant, str(message.id))
        owed = Recipients() if told is None else Recipients.of_json(told)
        await _announce(tx, message, owed, actor)
    return message


def _questions(blocks: Sequence[Block]) -> list[Block]:
    return [block for block in blocks if block["type"] != "text"]


async def settle_early(tx: Tx, message: Message, actor: Actor) -> Message:
    """Settle one locked message before its turn ends."""
    if not await tx.handle.execute(_SETTLE_MESSAGE, tx.tenant, message.id, str(SettledBy.FINAL)):
        return message
    [settled] = await reads.read_messages(tx.handle, tx.tenant, [message.id])
    await _announce_settled(tx, [settled], actor)
    return settled


# Settling -----------------------------------------------------------------------------------------------------


async def settle_messages(tx: Tx, session: Session, through: int | None, by: SettledBy, actor: Actor) -> int:
    """Settle what a locked session's agent wrote through a turn, or in any; return how many.

    Only what was not settled is, and told of, once.
    """
    rows = await tx.handle.fetch(_SETTLE_TURNS, tx.tenant, session.id, through, str(by))
    if rows:
        settled = await reads.read_messages(tx.handle, tx.tenant, [row["id"] for row in rows])
        await _announce_settled(tx, settled, actor)
    return len(rows)


async def _announce_settled(tx: Tx, messages: Sequence[Message], actor: Actor) -> None:
    """Say of messages that they are settled, and to whom they are owed from now on."""
    concerned = await _concerned(tx, messages)
    for message in messages:
        await open_asks(tx, message, actor)
        await _announce(tx, message, model.recipients(message, concerned.get(message.id, ())), actor)


async def _announce(tx: Tx, message: Message, owed: Recipients, actor: Actor) -> None:
    if owed.people:
        items = [new_id() for _ in owed.people]
        await tx.handle.execute(_ADD_INBOX_ITEMS, tx.tenant, list(owed.people), items, message.id)
    _append(tx, SETTLED, message, actor, recipients=owed.as_json())


async def _concerned(tx: Tx, messages: Iterable[Message]) -> Mapping[UUID, Sequence[Member]]:
    asked = list(messages)
    rows = await tx.handle.fetch(
        _CONCERNED,
        tx.tenant,
        [message.id for message in asked],
        [message.channel_id for message in asked],
        [message.broadcast is not None for message in asked],
    )
    found: defaultdict[UUID, list[Member]] = defaultdict(list)
    for row in rows:
        found[row["message_id"]].append(
            Member(
                account_id=row["account_id"],
                kind=row["kind"],
                handle=row["handle"],
                subscribed=row["subscribed"],
            )
        )
    return found


def _append(tx: Tx, kind: str, message: Message, actor: Actor, **more: Any) -> None:
    tx.append(
        NewEvent(
            kind,
            subject=str(message.id),
            data={"message": model.snapshot(message), "actor": actor.snapshot(), **more},
            actor_id=actor.account_id,
            cause=message.cause,
        )
    )
