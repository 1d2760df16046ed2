"""`/runners`: list, show and drain for people; `/runner/claim`, the long poll by which runners get their work."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from mainspring.agents.runners import Claimed, ClaimRequest, RunnerService
from mainspring.agents.views import RunnerView
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging
from mainspring.server.polls import or_gone

router = APIRouter(tags=["runners"], route_class=Route)

Ref = Annotated[str, Path(max_length=200, description="Name or id")]
WAIT_SECONDS_MAX = 60.0
SLOT_MAX = 999


class RunnerOut(BaseModel):
    """A runner: `live` while it was heard of within one lease; `runs` are those that it holds."""

    id: UUID
    name: str
    incarnation: UUID
    agents: list[str]
    labels: list[str]
    slots: int
    busy: int
    runs: list[UUID]
    draining: bool
    live: bool
    created_at: datetime
    last_seen_at: datetime


class RunnerPage(BaseModel):
    """A page of runners, oldest first."""

    data: list[RunnerOut]
    next: str | None


class Ask(BaseModel):
    """A runner asks for work for one of its free slots."""

    model_config = ConfigDict(extra="forbid", strict=True)

    runner: str = Field(min_length=1, max_length=200, description="The runner's name")
    incarnation: UUID = Field(strict=False, description="Fresh at every start of its process")
    agents: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        default_factory=list, max_length=1000, description="Handles it has room for; none for all it may run"
    )
    slots: list[Annotated[int, Field(ge=0, le=SLOT_MAX)]] = Field(
        default_factory=list, max_length=1000, description="Numbers of its free slots"
    )
    slot: int | None = Field(
        default=None, ge=0, le=SLOT_MAX, description="The same, for a runner of one slot"
    )
    capacity: int | None = Field(
        default=None, ge=1, le=SLOT_MAX + 1, description="How many slots it has in all"
    )
    labels: list[Annotated[str, Field(min_length=1, max_length=64)]] = Field(
        default_factory=list,
        max_length=100,
        description="What it has, like gpu: it takes runs that need nothing else",
    )

    @model_validator(mode="after")
    def _names_a_slot(self) -> Ask:
        if not self.slots and self.slot is None:
            raise ValueError("name at least one free slot")
        return self


class Leaving(BaseModel):
    """A runner whose process ends."""

    model_config = ConfigDict(extra="forbid", strict=True)

    runner: str = Field(min_length=1, max_length=200, description="The runner's name")
    incarnation: UUID = Field(strict=False, description="As it claimed with")


class AnsweredOut(BaseModel):
    """What the run has asked, and the answer."""

    id: UUID
    question: str
    options: list[str]
    answer: str
    answered_by: str
    answered_at: datetime


class ClaimedRun(BaseModel):
    """A run and all that its runner needs. `answers` are those to what it has asked; `token` is valid while this claim holds it."""

    id: UUID
    claim_id: UUID
    slot: int
    agent: dict[str, str]
    attempt: int
    max_attempts: int
    prompt: str
    trigger: dict[str, Any]
    event: dict[str, Any] | None
    card: dict[str, Any] | None
    answers: list[AnsweredOut]
    token: str
    lease_seconds: float
    heartbeat_seconds: float
    deadline: datetime


class Answer(BaseModel):
    """Work, or none within the wait. `drain`: finish what you hold, and claim no more."""

    run: ClaimedRun | None
    drain: bool
    slots: dict[str, int] = Field(
        description="How many runs of each agent that was asked for go on at once, on all runners together"
    )


def _runners(request: Request) -> RunnerService:
    service: RunnerService = request.app.state.services.runners
    return service


@router.get("/runners", response_model=RunnerPage)
async def list_runners(
    request: Request, paging: Paging, caller: Annotated[Caller, require("runner.list")]
) -> dict[str, Any]:
    """List the runners that were ever heard of, oldest first."""
    rows = await _runners(request).list_runners(
        caller.tenant_id, after=paging.after_id(), limit=paging.limit + 1
    )
    return paging.page(rows, RunnerView.as_json, key=lambda view: (view.id,))


@router.get("/runners/{runner}", response_model=RunnerOut)
async def show_runner(
    request: Request, runner: Ref, caller: Annotated[Caller, require("runner.show")]
) -> dict[str, Any]:
    """Show one runner."""
    return (await _runners(request).get_runner(caller.tenant_id, runner)).as_json()


@router.post("/runners/{runner}/drain", response_model=RunnerOut)
async def drain_runner(
    request: Request, runner: Ref, caller: Annotated[Caller, require("runner.drain")]
) -> dict[str, Any]:
    """Ask a runner to finish what it holds and to claim no more; its next start begins undrained."""
    return (await _runners(request).drain(caller.tenant_id, runner)).as_json()


@router.post("/runner/claim", response_model=Answer)
async def claim(
    request: Request,
    body: Ask,
    caller: Annotated[Caller, require("runner.claim")],
    wait: Annotated[float, Query(ge=0, le=WAIT_SECONDS_MAX, allow_inf_nan=False)] = 30.0,
) -> dict[str, Any]:
    """Claim a run for one of the free slots, waiting until there is one. A slot that holds a run gets the same one again."""
    service = _runners(request)
    asked = ClaimRequest(
        tenant_id=caller.tenant_id,
        token_id=caller.token_id,
        runner=body.runner,
        incarnation=body.incarnation,
        agents=frozenset(handle.strip().lower() for handle in body.agents),
        slots=tuple(sorted({*body.slots, *([] if body.slot is None else [body.slot])})),
        capacity=body.capacity,
        labels=frozenset(label.strip().lower() for label in body.labels),
    )
    with request.app.state.load.wait(caller.tenant_id):
        claimed = await or_gone(request, service.claim(asked, wait_seconds=wait)) or Claimed()
    run = None if claimed.work is None else claimed.work.as_json(service.policy)
    return {"run": run, "drain": claimed.drain, "slots": claimed.slots}


@router.post("/runner/leave", status_code=204)
async def leave(request: Request, body: Leaving, caller: Annotated[Caller, require("runner.leave")]) -> None:
    """Say that this process ends, so that nobody waits for it. What it still holds is taken back when its leases run out."""
    await _runners(request).leave(caller.tenant_id, body.runner, body.incarnation)
