"""What can be done to a card inside an open transaction. Takes a card read under its lock; leaves its rows written and its
event appended, which the transaction writes at its end. If it dies here, the transaction was never committed.

Whoever changes a card locks it first (`lock_card`) and hands that value in; every verb returns the card as it is now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from mainspring.boards import checks, model, reads
from mainspring.boards.model import Account, Board, Card, CardEdit, NewBoard, NewCard, RunHooks, Unset
from mainspring.boards.reads import SQL
from mainspring.ids import new_id
from mainspring.rooms import Actor, Tx
from mainspring.spine.errors import Misuse
from mainspring.spine.events import NewEvent

_INSERT_BOARD = SQL["insert_board"]
_TAKE_NUMBER = SQL["take_card_number"]
_LOCK_CARD = SQL["lock_card"]
_INSERT_CARD = SQL["insert_card"]
_WRITE_MOVE = SQL["write_move"]
_WRITE_ASSIGNMENT = SQL["write_assignment"]
_WRITE_EDIT = SQL["write_edit"]
_WRITE_VERSION = SQL["write_version"]
_WRITE_DELETION = SQL["write_deletion"]
_STAMP_ELIGIBLE = SQL["stamp_eligible"]
_SET_DISPATCHED = SQL["set_dispatched"]
_ADD_LABELS = SQL["add_labels"]
_REMOVE_LABELS = SQL["remove_labels"]


# Reading ------------------------------------------------------------------------------------------------------


async def get_card(tx: Tx, card_id: UUID) -> Card | None:
    """Return the card, None when it is not there or deleted."""
    return await reads.read_card(tx.handle, tx.tenant, card_id)


async def find_card(tx: Tx, ref: str) -> Card | None:
    """Return the card of this id or key, None when it is not there or deleted."""
    parsed = model.parse_ref(ref)
    card_id = None if parsed is None else await reads.find_card_id(tx.handle, tx.tenant, parsed)
    return None if card_id is None else await get_card(tx, card_id)


async def lock_card(tx: Tx, card_id: UUID) -> Card | None:
    """Lock the card's row until the transaction ends and return it as it is then; None when it is not there or deleted."""
    if await tx.handle.fetchval(_LOCK_CARD, tx.tenant, card_id) is None:
        return None
    return await get_card(tx, card_id)


async def card_snapshot(tx: Tx, card_id: UUID) -> dict[str, Any] | None:
    """Return the card as events carry it, None when it is not there or deleted."""
    return (await card_snapshots(tx, [card_id])).get(card_id)


async def card_snapshots(tx: Tx, ids: Collection[UUID]) -> dict[UUID, dict[str, Any]]:
    """Return the cards as events carry them, by id; those that are not there or deleted are left out."""
    cards = await reads.read_cards(tx.handle, tx.tenant, list(ids))
    return {card.id: model.snapshot(card) for card in cards}


# Making -------------------------------------------------------------------------------------------------------


async def create_board(tx: Tx, new: NewBoard) -> Board | None:
    """Make a board; None when its key is taken."""
    board = Board(id=new_id(), key=new.key, name=new.name, states=new.states, reflect=new.reflect)
    states = [state.as_json() for state in board.states]
    made = await tx.handle.fetchval(
        _INSERT_BOARD, tx.tenant, board.id, board.key, board.name, states, dict(board.reflect)
    )
    return board if made else None


async def create_card(
    tx: Tx,
    board: Board,
    new: NewCard,
    actor: Actor,
    *,
    agent: Account | None = None,
    assignee: Account | None = None,
) -> Card:
    """Make a card on a board, from checked input, under the board's next number."""
    number = await tx.handle.fetchval(_TAKE_NUMBER, tx.tenant, board.id)
    if number is None:
        raise Misuse(f"board {board.key} is not this tenant's")
    card = model.created(
        Card(
            id=new_id(),
            board=board,
            number=number,
            title=new.title,
            body=new.body,
            state=board.initial if new.state is None else new.state,
            labels=frozenset(new.labels),
            agent=agent,
            assignee=assignee,
            priority=new.priority,
            fields=model.merged({}, new.fields),
        )
    )
    row = await tx.handle.fetchrow(
        _INSERT_CARD, tx.tenant, card.id, board.id, number, card.title, card.body, card.state, card.agent_id,
        card.assignee_id, card.priority, dict(card.fields), card.eligible_version, actor.account_id,
    )  # fmt: skip
    assert row is not None
    if card.labels:
        await tx.handle.execute(_ADD_LABELS, tx.tenant, card.id, sorted(card.labels))
    _append(tx, "card.created", card, actor)
    return replace(card, created_at=row["created_at"], updated_at=row["updated_at"])


# Changing -----------------------------------------------------------------------------------------------------


async def move_card(tx: Tx, card: Card, to_state: str, actor: Actor, *, runs: RunHooks) -> Card:
    """Move the card; to the state it is in is no move. A run that moves it has seen the state it set."""
    after = model.moved(card, checks.card_state(card.board, to_state))
    if after is not card:
        wrote = await tx.handle.fetchval(
            _WRITE_MOVE,
            tx.tenant,
            card.id,
            card.version,
            after.state,
            after.state_version,
            *_eligibility(after),
        )
        after = _written(after, wrote)
        _append(tx, "card.moved", after, actor, **{"from": card.state, "to": after.state})
    if actor.run_id is not None:
        await runs.saw_card_state(tx, actor.run_id, after.state_version)
    return after


