"""`/messages`: one message, its edits, and search over all that the caller sees."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from mainspring.chat.model import Message, Speaking
from mainspring.chat.receipts import ReceiptService, ReceiptState
from mainspring.chat.service import ChatService
from mainspring.rooms import Actor
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging

router = APIRouter(prefix="/messages", tags=["messages"], route_class=Route)

MessageId = Annotated[UUID, Path(description="The message's id")]
TEXT_LENGTH_MAX = 262_144


class SessionClaim(BaseModel):
    """Under which claim of which session an agent writes; what it writes in a turn is held until that turn is settled."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: UUID = Field(strict=False)
    claim_id: UUID = Field(strict=False)
    turn: int | None = Field(
        default=None, ge=1, le=2**53, description="The turn; the session's own without it"
    )
    delivery: UUID | None = Field(
        default=None,
        strict=False,
        description="The delivery that it answers, and so descends from; the one acked last in this turn without it",
    )


class NewComment(BaseModel):
    """A message of a card's topic: `text`, or `blocks` of texts and questions."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str | None = Field(default=None, min_length=1, max_length=TEXT_LENGTH_MAX)
    blocks: list[dict[str, Any]] | None = Field(default=None, max_length=50)
    mentions: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        default_factory=list,
        max_length=100,
        description="Handles. In a person's text, `@handle` mentions too",
    )
    request_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="The author's own name for this post: sent again, it is the same",
    )

    @model_validator(mode="after")
    def _one_of(self) -> NewComment:
        if (self.text is None) == (self.blocks is None):
            raise ValueError("give text, or blocks")
        return self

    def given_blocks(self) -> list[dict[str, Any]]:
        """Return what it says, in blocks."""
        return self.blocks if self.blocks is not None else [{"type": "text", "text": self.text}]


class NewMessage(NewComment):
    """A message: `text`, or `blocks` of texts and questions."""

    topic: str | None = Field(
        default=None,
        max_length=200,
        description="Its name, under which it is made if need be, or its id, whatever its name has become; `general` without it",
    )
    session: SessionClaim | None = None
    final: bool = Field(default=False, description="Settled at once, though the author's turn goes on")


class Edit(BaseModel):
    """What a message says from now on, and whether it is settled before its turn ends."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str | None = Field(default=None, min_length=1, max_length=TEXT_LENGTH_MAX)
    blocks: list[dict[str, Any]] | None = Field(default=None, max_length=50)
    mentions: list[Annotated[str, Field(min_length=1, max_length=100)]] | None = Field(
        default=None,
        max_length=100,
        description="Whom it calls from now on, while it is held; what has settled calls whom it called",
    )
    expected_revision: int | None = Field(default=None, ge=1)
    session: SessionClaim | None = None
    final: bool = False


class MessageOut(BaseModel):
    """A message. It is `held` while its author's turn goes on: nobody is owed it before it settles."""

    id: UUID
    channel_id: UUID
    channel: str
    topic_id: UUID
    topic: str
    card_id: UUID | None
    channel_seq: int
    author: str
    author_id: UUID
    author_kind: Literal["human", "agent", "system"]
    text: str
    blocks: list[dict[str, Any]]
    mentions: list[UUID]
    revision: int
    held: bool
    settled_by: str | None
    settled_at: datetime | None
    posted_at: datetime
    edited_at: datetime | None
    trust: str
    session_lost: bool | None = None


class MessagePage(BaseModel):
    """A page of messages."""

    data: list[MessageOut]
    next: str | None


def shown(message: Message) -> dict[str, Any]:
    """Return a message as the API shows it."""
    return {
        "id": message.id,
        "channel_id": message.channel_id,
        "channel": message.channel_name,
        "topic_id": message.topic_id,
        "topic": message.topic_name,
        "card_id": message.card_id,
        "channel_seq": message.channel_seq,
        "author": message.author_handle,
        "author_id": message.author_id,
        "author_kind": message.author_kind,
        "text": message.text,
        "blocks": list(message.blocks),
        "mentions": list(message.mentions),
        "revision": message.revision,
        "held": message.settled_by is None,
        "settled_by": message.settled_by,
        "settled_at": message.settled_at,
        "posted_at": message.posted_at,
        "edited_at": message.edited_at,
        "trust": message.cause.trust,
    }


