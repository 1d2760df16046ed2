"""Commands and queries on boards and cards. Takes who acts and what they want; leaves it done in one transaction, with its
events, or refused with nothing written.

A command locks its card, checks the version that the caller has seen, and calls one verb. If it dies here, nothing happened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from mainspring.boards import checks, model, reads, verbs
from mainspring.boards.model import (
    Account,
    Board,
    BoardState,
    Card,
    CardEdit,
    CardQuery,
    NewCard,
    RunHooks,
    Unset,
    fold,
)
from mainspring.db import Database, Scope
from mainspring.rooms import Actor, Conflict, FieldError, Invalid, NotFound, ServerSpine, Tx, VersionConflict


class BoardService:
    """Boards and cards, one method a command or query, one transaction a method."""

    def __init__(self, spine: ServerSpine, db: Database, runs: RunHooks) -> None:
        self._spine = spine
        self._db = db
        self._runs = runs

    # Boards ---------------------------------------------------------------------------------------------------

    async def create_board(
        self, actor: Actor, *, key: str, name: str, states: Sequence[BoardState], reflect: Mapping[str, str]
    ) -> Board:
        """Make a board. Raises Invalid, and Conflict when its key is taken."""
        new = checks.new_board(key, name, states, reflect)
        async with self._spine.open(actor.tenant_id) as tx:
            board = await verbs.create_board(tx, new)
            if board is None:
                raise Conflict(f"there is a board {new.key} already", code="board_key_taken")
            return board

    async def list_boards(self, tenant: UUID, *, after: UUID | None = None, limit: int = 50) -> list[Board]:
        """Return the tenant's boards behind `after`, oldest first."""
        async with self._db.tenant(tenant) as scope:
            return await reads.list_boards(scope, tenant, after=after, limit=limit)

    async def get_board(self, tenant: UUID, ref: str) -> Board:
        """Return the board with this id or key. Raises NotFound."""
        async with self._db.tenant(tenant) as scope:
            return await _board(scope, tenant, ref)

    # Cards ----------------------------------------------------------------------------------------------------

    async def create_card(self, actor: Actor, board_ref: str, new: NewCard) -> Card:
        """Make a card on a board. Raises NotFound and Invalid."""
        async with self._spine.open(actor.tenant_id) as tx:
            board = await reads.find_board(tx.handle, tx.tenant, board_ref)
            if board is None:
                raise Invalid(FieldError("/board", f"no board {board_ref[: checks.NAME_LENGTH_MAX]!r}"))
            checked = checks.new_card(board, new)
            agent = await _agent(tx.handle, tx.tenant, checked.agent)
            assignee = await _assignee(tx.handle, tx.tenant, checked.assignee)
            return await verbs.create_card(tx, board, checked, actor, agent=agent, assignee=assignee)

    async def list_cards(self, tenant: UUID, query: CardQuery) -> list[Card]:
        """Return the cards that match, oldest first, at most `limit`. Raises Invalid when a name means nothing."""
        async with self._db.tenant(tenant) as scope:
            return await reads.find_cards(scope, tenant, await _filter(scope, tenant, query))

    async def get_card(self, tenant: UUID, ref: str) -> Card:
        """Return the card with this id or key. Raises NotFound."""
        async with self._db.tenant(tenant) as scope:
            card_id = await _card_id(scope, tenant, ref)
            card = await reads.read_card(scope, tenant, card_id)
            if card is None:
                raise NotFound("card", ref)
            return card

    async def move_card(
        self, actor: Actor, ref: str, to_state: str, *, expected_version: int | None = None
    ) -> Card:
        """Move a card to another state of its board. Raises NotFound, Invalid, VersionConflict."""
        async with self._change(actor, ref, expected_version) as (tx, card):
            return await verbs.move_card(tx, card, to_state, actor, runs=self._runs)

    async def edit_card(
        self, actor: Actor, ref: str, edit: CardEdit, *, expected_version: int | None = None
    ) -> Card:
        """Change a card's title, body, priority or fields. Raises NotFound, Invalid, VersionConflict."""
        checked = checks.card_edit(edit)
        async with self._change(actor, ref, expected_version) as (tx, card):
            checks.fields_fit(model.edited(card, checked).fields)
            return await verbs.edit_card(tx, card, checked, actor)

    async def assign_card(
        self,
        actor: Actor,
        ref: str,
        *,
        assignee: str | Unset | None = model.UNSET,
        agent: str | Unset | None = model.UNSET,
        expected_version: int | None = None,
    ) -> Card:
        """Set a card's assignee or pin, by handle; None takes it away. Raises NotFound, Invalid, VersionConflict."""
        async with self._change(actor, ref, expected_version) as (tx, card):
            to_assignee = (
                assignee if isinstance(assignee, Unset) else await _assignee(tx.handle, tx.tenant, assignee)
            )
            to_agent = agent if isinstance(agent, Unset) else await _agent(tx.handle, tx.tenant, agent)
            return await verbs.assign_card(tx, card, actor, assignee=to_assignee, agent=to_agent)

    async def label_card(
        self,
        actor: Actor,
        ref: str,
        *,
        add: Collection[str] = (),
        remove: Collection[str] = (),
        expected_version: int | None = None,
    ) -> Card:
        """Put labels on a card and take labels off. Raises NotFound, Invalid, VersionConflict."""
        async with self._change(actor, ref, expected_version) as (tx, card):
            on, off = checks.label_change(card.labels, add, remove)
            return await verbs.label_card(tx, card, actor, add=on, remove=off)

    async def delete_card(self, actor: Actor, ref: str, *, expected_version: int | None = None) -> None:
        """Delete a card. Raises NotFound, VersionConflict."""
        async with self._change(actor, ref, expected_version) as (tx, card):
            await verbs.delete_card(tx, card, actor)

    @asynccontextmanager
    async def _change(
        self, actor: Actor, ref: str, expected_version: int | None
    ) -> AsyncIterator[tuple[Tx, Card]]:
        """Open a transaction that holds the card's lock; refuse when it is not at the version the caller has seen."""
        async with self._spine.open(actor.tenant_id) as tx:
            card = await verbs.lock_card(tx, await _card_id(tx.handle, tx.tenant, ref))
            if card is None:
                raise NotFound("card", ref)
            if expected_version is not None and expected_version != card.version:
                raise await _changed_meanwhile(tx.handle, tx.tenant, card, expected_version)
            yield tx, card


