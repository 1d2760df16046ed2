"""`/inbox`: the messages that mention the caller."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from mainspring.chat.service import ChatService, InboxItem
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging
from mainspring.server.routes.messages import MessageOut, shown

router = APIRouter(prefix="/inbox", tags=["inbox"], route_class=Route)


class ItemOut(BaseModel):
    """A message that waits for the caller."""

    id: UUID
    read: bool
    message: MessageOut


class ItemPage(BaseModel):
    """A page of the inbox, the newest first."""

    data: list[ItemOut]
    next: str | None


class Reading(BaseModel):
    """Items that were read."""

    model_config = ConfigDict(extra="forbid", strict=True)

    items: list[Annotated[UUID, Field(strict=False)]] = Field(min_length=1, max_length=200)


class Read(BaseModel):
    """How many there were."""

    read: int


def _service(request: Request) -> ChatService:
    service: ChatService = request.app.state.services.talk.chat
    return service


def _shown_item(item: InboxItem) -> dict[str, Any]:
    return {"id": item.id, "read": item.read, "message": shown(item.message)}


@router.get("", response_model=ItemPage)
async def list_inbox(
    request: Request,
    paging: Paging,
    caller: Annotated[Caller, require("inbox.list")],
    state: Annotated[
        Literal["unread", "all"], Query(description="All: those that were read, too")
    ] = "unread",
) -> dict[str, Any]:
    """List the messages that mention the caller, the newest first."""
    rows = await _service(request).inbox(
        caller.actor, read=state == "all", after=paging.after_id(), limit=paging.limit + 1
    )
    return paging.page(rows, _shown_item, key=lambda item: (item.id,))


@router.post("/ack", response_model=Read)
async def mark_read(
    request: Request, body: Reading, caller: Annotated[Caller, require("inbox.ack")]
) -> dict[str, Any]:
    """Mark items as read."""
    return {"read": await _service(request).mark_read(caller.actor, body.items)}
