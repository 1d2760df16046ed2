"""Questions that stand in messages, as values and as rows. Takes a message that settles; leaves its questions open, with an event each,
in the caller's transaction. Who answers them is `asks.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from mainspring.chat.model import Message, Visibility
from mainspring.chat.rows import SQL
from mainspring.db import Scope
from mainspring.ids import new_id
from mainspring.rooms import AccountKind, Actor, Tx
from mainspring.spine.events import NewEvent

if TYPE_CHECKING:
    from asyncpg import Record

_OPEN = SQL["open_message_asks"]
_READ = SQL["message_asks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAsk:
    """A question of a message, with what people want to know of it."""

    id: UUID
    message_id: UUID
    block_id: str
    channel_id: UUID
    channel_name: str
    visibility: Visibility
    topic_name: str
    author_id: UUID
    author_handle: str
    author_kind: AccountKind
    question: str
    options: tuple[str, ...]
    state: str
    answer: str | None
    answered_by: str | None
    answered_by_id: UUID | None
    asked_at: datetime
    ended_at: datetime | None


async def open_asks(tx: Tx, message: Message, actor: Actor) -> None:
    """Open the questions of a message that settles; those that are open already stay as they are."""
    asked = [block for block in message.blocks if block["type"] == "ask"]
    if not asked:
        return
    rows = await tx.handle.fetch(
        _OPEN, tx.tenant, message.id, [new_id() for _ in asked], [block["id"] for block in asked],
        [block["question"] for block in asked], [json.dumps(block["options"]) for block in asked],
    )  # fmt: skip
    opened = [row["id"] for row in rows]
    for ask in await read_asks(tx.handle, tx.tenant, opened, message.author_id):
        append(tx, "ask.opened", ask, message, actor)


async def read_asks(
    scope: Scope, tenant: UUID, ids: Sequence[UUID], account: UUID | None
) -> list[MessageAsk]:
    """Return those of the questions that exist, and that the account sees."""
    return [_ask_of(row) for row in await scope.fetch(_READ, tenant, list(ids), account)] if ids else []


def snapshot(ask: MessageAsk) -> dict[str, Any]:
    """Return a question as its events carry it."""
    return {
        "id": str(ask.id),
        "message_id": str(ask.message_id),
        "question": ask.question,
        "options": list(ask.options),
        "state": ask.state,
        "answer": ask.answer,
    }


def append(tx: Tx, kind: str, ask: MessageAsk, message: Message, actor: Actor) -> None:
    """Append the event of a question, which descends from what the message does."""
    channel = {"id": str(ask.channel_id), "name": ask.channel_name, "visibility": ask.visibility}
    data = {"ask": snapshot(ask), "channel": channel, "actor": actor.snapshot()}
    tx.append(NewEvent(kind, subject=str(ask.id), data=data, actor_id=actor.account_id, cause=message.cause))


def _ask_of(row: Record) -> MessageAsk:
    fields = {name: row[name] for name in MessageAsk.__dataclass_fields__}
    return MessageAsk(**{**fields, "options": tuple(row["options"])})
