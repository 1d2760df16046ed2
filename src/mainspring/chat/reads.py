"""Channels and messages out of the database: takes an open scope of one tenant, leaves values. Writes and locks nothing.

What an account sees is decided by one predicate, in SQL, that every read goes through: the channel is open, or it is a member.
What it may not see does not exist for it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final
from uuid import UUID

from mainspring.chat.model import Channel, Member, Message, Topic
from mainspring.chat.rows import SQL, channel_of, member_of, message_of, topic_of
from mainspring.db import Scope

_TOPIC_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_CHANNELS = SQL["channels"]
_VISIBLE = SQL["visible_channels"]
_MEMBERS = SQL["members"]
_MESSAGES = SQL["messages_by_id"]
_TOPIC = SQL["topic"]
_TOPIC_NAMED = SQL["topic_named"]


async def list_channels(
    scope: Scope, tenant: UUID, account: UUID | None, *, after: UUID | None = None, limit: int = 50
) -> list[Channel]:
    """Return the channels that an account sees, oldest first; all of them for the engine itself (None)."""
    rows = await scope.fetch(_CHANNELS, tenant, account, after, None, None, limit)
    return [channel_of(row) for row in rows]


async def find_channel(scope: Scope, tenant: UUID, account: UUID | None, ref: str) -> Channel | None:
    """Return the channel with this id or name, None when there is none, or none that the account sees."""
    name = ref.strip().lstrip("#").lower()
    rows = await scope.fetch(_CHANNELS, tenant, account, None, _uuid(ref), None if _uuid(ref) else name, 1)
    return channel_of(rows[0]) if rows else None


async def visible(scope: Scope, tenant: UUID, account: UUID, channels: Collection[UUID]) -> frozenset[UUID]:
    """Return which of these channels an account sees."""
    if not channels:
        return frozenset()
    rows = await scope.fetch(_VISIBLE, tenant, account, sorted(set(channels)))
    return frozenset(row["id"] for row in rows)


async def members(
    scope: Scope, tenant: UUID, channel: UUID, *, after: UUID | None = None, limit: int = 50
) -> list[Member]:
    """Return a channel's members."""
    return [member_of(row) for row in await scope.fetch(_MEMBERS, tenant, channel, after, None, limit)]


async def membership(scope: Scope, tenant: UUID, channel: UUID, account: UUID) -> Member | None:
    """Return an account's membership of a channel."""
    row = await scope.fetchrow(_MEMBERS, tenant, channel, None, account, 1)
    return member_of(row) if row else None


async def read_messages(scope: Scope, tenant: UUID, ids: Iterable[UUID]) -> list[Message]:
    """Return those of the messages that exist, by channel and seq."""
    rows = await scope.fetch(_MESSAGES, tenant, list(ids))
    return [message_of(row) for row in rows]


async def messages_in_order(scope: Scope, tenant: UUID, ids: Sequence[UUID]) -> list[Message]:
    """Return these messages in the order that is asked for."""
    found = {message.id: message for message in await read_messages(scope, tenant, ids)}
    return [found[one] for one in ids if one in found]


async def find_message(scope: Scope, tenant: UUID, account: UUID, message_id: UUID) -> Message | None:
    """Return the message, None when there is none, or none that the account sees."""
    found = await read_messages(scope, tenant, [message_id])
    if not found or not await visible(scope, tenant, account, [found[0].channel_id]):
        return None
    return found[0]


async def read_topic(scope: Scope, tenant: UUID, topic: UUID) -> Topic | None:
    """Return a topic."""
    row = await scope.fetchrow(_TOPIC, tenant, topic)
    return topic_of(row) if row else None


async def find_topic(scope: Scope, tenant: UUID, channel: UUID, ref: str) -> UUID | None:
    """Return the topic of a channel with this id or name, None when it has none such."""
    named = _uuid(ref)
    found = None if named is None else await read_topic(scope, tenant, named)
    if found is not None and found.channel_id == channel:
        return found.id
    topic: UUID | None = await scope.fetchval(_TOPIC_NAMED, tenant, channel, ref.strip())
    return topic


def as_topic_id(ref: str) -> UUID | None:
    """Return the id that a topic is named by, None for what can be a topic's name. Pure."""
    return UUID(ref) if _TOPIC_ID.fullmatch(ref) else None


def _uuid(ref: str) -> UUID | None:
    try:
        return UUID(ref)
    except ValueError:
        return None
