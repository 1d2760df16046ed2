"""Boards and cards out of the database: takes an open scope of one tenant, leaves values. Writes and locks nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from mainspring.boards.model import Account, Board, BoardState, Card, CardKey, CardRef
from mainspring.db import Scope
from mainspring.sql import Queries

if TYPE_CHECKING:
    import asyncpg

SQL = Queries("mainspring.boards.sql")

_READ_CARDS = SQL["read_cards"]
_FIND_BY_KEY = SQL["find_card_by_key"]
_FIND_CARDS = SQL["find_cards"]
_FIND_ON_BOARD = SQL["find_cards_on_board"]
_FIND_LABELED = SQL["find_labeled_cards"]
_GET_BOARD = SQL["get_board"]
_LIST_BOARDS = SQL["list_boards"]
_FIND_ACCOUNT = SQL["find_account"]
_FIND_AGENT = SQL["find_agent"]
_LAST_EVENT = SQL["last_card_event"]
_LAST_PINNED_BY = SQL["last_pinned_by"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEvent:
    """The event that last changed a card, and who acted."""

    seq: int
    kind: str
    actor: dict[str, Any]
    occurred_at: datetime

    @property
    def handle(self) -> str:
        """Who it was, as people call them."""
        return str(self.actor.get("handle") or "somebody")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A `CardQuery` with its names resolved to ids."""

    board_id: UUID | None = None
    state: str | None = None
    labels: tuple[str, ...] = ()
    assignee_id: UUID | None = None
    agent_id: UUID | None = None
    after: UUID | None = None
    limit: int = 50


# Boards and accounts ------------------------------------------------------------------------------------------


def _states(stored: Sequence[dict[str, Any]]) -> tuple[BoardState, ...]:
    return tuple(
        BoardState(name=state["name"], eligible=state["eligible"], terminal=state["terminal"])
        for state in stored
    )


def _board(row: asyncpg.Record) -> Board:
    return Board(
        id=row["id"],
        key=row["key"],
        name=row["name"],
        states=_states(row["states"]),
        reflect=row["reflect"],
        version=row["version"],
    )


async def find_board(scope: Scope, tenant: UUID, ref: str) -> Board | None:
    """Return the board with this id or key."""
    try:
        board_id, key = UUID(ref), None
    except ValueError:
        board_id, key = None, ref.strip().upper()
    row = await scope.fetchrow(_GET_BOARD, tenant, board_id, key)
    return _board(row) if row else None


async def list_boards(scope: Scope, tenant: UUID, *, after: UUID | None, limit: int) -> list[Board]:
    """Return the tenant's boards behind `after`, oldest first."""
    return [_board(row) for row in await scope.fetch(_LIST_BOARDS, tenant, after, limit)]


async def find_account(scope: Scope, tenant: UUID, handle: str) -> Account | None:
    """Return the account with this handle."""
    row = await scope.fetchrow(_FIND_ACCOUNT, tenant, handle)
    return Account(id=row["id"], handle=row["handle"]) if row else None


async def find_agent(scope: Scope, tenant: UUID, handle: str) -> Account | None:
    """Return the agent with this handle."""
    row = await scope.fetchrow(_FIND_AGENT, tenant, handle)
    return Account(id=row["id"], handle=row["handle"]) if row else None


# Cards --------------------------------------------------------------------------------------------------------


def _account(account_id: UUID | None, handle: str | None) -> Account | None:
    return None if account_id is None else Account(id=account_id, handle=handle or "")


def _card(row: asyncpg.Record) -> Card:
    board = Board(
        id=row["board_id"],
        key=row["board_key"],
        name=row["board_name"],
        states=_states(row["board_states"]),
        reflect=row["board_reflect"],
        version=row["board_version"],
    )
    return Card(
        id=row["id"],
        board=board,
        number=row["number"],
        title=row["title"],
        body=row["body"],
        state=row["state"],
        state_version=row["state_version"],
        labels=frozenset(row["labels"]),
        agent=_account(row["agent_id"], row["agent_handle"]),
        assignee=_account(row["assignee_id"], row["assignee_handle"]),
        priority=row["priority"],
        fields=row["fields"],
        version=row["version"],
        eligible_version=row["eligible_version"],
        eligible_seq=row["eligible_seq"],
        dispatched_version=row["dispatched_version"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


async def read_cards(scope: Scope, tenant: UUID, ids: Sequence[UUID]) -> list[Card]:
    """Return the cards with these ids that are not deleted, in the order of their ids."""
    return [_card(row) for row in await scope.fetch(_READ_CARDS, tenant, ids)] if ids else []


async def read_card(scope: Scope, tenant: UUID, card_id: UUID) -> Card | None:
    """Return one card, None when it is not there or deleted."""
    return next(iter(await read_cards(scope, tenant, [card_id])), None)


async def find_card_id(scope: Scope, tenant: UUID, ref: CardRef) -> UUID | None:
    """Return the id that a reference means; whether an id stands for a card is for the read to tell."""
    if not isinstance(ref, CardKey):
        return ref
    found: UUID | None = await scope.fetchval(_FIND_BY_KEY, tenant, ref.board, ref.number)
    return found


async def find_cards(scope: Scope, tenant: UUID, wanted: Filter) -> list[Card]:
    """Return the cards that match, oldest first, at most `limit`."""
    terms = (tenant, wanted.after, wanted.state, wanted.assignee_id, wanted.agent_id, wanted.limit)
    if wanted.labels:
        rows = await scope.fetch(_FIND_LABELED, *terms, wanted.board_id, list(wanted.labels))
    elif wanted.board_id is not None:
        rows = await scope.fetch(_FIND_ON_BOARD, *terms, wanted.board_id)
    else:
        rows = await scope.fetch(_FIND_CARDS, *terms)
    return await read_cards(scope, tenant, [row["id"] for row in rows])


async def last_pinned_by(scope: Scope, tenant: UUID, card_id: UUID) -> str | None:
    """Return the kind of the event that changed the card's pin last."""
    kind: str | None = await scope.fetchval(_LAST_PINNED_BY, tenant, str(card_id))
    return kind


async def last_event(scope: Scope, tenant: UUID, card_id: UUID, *, kind: str = "card.%") -> LastEvent | None:
    """Return the card's last event of a kind (a `like` pattern)."""
    row = await scope.fetchrow(_LAST_EVENT, tenant, str(card_id), kind)
    if row is None:
        return None
    return LastEvent(
        seq=row["seq"], kind=row["kind"], actor=row["actor"] or {}, occurred_at=row["occurred_at"]
    )
