"""Commands and queries on channels, topics and messages. Takes who acts and what they want; leaves it done in one transaction, with its
events, or refused with nothing written.

What the actor may not see does not exist for them: every method begins with the one predicate of `reads`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from mainspring.chat import checks, model, reads, verbs, words
from mainspring.chat.model import Cards, Channel, Member, Message, PostPolicy, Speaking, Topic, Visibility
from mainspring.chat.rows import SQL, topic_of
from mainspring.db import Database, Scope
from mainspring.faultpoints import FaultPoint, reach
from mainspring.ids import new_id
from mainspring.rooms import Actor, Conflict, FieldError, Forbidden, Invalid, NotFound, ServerSpine, Tx

_ADD_CHANNEL = SQL["add_channel"]
_JOIN = SQL["join_channel"]
_LEAVE = SQL["leave_channel"]
_COUNT_MEMBERS = SQL["count_members"]
_ACCOUNTS = SQL["accounts_by_handle"]
_TOPICS = SQL["topics"]
_OF_CHANNEL = SQL["messages_of_channel"]
_AFTER = SQL["messages_after"]
_OF_TOPIC = SQL["messages_of_topic"]
_OF_TOPIC_AFTER = SQL["messages_of_topic_after"]
_SEARCH = SQL["search"]
_RAREST = SQL["rarest_word"]
_WRITE_CHANNEL = SQL["write_channel"]
_GIVE_UP_CHANNEL = SQL["give_up_channel"]
_PINS = SQL["pins"]
_DROP_PINS = SQL["drop_pins"]
_ADD_PINS = SQL["add_pins"]
_TOPIC_NAMED = SQL["topic_named"]
_RENAME_TOPIC = SQL["rename_topic"]
_ARCHIVE_TOPIC = SQL["archive_topic"]
_INBOX_ITEMS = SQL["inbox_items"]
_READ_INBOX_ITEMS = SQL["read_inbox_items"]

MEMBERS_MAX: Final = 5_000
PINS_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """What became of a post. `lost`: the session that it came from is over, so nobody holds it back."""

    message: Message
    new: bool
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxItem:
    """A message that waits for a person."""

    id: UUID
    message: Message
    read: bool


class ChatService:
    """Channels and what is said in them, one method a command or query, one transaction a method."""

    def __init__(self, spine: ServerSpine, db: Database, cards: Cards) -> None:
        self._spine = spine
        self._db = db
        self._cards = cards

    # Channels -------------------------------------------------------------------------------------------------

    async def create_channel(
        self, actor: Actor, *, name: str, purpose: str, visibility: Visibility, post_policy: PostPolicy
    ) -> Channel:
        """Make a channel; who makes it is its owner and first member. Raises Invalid, and Conflict when its name is taken."""
        name = checks.channel_name(name)
        async with self._spine.open(actor.tenant_id) as tx:
            made = await tx.handle.fetchval(
                _ADD_CHANNEL,
                tx.tenant,
                new_id(),
                name,
                purpose.strip(),
                visibility,
                post_policy,
                actor.account_id,
                None,
            )
            if made is None:
                raise Conflict(f"there is a channel {name} already", code="channel_name_taken")
            channel = await _seen(tx.handle, actor, str(made), as_engine=True)
            await _add_member(tx, channel, _itself(actor), actor, subscribed=True)
            return channel

    async def list_channels(
        self, actor: Actor, *, after: UUID | None = None, limit: int = 50
    ) -> list[Channel]:
        """Return the channels that the actor sees, oldest first."""
        async with self._db.tenant(actor.tenant_id) as scope:
            return await reads.list_channels(
                scope, actor.tenant_id, actor.account_id, after=after, limit=limit
            )

    async def get_channel(self, actor: Actor, ref: str) -> Channel:
        """Return the channel of this id or name. Raises NotFound."""
        async with self._db.tenant(actor.tenant_id) as scope:
            return await _seen(scope, actor, ref)

    async def list_members(
        self, actor: Actor, ref: str, *, after: UUID | None = None, limit: int = 50
    ) -> list[Member]:
        """Return a channel's members. Raises NotFound."""
        async with self._db.tenant(actor.tenant_id) as scope:
            channel = await _seen(scope, actor, ref)
            return await reads.members(scope, actor.tenant_id, channel.id, after=after, limit=limit)

    async def join(self, actor: Actor, ref: str, handle: str | None, *, subscribed: bool) -> Member:
        """Make an account a member, or change whether it subscribes; without a handle, the actor. A member may bring others in.

        Raises NotFound, Invalid, and Conflict when the channel is full.
        """
        async with self._spine.open(actor.tenant_id) as tx:
            channel = await _locked(tx, actor, ref)
            who = await _account(tx, actor, handle)
            return await _add_member(tx, channel, who, actor, subscribed=subscribed)

    async def leave(self, actor: Actor, ref: str, handle: str | None, *, operates: bool = False) -> None:
        """End an account's membership; without a handle, the actor's. Others are removed by the channel's owner, or who operates.

        A shared channel whose last member leaves is nobody's to see any more: it is archived and its name is free, unless it is a
        board's. Raises NotFound, Forbidden.
        """
        async with self._spine.open(actor.tenant_id) as tx:
            channel = await _locked(tx, actor, ref)
            who = await _account(tx, actor, handle)
            if who.account_id != actor.account_id:
                _owns(channel, actor, operates=operates)
            if await tx.handle.execute(_LEAVE, tx.tenant, channel.id, who.account_id):
                verbs.append_member(tx, "member.left", channel, who, actor)
                await _give_up_if_empty(tx, channel)

    async def edit_channel(
        self,
        actor: Actor,
        ref: str,
        *,
        purpose: str | None = None,
        visibility: Visibility | None = None,
        post_policy: PostPolicy | None = None,
        archived: bool | None = None,
        operates: bool = False,
    ) -> Channel:
        """Change what is given. The channel's owner may, who operates, and anybody where it has no owner. Raises NotFound, Forbidden.

        Who narrows who may speak or read in a channel that is nobody's owns it from then on; who closes one is a member of it.
        """
        async with self._spine.open(actor.tenant_id) as tx:
            channel = await _locked(tx, actor, ref)
            _owns(channel, actor, operates=operates)
            closes = visibility == "shared" and channel.visibility == "open"
            owner = channel.owner_id
            if owner is None and (closes or post_policy == "owner"):
                owner = actor.account_id
            if (
                closes
                and await reads.membership(tx.handle, tx.tenant, channel.id, _itself(actor).account_id)
                is None
            ):
                await _add_member(tx, channel, _itself(actor), actor, subscribed=True)
            await tx.handle.execute(
                _WRITE_CHANNEL,
                tx.tenant,
                channel.id,
                channel.purpose if purpose is None else purpose.strip(),
                visibility or channel.visibility,
                post_policy or channel.post_policy,
                owner,
                channel.archived_at is not None if archived is None else archived,
            )
            return await _seen(tx.handle, actor, str(channel.id), as_engine=True)

    async def pins(self, actor: Actor, ref: str) -> list[Message]:
        """Return a channel's pinned messages, in order. Raises NotFound."""
        async with self._db.tenant(actor.tenant_id) as scope:
            channel = await _seen(scope, actor, ref)
            return await _pins(scope, actor.tenant_id, channel)

    async def pin(
        self, actor: Actor, ref: str, messages: Sequence[UUID], *, expected: Sequence[UUID]
    ) -> list[Message]:
        """Put these messages in the place of those that are pinned, if those are the expected ones still.

        Raises NotFound, Invalid, Forbidden, and Conflict when somebody has pinned meanwhile.
        """
        if len(messages) > PINS_MAX or len(set(messages)) < len(messages):
            raise Invalid(FieldError("/messages", f"at most {PINS_MAX}, each once"))
        async with self._spine.open(actor.tenant_id) as tx:
            channel = await _locked(tx, actor, ref)
            verbs.may_speak(channel, actor)
            now = [message.id for message in await _pins(tx.handle, tx.tenant, channel)]
            if now != list(expected):
                raise Conflict(f"pinned are {', '.join(map(str, now)) or 'none'} by now", code="pins_changed")
            await tx.handle.execute(_DROP_PINS, tx.tenant, channel.id)
            added = await tx.handle.execute(
                _ADD_PINS, tx.tenant, channel.id, list(messages), actor.account_id
            )
            if added != len(messages):
                raise Invalid(FieldError("/messages", "one of them is no message of this channel"))
            return await _pins(tx.handle, tx.tenant, channel)

    # Topics ---------------------------------------------------------------------------------------------------

    async def edit_topic(
        self, actor: Actor, ref: str, topic_id: UUID, *, name: str | None, archived: bool | None
    ) -> Topic:
        """Rename a topic, archive it, or bring it back. Raises NotFound, Invalid, Forbidden, and Conflict for a name that is taken."""
        new_name = None if name is None else checks.topic_name(name, pointer="/name")
        if new_name is not None and reads.as_topic_id(new_name) is not None:
            raise Invalid(FieldError("/name", "looks like the id of a topic, and is taken for one"))
        async with self._spine.open(actor.tenant_id) as tx:
            channel = await _locked(tx, actor, ref)
            verbs.may_speak(channel, actor)
            topic = await reads.read_topic(tx.handle, tx.tenant, topic_id)
            if topic is None or topic.channel_id != channel.id:
                raise NotFound("topic", topic_id)
            if new_name is not None:
                other = await tx.handle.fetchval(_TOPIC_NAMED, tx.tenant, channel.id, new_name)
                if other not in (None, topic_id):
                    raise Conflict(f"there is a topic {new_name} already", code="topic_name_taken")
                await tx.handle.execute(_RENAME_TOPIC, tx.tenant, topic_id, new_name)
            if archived is not None:
                await tx.handle.execute(_ARCHIVE_TOPIC, tx.tenant, topic_id, archived)
            changed = await reads.read_topic(tx.handle, tx.tenant, topic_id)
            assert changed is not None
            return changed

    async def list_topics(
        self,
        actor: Actor,
        ref: str,
        *,
        archived: bool,
        after: tuple[int, UUID] | None = None,
        limit: int = 50,
    ) -> list[tuple[Topic, int]]:
        """Return a channel's topics, the one that was spoken in last first, each with its last seq. Raises NotFound."""
        async with self._db.tenant(actor.tenant_id) as scope:
            channel = await _seen(scope, actor, ref)
            seq, topic = after or (None, None)
            rows = await scope.fetch(_TOPICS, actor.tenant_id, channel.id, archived, seq, topic, limit)
        return [(topic_of(row), row["last_seq"]) for row in rows]

    # Messages -------------------------------------------------------------------------------------------------

    async def post(
        self,
        actor: Actor,
        ref: str,
        *,
        topic: str | None,
        blocks: Sequence[Mapping[str, Any]],
        mentions: Sequence[str],
        request_id: str,
        final: bool = False,
        speaking: Speaking | None = None,
        may_broadcast: bool = False,
    ) -> Posted:
        """Post a message to a topic by its name, made if need be, or by its id. The same request is the same message.

        Raises NotFound, Invalid, Forbidden.
        """
        new = checks.new_message(
            topic=topic,
            given=blocks,
            named=mentions,
            request_id=request_id,
            final=final,
            author_kind=actor.kind,
            may_broadcast=may_broadcast,
        )
        async with self._spine.open(actor.tenant_id) as tx:
            session = None if speaking is None else await _speaker(tx, actor, speaking)
            channel = await _seen(tx.handle, actor, ref)
            turn = None if speaking is None else _turn(session, speaking)
            answers = None
            if session is not None and speaking is not None and speaking.delivery_id is not None:
                answers = await verbs.cause_of_delivery(tx, session, speaking.delivery_id)
            message, is_new = await verbs.post(
                tx, channel, new, actor, session=session, turn=turn, answers=answers
            )
            if session is not None and is_new:
                await verbs.follow_turn(tx, session, turn)
            reach(FaultPoint.POST_BEFORE_COMMIT)
        reach(FaultPoint.POST_AFTER_COMMIT)
        return Posted(message=message, new=is_new, lost=session is not None and not session.is_live)

    async def comment(
        self,
        actor: Actor,
        card_ref: str,
        *,
        blocks: Sequence[Mapping[str, Any]],
        mentions: Sequence[str],
        request_id: str,
        may_broadcast: bool = False,
    ) -> Posted:
        """Post a message to a card's topic, in its board's channel; both are made if need be. Raises NotFound, Invalid, Forbidden."""
        async with self._spine.open(actor.tenant_id) as tx:
            card = await self._cards.find_card(tx, card_ref)
            if card is None:
                raise NotFound("card", card_ref)
            new = checks.new_message(
                topic=card.key,
                given=blocks,
                named=mentions,
                request_id=request_id,
                final=False,
                author_kind=actor.kind,
                may_broadcast=may_broadcast,
            )
            channel = await _seen(tx.handle, actor, str((await verbs.channel_of_board(tx, card.board)).id))
            topic = await verbs.topic_of_card(tx, card)
            message, is_new = await verbs.post(tx, channel, new, actor, topic=topic)
            reach(FaultPoint.POST_BEFORE_COMMIT)
        reach(FaultPoint.POST_AFTER_COMMIT)
        return Posted(message=message, new=is_new, lost=False)

    async def edit(
        self,
        actor: Actor,
        message_id: UUID,
        *,
        blocks: Sequence[Mapping[str, Any]] | None,
        expected_revision: int | None,
        mentions: Sequence[str] | None = None,
        final: bool = False,
        speaking: Speaking | None = None,
        may_broadcast: bool = False,
    ) -> Message:
        """Give the actor's own message new blocks, let it call others while it is held, settle it early, or all of that.

        Raises NotFound, Invalid, Forbidden, Conflict.
        """
        kept = None if blocks is None else checks.blocks(blocks)
        async with self._spine.open(actor.tenant_id) as tx:
            if speaking is not None:
                await _speaker(tx, actor, speaking)
            found = await reads.find_message(tx.handle, tx.tenant, _itself(actor).account_id, message_id)
            if found is None:
                raise NotFound("message", message_id)
            if found.author_id != actor.account_id:
                raise Forbidden("a message is edited by its author")
            channel = await _locked(tx, actor, str(found.channel_id))
            message = await verbs.lock_message(tx, message_id)
            assert message is not None
            if expected_revision is not None and expected_revision != message.revision:
                raise Conflict(
                    f"it is at revision {message.revision}, not {expected_revision}", code="message_edited"
                )
            says = message.blocks if kept is None else kept
            called = None
            if mentions is not None:
                called = checks.called(mentions, says, author_kind=actor.kind, may_broadcast=may_broadcast)
            return await verbs.edit(tx, channel, message, says, actor, final=final, called=called)

    async def get_message(self, actor: Actor, message_id: UUID) -> Message:
        """Return a message. Raises NotFound."""
        async with self._db.tenant(actor.tenant_id) as scope:
            found = await reads.find_message(scope, actor.tenant_id, _itself(actor).account_id, message_id)
        if found is None:
            raise NotFound("message", message_id)
        return found

    async def history(
        self,
        actor: Actor,
        ref: str,
        *,
        topic: str | None = None,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
    ) -> list[Message]:
        """Return a channel's messages, or those of a topic by id or name: the newest first, before a seq; or the oldest first, behind
        `after`. Raises NotFound."""
        async with self._db.tenant(actor.tenant_id) as scope:
            channel = await _seen(scope, actor, ref)
            within = channel.id
            if topic is not None:
                found = await reads.find_topic(scope, actor.tenant_id, channel.id, topic)
                if found is None:
                    raise NotFound("topic", topic)
                within = found
            if after is not None:
                behind = _AFTER if topic is None else _OF_TOPIC_AFTER
                rows = await scope.fetch(behind, actor.tenant_id, within, after, limit)
            else:
                newest = _OF_CHANNEL if topic is None else _OF_TOPIC
                rows = await scope.fetch(newest, actor.tenant_id, within, before, limit)
            return await reads.messages_in_order(scope, actor.tenant_id, [row["id"] for row in rows])

    async def search(
        self, actor: Actor, text: str, *, channel: str | None, before: UUID | None = None, limit: int = 50
    ) -> list[Message]:
        """Return the messages that the actor sees and that have all words of the text, the newest first. Raises Invalid, NotFound."""
        asked = words.words(text)[:20]
        if not asked:
            raise Invalid(FieldError("/q", "names no word"))
        async with self._db.tenant(actor.tenant_id) as scope:
            within = None if channel is None else (await _seen(scope, actor, channel)).id
            first: str = await scope.fetchval(_RAREST, actor.tenant_id, asked)
            others = [word for word in asked if word != first]
            rows = await scope.fetch(
                _SEARCH, actor.tenant_id, first, others, actor.account_id, within, before, limit
            )
            return await reads.messages_in_order(scope, actor.tenant_id, [row["id"] for row in rows])

    # A person's inbox -----------------------------------------------------------------------------------------

    async def inbox(
        self, actor: Actor, *, read: bool, after: UUID | None = None, limit: int = 50
    ) -> list[InboxItem]:
        """Return the messages that mention the actor, the newest first: the unread ones, or all. What it may not see is left out."""
        account = _itself(actor).account_id
        async with self._db.tenant(actor.tenant_id) as scope:
            rows = await scope.fetch(_INBOX_ITEMS, actor.tenant_id, account, read, after, limit)
            messages = {
                message.id: message
                for message in await reads.read_messages(
                    scope, actor.tenant_id, [row["message_id"] for row in rows]
                )
            }
        return [
            InboxItem(id=row["id"], message=messages[row["message_id"]], read=row["read_at"] is not None)
            for row in rows
        ]

    async def mark_read(self, actor: Actor, ids: Sequence[UUID]) -> int:
        """Mark items of the actor's inbox as read; return how many there were."""
        async with self._db.tenant(actor.tenant_id) as scope:
            return len(
                await scope.fetch(_READ_INBOX_ITEMS, actor.tenant_id, _itself(actor).account_id, list(ids))
            )


