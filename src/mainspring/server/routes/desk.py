"""`/desk`: dead effects and failed or lost runs alike: list, group, show, export, plan, replay, discard. Nothing expires here.

Letters that are named are decided on at once, and the answer says which. All that is described is an operation: 202, and its address.
`/desk/parked`: what came over the fabric and could be taken by nobody.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from mainspring.fabric.port import Parked
from mainspring.fabric.refs import BYTES_MAX, SEQ_MAX
from mainspring.operators import model
from mainspring.operators.desk import ASKED_MAX, REASON_LENGTH_MAX, DeskService
from mainspring.operators.model import RATE_MAX, RATE_MIN, Asked, Decision, Named
from mainspring.operators.parked import ParkedService
from mainspring.server.answers import (
    DeskPage,
    DiscardedOut,
    OperationOut,
    PlanOut,
    ReplayedOut,
    WholeLetter,
)
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import PageQuery, Paging, seal, unseal

router = APIRouter(prefix="/desk", tags=["desk"], route_class=Route)
_NDJSON = "application/x-ndjson"
_REFERENCE_SHOWN_MAX = BYTES_MAX


_KIND, _CAUSE = "An effect's kind, or `run`", "As the groups name it"
_RULE, _AGENT = (
    "Of this rule, by name or id",
    "Of this agent, by handle or id: its runs, and what launches or pins it",
)
Kind = Annotated[str | None, Query(max_length=64, description=_KIND)]
Cause = Annotated[str | None, Query(max_length=200, description=_CAUSE)]
Rule = Annotated[str | None, Query(min_length=1, max_length=200, description=_RULE)]
Agent = Annotated[str | None, Query(min_length=1, max_length=200, description=_AGENT)]


class Which(BaseModel):
    """Which dead letters are meant: these ids, or all of a kind, cause, rule and agent."""

    model_config = ConfigDict(extra="forbid")

    ids: list[UUID] = Field(default_factory=list, max_length=ASKED_MAX)
    kind: str | None = Field(default=None, min_length=1, max_length=64, description=_KIND)
    cause: str | None = Field(default=None, min_length=1, max_length=200, description=_CAUSE)
    rule: str | None = Field(default=None, min_length=1, max_length=200, description=_RULE)
    agent: str | None = Field(default=None, min_length=1, max_length=200, description=_AGENT)
    all: StrictBool = Field(default=False, description="Everything on the desk; said, never implied")

    @model_validator(mode="after")
    def _names_something(self) -> Which:
        described = self.all or any((self.kind, self.cause, self.rule, self.agent))
        if bool(self.ids) == described:
            raise ValueError("name either ids, or any of kind, cause, rule and agent, or all")
        return self


class Plan(Which):
    """What a replay would take."""

    new_key: StrictBool | None = Field(
        default=None, description="Without it only definite failures get a new idempotency key"
    )


class Paced(Which):
    """Which, and how fast."""

    rate_per_second: float | None = Field(
        default=None,
        ge=RATE_MIN,
        le=RATE_MAX,
        allow_inf_nan=False,
        description="At most so many letters a second; of all that is described, not of ids",
    )

    @model_validator(mode="after")
    def _ids_have_no_rate(self) -> Paced:
        if self.ids and self.rate_per_second is not None:
            raise ValueError("letters that are named are decided on at once: leave rate_per_second out")
        return self


class Replay(Paced):
    """What to replay."""

    new_key: StrictBool | None = Field(
        default=None, description="Without it only definite failures get a new idempotency key"
    )


class Discard(Paced):
    """What to give up, and why."""

    reason: str = Field(min_length=1, max_length=REASON_LENGTH_MAX)


def _desk(request: Request) -> DeskService:
    service: DeskService = request.app.state.services.desk
    return service


@router.get("", response_model=DeskPage)
async def list_letters(
    request: Request,
    caller: Annotated[Caller, require("desk.list")],
    page: Paging,
    kind: Kind = None,
    rule: Rule = None,
    agent: Agent = None,
    group_by: Annotated[Literal["cause"] | None, Query()] = None,
) -> dict[str, Any]:
    """List dead letters, the latest first; or group them by cause, the most frequent first."""
    desk, tenant, behind = _desk(request), caller.tenant_id, _behind(page)
    asked = await desk.described(tenant, kind=kind, rule=rule, agent=agent)
    if group_by == "cause":
        groups, uncounted = await desk.groups(caller.reader, asked)
        return {"data": groups, "next": None, "uncounted": uncounted}
    letters, following = await desk.letters(caller.reader, asked, after=behind, limit=page.limit)
    return {
        "data": [letter.as_json() for letter in letters],
        "next": None if following is None else seal(following[0].isoformat(), following[1]),
    }


async def _asked(request: Request, caller: Caller, body: Which) -> Asked:
    """Return what is meant as the desk takes it. Raises NotFound for a rule or an agent that there is not."""
    if body.ids:
        return Named(tuple(body.ids))
    return await _desk(request).described(
        caller.tenant_id, kind=body.kind, cause=body.cause, rule=body.rule, agent=body.agent
    )


def _behind(page: PageQuery) -> tuple[datetime, UUID] | None:
    if page.after is None:
        return None
    since, last = unseal(page.after, datetime.fromisoformat, UUID)
    assert isinstance(since, datetime)
    assert isinstance(last, UUID)
    return since, last


@router.post("/plan", response_model=PlanOut)
async def plan_replay(
    request: Request, caller: Annotated[Caller, require("desk.plan")], body: Plan
) -> dict[str, Any]:
    """Say what a replay would do, in which order, and what it would leave alone. Changes nothing."""
    asked = await _asked(request, caller, body)
    return await _desk(request).plan(caller.reader, asked, new_key=body.new_key)


_STARTED: dict[int | str, dict[str, Any]] = {
    202: {"model": OperationOut, "description": "An operation goes through all that is described"}
}


@router.post("/replay", response_model=ReplayedOut | OperationOut, responses=_STARTED)
async def replay(
    request: Request, response: Response, caller: Annotated[Caller, require("desk.replay")], body: Replay
) -> dict[str, Any]:
    """Owe dead effects again, and queue dead runs again, with fresh attempts: named ones now, all others by an operation."""
    return await _decided(request, response, caller, body, model.Replay(body.new_key))


@router.post("/discard", response_model=DiscardedOut | OperationOut, responses=_STARTED)
async def discard(
    request: Request, response: Response, caller: Annotated[Caller, require("desk.discard")], body: Discard
) -> dict[str, Any]:
    """Give dead letters up, for a reason that is kept: named ones now, all others by an operation."""
    return await _decided(request, response, caller, body, model.Discard(body.reason))


async def _decided(
    request: Request, response: Response, caller: Caller, body: Paced, decision: Decision
) -> dict[str, Any]:
    asked = await _asked(request, caller, body)
    if isinstance(asked, Named):
        return await _desk(request).decide(caller.actor, asked.ids, decision)
    operation = await request.app.state.services.operations.start(
        caller.actor, asked, decision, rate_per_second=body.rate_per_second
    )
    response.status_code = 202
    response.headers["Location"] = str(request.url_for("show_operation", operation_id=str(operation.id)).path)
    started: dict[str, Any] = operation.as_json()
    return started


@router.get(
    "/export",
    response_class=StreamingResponse,
    responses={200: {"content": {_NDJSON: {}}, "description": "A letter a line, oldest event first"}},
)
async def export_letters(
    request: Request,
    caller: Annotated[Caller, require("desk.export")],
    kind: Kind = None,
    cause: Cause = None,
    rule: Rule = None,
    agent: Agent = None,
) -> StreamingResponse:
    """Give dead letters whole, as NDJSON: error, attempts, and what each was to do."""
    desk, tenant = _desk(request), caller.tenant_id
    asked = await desk.described(tenant, kind=kind, cause=cause, rule=rule, agent=agent)

    async def lines() -> AsyncIterator[bytes]:
        async for part in desk.export(caller.reader, asked):
            yield b"".join(msgspec.json.encode(jsonable_encoder(letter)) + b"\n" for letter in part)

    return StreamingResponse(lines(), media_type=_NDJSON)


class ParkedOut(BaseModel):
    """A reference on the fabric that nobody could take. Nothing is owed by it: what it stood for, the tick has found."""

    seq: int = Field(description="Its place among those that are parked")
    subject: str
    reason: str
    reference: str = Field(description="What it says, as far as it is text")
    at: datetime | None


class ParkedPage(BaseModel):
    """Parked references, the oldest first."""

    data: list[ParkedOut]
    next: str | None


Place = Annotated[int, Path(ge=1, le=SEQ_MAX)]


def _parked(request: Request) -> ParkedService:
    service: ParkedService = request.app.state.services.parked
    return service


@router.get("/parked", response_model=ParkedPage)
async def list_parked(
    request: Request, caller: Annotated[Caller, require("parked.list")], page: Paging
) -> dict[str, Any]:
    """List the references that nobody could take, the oldest first. 503 while the fabric is down."""
    after = 0 if page.after is None else unseal(page.after, int)[0]
    assert isinstance(after, int)
    found = await _parked(request).list(caller.tenant_id, after=max(0, after), limit=page.limit + 1)
    return page.page(found, _shown, key=lambda one: (one.seq,))


@router.post("/parked/{seq}/replay", response_model=ParkedOut)
async def replay_parked(
    request: Request, caller: Annotated[Caller, require("parked.replay")], seq: Place
) -> dict[str, Any]:
    """Have a parked reference told again. 409 `parked_malformed` for what is none."""
    return _shown(await _parked(request).replay(caller.tenant_id, seq))


@router.delete("/parked/{seq}", response_model=ParkedOut)
async def discard_parked(
    request: Request, caller: Annotated[Caller, require("parked.discard")], seq: Place
) -> dict[str, Any]:
    """Take a parked reference away for good."""
    return _shown(await _parked(request).discard(caller.tenant_id, seq))


def _shown(one: Parked) -> dict[str, Any]:
    return {
        "seq": one.seq,
        "subject": one.subject,
        "reason": one.reason,
        "reference": one.data[:_REFERENCE_SHOWN_MAX].decode(errors="replace"),
        "at": one.at,
    }


@router.get("/{letter_id:uuid}", response_model=WholeLetter, response_model_exclude_unset=True)
async def show_letter(
    request: Request, caller: Annotated[Caller, require("desk.show")], letter_id: UUID
) -> dict[str, Any]:
    """Show one dead letter: its error, its attempts, and what it was to do."""
    return await _desk(request).show(caller.reader, letter_id)