def speaking_of(claim: SessionClaim | None) -> Speaking | None:
    """Return from which session a message is said to come."""
    return (
        None
        if claim is None
        else Speaking(
            session_id=claim.id, claim_id=claim.claim_id, turn=claim.turn, delivery_id=claim.delivery
        )
    )


async def post_as(request: Request, caller: Caller, speaking: Speaking | None) -> Actor:
    """Return who writes: the caller, or for a runner the agent whose session it holds. Raises NotFound."""
    if caller.kind != "runner":
        return caller.actor
    actor: Actor = await request.app.state.services.talk.sessions.agent_of(
        caller.tenant_id, caller.agents, speaking
    )
    return actor


def _service(request: Request) -> ChatService:
    service: ChatService = request.app.state.services.talk.chat
    return service


@router.get("", response_model=MessagePage)
async def search(
    request: Request,
    paging: Paging,
    caller: Annotated[Caller, require("message.search")],
    q: Annotated[str, Query(min_length=1, max_length=500, description="Words; messages with all of them")],
    channel: Annotated[str | None, Query(max_length=100, description="Id or name")] = None,
) -> dict[str, Any]:
    """Search what the caller sees, the newest first."""
    rows = await _service(request).search(
        caller.actor, q, channel=channel, before=paging.after_id(), limit=paging.limit + 1
    )
    return paging.page(rows, shown, key=lambda message: (message.id,))


@router.get("/{message}", response_model=MessageOut)
async def show_message(
    request: Request, message: MessageId, caller: Annotated[Caller, require("message.show")]
) -> dict[str, Any]:
    """Show one message."""
    return shown(await _service(request).get_message(caller.actor, message))


class ReceiptOut(BaseModel):
    """One recipient's. `offered` is handed to a session, and nothing is known of it beyond that; `acked` is in the agent's context.

    `because` is what it waits for, or what has ended it.
    """

    account_id: UUID
    handle: str
    how: Literal["steer", "deliver", "inbox"]
    state: ReceiptState
    since: datetime | None
    because: str | None
    effect_id: UUID | None
    attempts: int
    next_try_at: datetime | None


class NotOwedOut(BaseModel):
    """Somebody who might be thought to be owed a message, is not, and why."""

    handle: str
    because: str
    mentioned: bool


class ReceiptsOut(BaseModel):
    """A message's receipts: `held` while its author's turn goes on, when nobody is owed it yet; then a receipt for each recipient."""

    message_id: UUID
    revision: int
    state: Literal["held", "settled"]
    since: datetime | None
    because: str | None
    data: list[ReceiptOut]
    not_owed: list[NotOwedOut] = Field(
        description="Agents of the channel, and who is mentioned: the first of them"
    )


@router.get("/{message}/receipts", response_model=ReceiptsOut)
async def show_receipts(
    request: Request, message: MessageId, caller: Annotated[Caller, require("message.receipts")]
) -> dict[str, Any]:
    """Say how far a message has come with each recipient: as it settled last, and no more than is known."""
    service: ReceiptService = request.app.state.services.receipts
    found = await service.of(caller.actor, message)
    held = found.held_because is not None
    return {
        "message_id": message,
        "revision": found.revision,
        "state": "held" if held else "settled",
        "since": found.message.posted_at if held else found.message.settled_at,
        "because": found.held_because,
        "data": [{name: getattr(one, name) for name in ReceiptOut.model_fields} for one in found.data],
        "not_owed": [one._asdict() for one in found.absent],
    }


@router.patch("/{message}", response_model=MessageOut)
async def edit_message(
    request: Request, message: MessageId, body: Edit, caller: Annotated[Caller, require("message.edit")]
) -> dict[str, Any]:
    """Edit a message of one's own: as often as its turn lasts. After it has settled, an edit owes nothing to anybody, and asks for what
    a post does: 409 `channel_archived`, or 403 where nobody but the owner posts."""
    blocks = body.blocks if body.text is None else [{"type": "text", "text": body.text}]
    speaking = speaking_of(body.session)
    edited = await _service(request).edit(
        await post_as(request, caller, speaking),
        message,
        blocks=blocks,
        expected_revision=body.expected_revision,
        mentions=body.mentions,
        final=body.final,
        speaking=speaking,
        may_broadcast="broadcast" in caller.extras,
    )
    return shown(edited)