# Who, where, and whether --------------------------------------------------------------------------------------


def _itself(actor: Actor) -> Member:
    if actor.account_id is None:
        raise Forbidden("this is for an account")
    return Member(account_id=actor.account_id, kind=actor.kind, handle=actor.handle, subscribed=True)


async def _seen(scope: Scope, actor: Actor, ref: str, *, as_engine: bool = False) -> Channel:
    account = None if as_engine else _itself(actor).account_id
    channel = await reads.find_channel(scope, actor.tenant_id, account, ref)
    if channel is None:
        raise NotFound("channel", ref)
    return channel


async def _locked(tx: Tx, actor: Actor, ref: str) -> Channel:
    """Return a channel as it is now that its row is locked. Raises NotFound."""
    return await verbs.lock_channel(tx, await _seen(tx.handle, actor, ref), actor)


async def _account(tx: Tx, actor: Actor, handle: str | None) -> Member:
    if handle is None:
        return _itself(actor)
    name = handle.strip().lstrip("@").lower()
    rows = await tx.handle.fetch(_ACCOUNTS, tx.tenant, [name])
    if not rows:
        raise Invalid(FieldError("/account", f"there is nobody called {name}"))
    [row] = rows
    return Member(account_id=row["id"], kind=row["kind"], handle=row["handle"], subscribed=False)


