"""`/asks`: what runs ask of people, and the answer to it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from mainspring.agents.asking import ANSWER_LENGTH_MAX, AskState
from mainspring.agents.asks import AskService
from mainspring.agents.model import RunState
from mainspring.agents.views import shown_ask
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging

router = APIRouter(prefix="/asks", tags=["asks"], route_class=Route)

AskId = Annotated[UUID, Path(description="The question's id")]


class AskOut(BaseModel):
    """A question of a run. `released`: the run has let its runner go for it, and is queued again by the answer.

    `answer` and `answered_by` once it is answered; `reason` when it was closed without; `expires_at` when its asker waits only so long.
    """

    id: UUID
    run_id: UUID
    run_state: RunState
    agent: str
    card: str | None
    question: str
    options: list[str]
    released: bool
    state: AskState
    answer: str | None
    answered_by: str | None
    reason: str | None
    asked_at: datetime
    expires_at: datetime | None
    ended_at: datetime | None


class AskPage(BaseModel):
    """A page of questions, the oldest first."""

    data: list[AskOut]
    next: str | None


class Answer(BaseModel):
    """One of the question's options, or any text where it has none. Case and outer space do not matter for options."""

    model_config = ConfigDict(extra="forbid", strict=True)

    answer: str = Field(min_length=1, max_length=ANSWER_LENGTH_MAX)


def service_of(request: Request) -> AskService:
    """Return the service of this server."""
    service: AskService = request.app.state.services.asks
    return service


@router.get("", response_model=AskPage)
async def list_asks(
    request: Request,
    paging: Paging,
    caller: Annotated[Caller, require("ask.list")],
    state: Annotated[
        Literal["open", "all"], Query(description="Those that wait for an answer, or all there ever were")
    ] = "open",
) -> dict[str, Any]:
    """List what runs ask of people, the one that waits longest first."""
    rows = await service_of(request).list_asks(
        caller.tenant_id, all_states=state == "all", after=paging.after_id(), limit=paging.limit + 1
    )
    return paging.page(rows, shown_ask, key=lambda ask: (ask.id,))


@router.get("/{ask}", response_model=AskOut)
async def show_ask(
    request: Request, ask: AskId, caller: Annotated[Caller, require("ask.show")]
) -> dict[str, Any]:
    """Show one question."""
    return shown_ask(await service_of(request).get(caller.tenant_id, ask))


@router.post("/{ask}/answer", response_model=AskOut)
async def answer_ask(
    request: Request, ask: AskId, body: Answer, caller: Annotated[Caller, require("ask.answer")]
) -> dict[str, Any]:
    """Answer a question. The first answer counts: 409 `ask_answered` for any other, `ask_closed` when nobody waits any more."""
    return shown_ask(await service_of(request).answer(caller.actor, ask, body.answer))
