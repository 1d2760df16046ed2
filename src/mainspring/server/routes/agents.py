"""`/agents`: create, list, show, change, pause and resume. An agent is named by handle or id."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from mainspring.agents.service import AgentService
from mainspring.agents.views import AgentView, shown_run
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging
from mainspring.server.routes.runs import RunOut
from mainspring.server.versions import IfMatch, etag, expected

router = APIRouter(prefix="/agents", tags=["agents"], route_class=Route)

Ref = Annotated[str, Path(max_length=100, description="Handle or id")]
Slots = Annotated[int, Field(ge=1, le=1000, description="How many of its runs may be held at once")]
WAKE = "Whether a run is queued for it when messages are owed to it and no session of it reads them"


class _Input(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class NewAgent(_Input):
    """An agent to be made; its runs wait until a runner serves it."""

    handle: str = Field(min_length=1, max_length=100, description="a-z 0-9 _ -")
    name: str | None = Field(default=None, min_length=1, max_length=200)
    slots: Slots = 1
    wake: bool = Field(default=False, description=WAKE)


class AgentChange(_Input):
    """What is to change; what is left out stays."""

    name: str | None = Field(default=None, min_length=1, max_length=200)
    slots: Slots | None = None
    wake: bool | None = Field(default=None, description=WAKE)
    expected_version: int | None = Field(
        default=None, ge=1, description="Refuse with 412 unless the agent is at this version"
    )


class AgentOut(BaseModel):
    """An agent. `waiting` says what its queued runs wait for; null when nothing waits."""

    id: UUID
    handle: str
    name: str
    slots: int
    paused: bool
    wake: bool
    version: int
    queued: int
    running: int
    served: bool
    waiting: str | None
    created_at: datetime


class AgentWithRuns(AgentOut):
    """An agent with its live runs, the oldest first, at most 50."""

    runs: list[RunOut]


class AgentPage(BaseModel):
    """A page of agents, oldest first."""

    data: list[AgentOut]
    next: str | None


def _agents(request: Request) -> AgentService:
    service: AgentService = request.app.state.services.agents
    return service


def _answer(response: Response, view: AgentView) -> dict[str, Any]:
    response.headers.update(etag(view.agent.version))
    return view.as_json() | {"runs": [shown_run(run) for run in view.runs]}


@router.get("", response_model=AgentPage)
async def list_agents(
    request: Request, paging: Paging, caller: Annotated[Caller, require("agent.list")]
) -> dict[str, Any]:
    """List agents, oldest first."""
    rows = await _agents(request).list_agents(
        caller.tenant_id, after=paging.after_id(), limit=paging.limit + 1
    )
    return paging.page(rows, AgentView.as_json, key=lambda view: (view.agent.id,))


@router.post("", status_code=201, response_model=AgentWithRuns)
async def create_agent(
    request: Request, response: Response, body: NewAgent, caller: Annotated[Caller, require("agent.create")]
) -> dict[str, Any]:
    """Make an agent."""
    view = await _agents(request).create(
        caller.actor, handle=body.handle, name=body.name, slots=body.slots, wake=body.wake
    )
    response.headers["Location"] = f"{request.url.path.rstrip('/')}/{view.agent.handle}"
    return _answer(response, view)


@router.get("/{agent}", response_model=AgentWithRuns)
async def show_agent(
    request: Request, response: Response, agent: Ref, caller: Annotated[Caller, require("agent.show")]
) -> dict[str, Any]:
    """Show one agent with its live runs."""
    return _answer(response, await _agents(request).get(caller.tenant_id, agent))


@router.patch("/{agent}", response_model=AgentWithRuns)
async def change_agent(
    request: Request,
    response: Response,
    agent: Ref,
    body: AgentChange,
    if_match: IfMatch,
    caller: Annotated[Caller, require("agent.update")],
) -> dict[str, Any]:
    """Change an agent's name, slots, or whether it is woken; fewer slots take nothing from runs that are held."""
    view = await _agents(request).update(
        caller.actor,
        agent,
        name=body.name,
        slots=body.slots,
        wake=body.wake,
        expected_version=expected(if_match, body.expected_version),
    )
    return _answer(response, view)


@router.post("/{agent}/pause", response_model=AgentWithRuns)
async def pause_agent(
    request: Request, response: Response, agent: Ref, caller: Annotated[Caller, require("agent.pause")]
) -> dict[str, Any]:
    """Let the agent's queued runs wait; those that a runner holds go on."""
    return _answer(response, await _agents(request).pause(caller.actor, agent))


@router.post("/{agent}/resume", response_model=AgentWithRuns)
async def resume_agent(
    request: Request, response: Response, agent: Ref, caller: Annotated[Caller, require("agent.resume")]
) -> dict[str, Any]:
    """Let the agent's runs be claimed again."""
    return _answer(response, await _agents(request).resume(caller.actor, agent))
