"""Rows of this room's tables as values, and the statements they come from. A leaf of the room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.chat.model import Channel, Member, Message, Session, SessionState, SettledBy, Topic
from mainspring.spine.events import Cause, Trust
from mainspring.sql import Queries

if TYPE_CHECKING:
    from asyncpg import Record

SQL = Queries("mainspring.chat.sql")


def channel_of(row: Record) -> Channel:
    """Return a channel from its row."""
    return Channel(
        id=row["id"],
        name=row["name"],
        purpose=row["purpose"],
        visibility=row["visibility"],
        post_policy=row["post_policy"],
        owner_id=row["owner_id"],
        board_id=row["board_id"],
        last_seq=row["last_seq"],
        version=row["version"],
        created_at=row["created_at"],
        archived_at=row["archived_at"],
    )


def topic_of(row: Record) -> Topic:
    """Return a topic from its row."""
    return Topic(
        id=row["id"],
        channel_id=row["channel_id"],
        name=row["name"],
        card_id=row["card_id"],
        hops=row["hops"],
        archived_at=row["archived_at"],
    )


def member_of(row: Record) -> Member:
    """Return a member from its row."""
    return Member(
        account_id=row["account_id"], kind=row["kind"], handle=row["handle"], subscribed=row["subscribed"]
    )


def message_of(row: Record) -> Message:
    """Return a message from its row."""
    return Message(
        id=row["id"],
        channel_id=row["channel_id"],
        channel_name=row["channel_name"],
        visibility=row["visibility"],
        topic_id=row["topic_id"],
        topic_name=row["topic_name"],
        card_id=row["card_id"],
        channel_seq=row["channel_seq"],
        author_id=row["author_id"],
        author_kind=row["author_kind"],
        author_handle=row["author_handle"],
        run_id=row["run_id"],
        session_id=row["session_id"],
        turn=row["turn"],
        blocks=tuple(row["blocks"]),
        mentions=tuple(row["mentions"]),
        broadcast=row["broadcast"],
        revision=row["revision"],
        request_id=row["request_id"],
        cause=Cause(
            seq=row["cause_seq"], via=tuple(row["via"]), depth=row["depth"], trust=Trust(row["trust"])
        ),
        hops=row["hops"],
        settled_by=None if row["settled_by"] is None else SettledBy(row["settled_by"]),
        settled_at=row["settled_at"],
        posted_at=row["posted_at"],
        edited_at=row["edited_at"],
    )


def session_of(row: Record) -> Session:
    """Return a session from its row."""
    acked = None
    if row["acked_turn"] is not None:
        acked = Cause(
            seq=row["acked_seq"],
            via=tuple(row["acked_via"]),
            depth=row["acked_depth"],
            trust=Trust(row["acked_trust"]),
        )
    return Session(
        id=row["id"],
        agent_id=row["agent_id"],
        agent_handle=row["agent_handle"],
        run_id=row["run_id"],
        topic_id=row["topic_id"],
        state=SessionState(row["state"]),
        turn=row["turn"],
        settled_turn=row["settled_turn"],
        claim_id=row["claim_id"],
        lease_until=row["lease_until"],
        acked=acked,
        acked_turn=row["acked_turn"],
        started_at=row["started_at"],
        seen_at=row["seen_at"],
        ended_at=row["ended_at"],
        reason=row["reason"],
    )