async def _board(scope: Scope, tenant: UUID, ref: str) -> Board:
    board = await reads.find_board(scope, tenant, ref)
    if board is None:
        raise NotFound("board", ref)
    return board


async def _card_id(scope: Scope, tenant: UUID, ref: str) -> UUID:
    parsed = model.parse_ref(ref)
    card_id = None if parsed is None else await reads.find_card_id(scope, tenant, parsed)
    if card_id is None:
        raise NotFound("card", ref)
    return card_id


async def _changed_meanwhile(scope: Scope, tenant: UUID, card: Card, expected: int) -> VersionConflict:
    last = await reads.last_event(scope, tenant, card.id)
    current: dict[str, Any] = model.shown(card)
    if last is None:
        return VersionConflict(f"{card.key} is at version {card.version}, not {expected}", current=current)
    current |= {"changed_by": last.actor, "changed_at": last.occurred_at.isoformat(), "changed": last.kind}
    detail = f"{card.key} is at version {card.version}, not {expected}: last {last.kind} by {last.handle}"
    return VersionConflict(detail, current=current)


async def _agent(scope: Scope, tenant: UUID, handle: str | None, pointer: str = "/agent") -> Account | None:
    if handle is None:
        return None
    found = await reads.find_agent(scope, tenant, fold(handle))
    if found is None:
        raise Invalid(FieldError(pointer, f"no agent {handle[: checks.NAME_LENGTH_MAX]!r}"))
    return found


async def _assignee(
    scope: Scope, tenant: UUID, handle: str | None, pointer: str = "/assignee"
) -> Account | None:
    if handle is None:
        return None
    found = await reads.find_account(scope, tenant, fold(handle))
    if found is None:
        raise Invalid(FieldError(pointer, f"no account {handle[: checks.NAME_LENGTH_MAX]!r}"))
    return found


async def _filter(scope: Scope, tenant: UUID, query: CardQuery) -> reads.Filter:
    board = None
    if query.board is not None and (board := await reads.find_board(scope, tenant, query.board)) is None:
        raise Invalid(FieldError("/board", f"no board {query.board[: checks.NAME_LENGTH_MAX]!r}"))
    agent = await _agent(scope, tenant, query.agent)
    assignee = await _assignee(scope, tenant, query.assignee)
    return reads.Filter(
        board_id=board.id if board else None,
        state=None if query.state is None else fold(query.state),
        labels=tuple(sorted(set(map(fold, query.labels)))),
        assignee_id=assignee.id if assignee else None,
        agent_id=agent.id if agent else None,
        after=query.after,
        limit=query.limit,
    )
