"""`/asks`: what runs and messages ask, and the answer to it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from mainspring.agents.asking import ANSWER_LENGTH_MAX, Ask, AskState
from mainspring.agents.asks import AskService
from mainspring.agents.model import RunState
from mainspring.agents.views import shown_ask
from mainspring.chat.asks import MessageAskService
from mainspring.chat.questions import MessageAsk
from mainspring.rooms import NotFound
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging

router = APIRouter(prefix="/asks", tags=["asks"], route_class=Route)

AskId = Annotated[UUID, Path(description="The question's id")]


class AskOut(BaseModel):
    """A question of a run, or of a message (`message_id`, with its channel and topic). `released`: the run has let its runner go for
    it, and is queued again by the answer.

    `answer` and `answered_by` once it is answered; `reason` when it was closed without; `expires_at` when its asker waits only so long.
    """

    id: UUID
    run_id: UUID | None
    run_state: RunState | None
    message_id: UUID | None = None
    channel: str | None = None
    topic: str | None = None
    agent: str = Field(description="Who asks: the run's agent, or the message's author")
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


def _of_messages(request: Request) -> MessageAskService:
    service: MessageAskService = request.app.state.services.talk.asks
    return service


def _shown(ask: Ask | MessageAsk) -> dict[str, Any]:
    if isinstance(ask, Ask):
        return shown_ask(ask)
    return {
        "id": ask.id,
        "run_id": None,
        "run_state": None,
        "message_id": ask.message_id,
        "channel": ask.channel_name,
        "topic": ask.topic_name,
        "agent": ask.author_handle,
        "card": None,
        "question": ask.question,
        "options": list(ask.options),
        "released": False,
        "state": ask.state,
        "answer": ask.answer,
        "answered_by": ask.answered_by,
        "reason": None,
        "asked_at": ask.asked_at,
        "expires_at": None,
        "ended_at": ask.ended_at,
    }


@router.get("", response_model=AskPage)
async def list_asks(
    request: Request,
    paging: Paging,
    caller: Annotated[Caller, require("ask.list")],
    state: Annotated[
        Literal["open", "all"], Query(description="Those that wait for an answer, or all there ever were")
    ] = "open",
) -> dict[str, Any]:
    """List what runs and messages ask, the one that waits longest first."""
    everything, after, limit = state == "all", paging.after_id(), paging.limit + 1
    of_runs = await service_of(request).list_asks(
        caller.tenant_id, all_states=everything, after=after, limit=limit
    )
    of_messages = await _of_messages(request).list_asks(
        caller.actor, all_states=everything, after=after, limit=limit
    )
    both: list[Ask | MessageAsk] = [*of_runs, *of_messages]
    rows = sorted(both, key=lambda ask: ask.id)[:limit]
    return paging.page(rows, _shown, key=lambda ask: (ask.id,))


@router.get("/{ask}", response_model=AskOut)
async def show_ask(
    request: Request, ask: AskId, caller: Annotated[Caller, require("ask.show")]
) -> dict[str, Any]:
    """Show one question."""
    try:
        return _shown(await service_of(request).get(caller.tenant_id, ask))
    except NotFound:
        return _shown(await _of_messages(request).get(caller.actor, ask))


@router.post("/{ask}/answer", response_model=AskOut)
async def answer_ask(
    request: Request, ask: AskId, body: Answer, caller: Annotated[Caller, require("ask.answer")]
) -> dict[str, Any]:
    """Answer a question. The first answer counts: 409 `ask_answered` for any other, `ask_closed` when nobody waits any more."""
    try:
        return _shown(await service_of(request).answer(caller.actor, ask, body.answer))
    except NotFound:
        return _shown(await _of_messages(request).answer(caller.actor, ask, body.answer))