async def _add_member(tx: Tx, channel: Channel, who: Member, actor: Actor, *, subscribed: bool) -> Member:
    """Make an account a member of a channel that this transaction has locked, or made."""
    joined = await tx.handle.fetchval(_JOIN, tx.tenant, channel.id, who.account_id, subscribed)
    if joined:
        if await tx.handle.fetchval(_COUNT_MEMBERS, tx.tenant, channel.id) > MEMBERS_MAX:
            raise Conflict(f"a channel has at most {MEMBERS_MAX} members", code="channel_full")
        verbs.append_member(tx, "member.joined", channel, who, actor)
    return Member(account_id=who.account_id, kind=who.kind, handle=who.handle, subscribed=subscribed)


async def _pins(scope: Scope, tenant: UUID, channel: Channel) -> list[Message]:
    rows = await scope.fetch(_PINS, tenant, channel.id)
    return await reads.messages_in_order(scope, tenant, [row["message_id"] for row in rows])


def _owns(channel: Channel, actor: Actor, *, operates: bool) -> None:
    if channel.owner_id not in (None, actor.account_id) and not operates:
        raise Forbidden("a channel is changed by its owner, or by an operator who sees it")


async def _give_up_if_empty(tx: Tx, channel: Channel) -> None:
    """Archive a locked shared channel that has no member any more, and free its name: nobody sees it, so nobody else could.

    A board's stays as it is: its cards' topics are there, and another's of that board would be without them.
    """
    if channel.visibility == "open" or channel.board_id is not None:
        return
    if await tx.handle.fetchval(_COUNT_MEMBERS, tx.tenant, channel.id) == 0:
        await tx.handle.execute(_GIVE_UP_CHANNEL, tx.tenant, channel.id, new_id().hex)


async def _speaker(tx: Tx, actor: Actor, speaking: Speaking) -> model.Session:
    """Lock and return the session that an agent says it speaks from; it may be over."""
    session = await verbs.lock_session(tx, speaking.session_id)
    if session is None or session.claim_id != speaking.claim_id or session.agent_id != actor.account_id:
        raise NotFound("session", speaking.session_id)
    return session


def _turn(session: model.Session | None, speaking: Speaking) -> int | None:
    if session is None:
        return None
    return session.turn if speaking.turn is None else speaking.turn