async def assign_card(
    tx: Tx,
    card: Card,
    actor: Actor,
    *,
    assignee: Account | Unset | None = model.UNSET,
    agent: Account | Unset | None = model.UNSET,
) -> Card:
    """Give the card an assignee, a pin, or both; None takes one away."""
    after = model.assigned(card, assignee=assignee, agent=agent)
    if after is card:
        return card
    wrote = await tx.handle.fetchval(
        _WRITE_ASSIGNMENT,
        tx.tenant,
        card.id,
        card.version,
        after.agent_id,
        after.assignee_id,
        *_eligibility(after),
    )
    after = _written(after, wrote)
    _append(tx, "card.assigned", after, actor, changed=model.changes(card, after))
    return after


async def promote_card(tx: Tx, card: Card, agent: Account, actor: Actor) -> Card:
    """Pin the card to an agent because a rule says so; a pin that stands in the way is the caller's to look at."""
    after = model.assigned(card, agent=agent)
    if after is card:
        return card
    wrote = await tx.handle.fetchval(
        _WRITE_ASSIGNMENT,
        tx.tenant,
        card.id,
        card.version,
        after.agent_id,
        after.assignee_id,
        *_eligibility(after),
    )
    after = _written(after, wrote)
    _append(tx, "card.promoted", after, actor, changed=model.changes(card, after))
    return after


async def pinned_by_rule(tx: Tx, card_id: UUID) -> bool:
    """Tell whether the card's pin, as it is, was set by a promotion; the log says who changed it last."""
    return await reads.last_pinned_by(tx.handle, tx.tenant, card_id) == "card.promoted"


async def edit_card(tx: Tx, card: Card, edit: CardEdit, actor: Actor) -> Card:
    """Change title, body, priority or fields, from checked input."""
    after = model.edited(card, edit)
    if after is card:
        return card
    wrote = await tx.handle.fetchval(
        _WRITE_EDIT,
        tx.tenant,
        card.id,
        card.version,
        after.title,
        after.body,
        after.priority,
        dict(after.fields),
    )
    after = _written(after, wrote)
    _append(tx, "card.updated", after, actor, changed=model.changes(card, after))
    return after


async def label_card(
    tx: Tx, card: Card, actor: Actor, *, add: Collection[str] = (), remove: Collection[str] = ()
) -> Card:
    """Put labels on and take labels off: one change of the card, an event for each of the two that happened."""
    after = model.labeled(card, add=add, remove=remove)
    if after is card:
        return card
    added, removed = sorted(after.labels - card.labels), sorted(card.labels - after.labels)
    if removed:
        await tx.handle.execute(_REMOVE_LABELS, tx.tenant, card.id, removed)
    if added:
        await tx.handle.execute(_ADD_LABELS, tx.tenant, card.id, added)
    after = _written(after, await tx.handle.fetchval(_WRITE_VERSION, tx.tenant, card.id, card.version))
    if added:
        _append(tx, "card.labeled", after, actor, added=added)
    if removed:
        _append(tx, "card.unlabeled", after, actor, removed=removed)
    return after


async def take_labels(tx: Tx, card: Card, labels: Collection[str], actor: Actor) -> Card | None:
    """Take all these labels off the locked card; None, changing nothing, when one is missing: it is spent."""
    wanted = frozenset(map(model.fold, labels))
    if not wanted <= card.labels:
        return None
    return await label_card(tx, card, actor, remove=wanted)


async def delete_card(tx: Tx, card: Card, actor: Actor) -> Card:
    """Delete the card softly: its row stays for what refers to it, and nothing reads it any more."""
    after = model.deleted(card)
    wrote = await tx.handle.fetchval(_WRITE_DELETION, tx.tenant, card.id, card.version)
    after = _written(after, wrote)
    _append(tx, "card.deleted", after, actor)
    return after


async def set_dispatched(tx: Tx, card_id: UUID, eligible_version: int) -> bool:
    """Note that this eligibility of the card has its launch; False when the card is no longer eligible as of then."""
    return await tx.handle.execute(_SET_DISPATCHED, tx.tenant, card_id, eligible_version) == 1


# Shared -------------------------------------------------------------------------------------------------------


def _eligibility(card: Card) -> tuple[int | None, int | None, int | None]:
    return card.eligible_version, card.eligible_seq, card.dispatched_version


def _written(after: Card, updated_at: datetime | None) -> Card:
    if updated_at is None:
        raise Misuse(f"{after.key} was changed from a version that is not its own: lock it first")
    return replace(after, updated_at=updated_at)


def _append(tx: Tx, kind: str, card: Card, actor: Actor, **delta: Any) -> None:
    event = NewEvent(
        kind,
        subject=str(card.id),
        data={"card": model.snapshot(card), "actor": actor.snapshot(), **delta},
        actor_id=actor.account_id,
        cause=actor.cause,
    )
    tx.append(event, stamp=_eligible_stamp(tx, card) if model.became_eligible(card) else None)


def _eligible_stamp(tx: Tx, card: Card) -> Callable[[int], Awaitable[None]]:
    async def stamp(seq: int) -> None:
        await tx.handle.execute(_STAMP_ELIGIBLE, tx.tenant, card.id, card.eligible_version, seq)

    return stamp
