"""`/cards`: create, list, show, move, edit, assign, label, delete. A card is named by id or key (OPS-12)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID, uuid4

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from mainspring.boards import model
from mainspring.boards.model import UNSET, Card, CardEdit, CardQuery
from mainspring.boards.service import BoardService
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging
from mainspring.server.routes.messages import MessageOut, NewComment
from mainspring.server.routes.messages import shown as shown_message
from mainspring.server.versions import IfMatch, etag, expected
from mainspring.triggers.preview import PreviewService

router = APIRouter(prefix="/cards", tags=["cards"], route_class=Route)

Ref = Annotated[str, Path(max_length=100, description="Id or key, like OPS-12")]
Title = Annotated[str, Field(min_length=1, max_length=200)]
Body = Annotated[str, Field(max_length=262_144, description="At most 256 KiB of UTF-8")]
Priority = Annotated[int, Field(ge=-1000, le=1000)]
Label = Annotated[str, Field(min_length=1, max_length=64)]
Handle = Annotated[str, Field(min_length=1, max_length=64)]
Named = Annotated[str | None, Query(max_length=200)]


class _Input(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Change(_Input):
    expected_version: int | None = Field(
        default=None,
        ge=1,
        description="Refuse with 412 unless the card is at this version; If-Match says the same",
    )


class NewCard(_Input):
    """A card to be made; without a state it starts in the board's first."""

    board: str = Field(min_length=1, max_length=100, description="Id or key of the board")
    title: Title
    body: Body = ""
    state: str | None = Field(default=None, min_length=1, max_length=64)
    labels: list[Label] = Field(default_factory=list, max_length=64)
    agent: Handle | None = Field(default=None, description="The pin: who is to work on it")
    assignee: Handle | None = None
    priority: Priority = 0
    fields: dict[str, Any] = Field(default_factory=dict, description="JSON of your own, at most 64 KiB")


class Move(_Change):
    """Where the card is to go."""

    state: str = Field(min_length=1, max_length=64)


class Edit(_Change):
    """What is to change; what is left out stays. `fields` are merged by name, and a null takes a name away."""

    title: Title | None = None
    body: Body | None = None
    priority: Priority | None = None
    fields: dict[str, Any] | None = None


class Assign(_Change):
    """Who is to have the card: a handle, or null to take it away; what is left out stays."""

    assignee: Handle | None = None
    agent: Handle | None = None


class Labels(_Change):
    """Labels to put on and to take off."""

    add: list[Label] = Field(default_factory=list, max_length=64)
    remove: list[Label] = Field(default_factory=list, max_length=64)


class CardOut(BaseModel):
    """A card. `version` grows with every change, `state_version` with moves alone."""

    id: UUID
    key: str
    board_id: UUID
    board: str
    number: int
    title: str
    body: str
    state: str
    labels: list[str]
    agent_id: UUID | None
    agent: str | None
    assignee_id: UUID | None
    assignee: str | None
    priority: int
    fields: dict[str, Any]
    version: int
    state_version: int
    eligible_version: int | None
    dispatched_version: int | None
    created_at: datetime
    updated_at: datetime


class RuleNamed(BaseModel):
    """A rule by name."""

    id: UUID
    name: str
    version: int


class CardPage(BaseModel):
    """A page of cards, oldest first."""

    data: list[CardOut]
    next: str | None


class WakeOut(BaseModel):
    """What the move would owe, and what would come of it."""

    do: str = Field(description="launch, promote or webhook")
    agent: str | None = Field(description="None: a webhook is about no agent")
    rule: RuleNamed | None = Field(description="None: the card's pin launches")
    because: str
    happens: bool
    then: str


class MissOut(BaseModel):
    """A rule that would not fire, and the first of its terms that does not hold."""

    rule_id: UUID
    name: str
    version: int | None
    matched: bool
    failed_term: str | None
    missed_term: str | None = Field(description="What fails, or would fail were the rule in force")
    why: str


class PreviewOut(BaseModel):
    """Who would be launched by a move, who would not, and why. Nothing is moved."""

    model_config = ConfigDict(populate_by_name=True)

    card: str
    from_: str = Field(alias="from")
    to: str
    moves: bool = Field(description="False: it is there already, and nothing would happen")
    wakes: list[WakeOut]
    misses: list[MissOut] = Field(description="The nearest first")
    misses_left_out: int = Field(description="Rules that missed by more, where there are very many")
    dispatch: str | None = Field(description="Why no pin launches anybody; null when one does")


def _boards(request: Request) -> BoardService:
    service: BoardService = request.app.state.services.boards
    return service


def _answer(response: Response, card: Card) -> dict[str, Any]:
    response.headers.update(etag(card.version))
    return model.shown(card)


@router.get("", response_model=CardPage)
async def list_cards(
    request: Request,
    paging: Paging,
    caller: Annotated[Caller, require("card.list")],
    board: Named = None,
    state: Named = None,
    label: Annotated[
        list[str] | None, Query(max_length=64, description="Every one given must be on it")
    ] = None,
    assignee: Named = None,
    agent: Named = None,
) -> dict[str, Any]:
    """List cards, oldest first; every filter that is given must hold."""
    query = CardQuery(
        board=board,
        state=state,
        labels=label or (),
        assignee=assignee,
        agent=agent,
        after=paging.after_id(),
        limit=paging.limit + 1,
    )
    rows = await _boards(request).list_cards(caller.tenant_id, query)
    return paging.page(rows, model.shown, key=lambda card: (card.id,))


@router.post("", status_code=201, response_model=CardOut)
async def create_card(
    request: Request, response: Response, body: NewCard, caller: Annotated[Caller, require("card.create")]
) -> dict[str, Any]:
    """Make a card on a board."""
    new = model.NewCard(
        title=body.title,
        body=body.body,
        state=body.state,
        labels=body.labels,
        agent=body.agent,
        assignee=body.assignee,
        priority=body.priority,
        fields=body.fields,
    )
    card = await _boards(request).create_card(caller.actor, body.board, new)
    response.headers["Location"] = f"{request.url.path.rstrip('/')}/{card.key}"
    return _answer(response, card)


@router.get("/{card}", response_model=CardOut)
async def show_card(
    request: Request, response: Response, card: Ref, caller: Annotated[Caller, require("card.show")]
) -> dict[str, Any]:
    """Show one card."""
    return _answer(response, await _boards(request).get_card(caller.tenant_id, card))


@router.get("/{card}/preview", response_model=PreviewOut)
async def preview_move(
    request: Request,
    card: Ref,
    to: Annotated[str, Query(min_length=1, max_length=64, description="The state that it may be moved to")],
    caller: Annotated[Caller, require("card.preview")],
) -> dict[str, Any]:
    """Say who would be launched if you moved the card there, who would not, and why."""
    preview: PreviewService = request.app.state.services.preview
    return (await preview.move(caller.actor, card, to)).as_json()


@router.patch("/{card}", response_model=CardOut)
async def edit_card(
    request: Request,
    response: Response,
    card: Ref,
    body: Edit,
    if_match: IfMatch,
    caller: Annotated[Caller, require("card.update")],
) -> dict[str, Any]:
    """Change title, body, priority or fields."""
    edit = CardEdit(title=body.title, body=body.body, priority=body.priority, fields=body.fields)
    seen = expected(if_match, body.expected_version)
    return _answer(
        response, await _boards(request).edit_card(caller.actor, card, edit, expected_version=seen)
    )


@router.post("/{card}/move", response_model=CardOut)
async def move_card(
    request: Request,
    response: Response,
    card: Ref,
    body: Move,
    if_match: IfMatch,
    caller: Annotated[Caller, require("card.move")],
) -> dict[str, Any]:
    """Move a card to another state of its board. To the state it is in is no move, and appends nothing."""
    seen = expected(if_match, body.expected_version)
    return _answer(
        response, await _boards(request).move_card(caller.actor, card, body.state, expected_version=seen)
    )


@router.post("/{card}/assign", response_model=CardOut)
async def assign_card(
    request: Request,
    response: Response,
    card: Ref,
    body: Assign,
    if_match: IfMatch,
    caller: Annotated[Caller, require("card.assign")],
) -> dict[str, Any]:
    """Set or take away a card's assignee, its agent, or both."""
    given = body.model_fields_set
    after = await _boards(request).assign_card(
        caller.actor,
        card,
        assignee=body.assignee if "assignee" in given else UNSET,
        agent=body.agent if "agent" in given else UNSET,
        expected_version=expected(if_match, body.expected_version),
    )
    return _answer(response, after)


@router.post("/{card}/labels", response_model=CardOut)
async def label_card(
    request: Request,
    response: Response,
    card: Ref,
    body: Labels,
    if_match: IfMatch,
    caller: Annotated[Caller, require("card.label")],
) -> dict[str, Any]:
    """Put labels on a card and take labels off."""
    seen = expected(if_match, body.expected_version)
    after = await _boards(request).label_card(
        caller.actor, card, add=body.add, remove=body.remove, expected_version=seen
    )
    return _answer(response, after)


@router.delete("/{card}", status_code=204)
async def delete_card(
    request: Request, card: Ref, if_match: IfMatch, caller: Annotated[Caller, require("card.delete")]
) -> None:
    """Delete a card; its events and runs stay."""
    await _boards(request).delete_card(caller.actor, card, expected_version=if_match)


@router.post("/{card}/comments", response_model=MessageOut, status_code=201)
async def comment_on_card(
    request: Request,
    response: Response,
    card: Ref,
    body: NewComment,
    caller: Annotated[Caller, require("card.comment")],
) -> dict[str, Any]:
    """Post a message to the card's topic, in its board's channel. Sent again with the same `request_id` it is the same one (200)."""
    posted = await request.app.state.services.talk.chat.comment(
        caller.actor,
        card,
        blocks=body.given_blocks(),
        mentions=body.mentions,
        request_id=body.request_id or str(uuid4()),
        may_broadcast="broadcast" in caller.extras,
    )
    response.status_code = 201 if posted.new else 200
    return shown_message(posted.message)
