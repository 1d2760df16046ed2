"""`/desk`: dead effects and failed or lost runs alike: list, group, show, plan, replay, discard. Nothing expires here."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from mainspring.operators.desk import ASKED_MAX, REASON_LENGTH_MAX, DeskService
from mainspring.operators.model import Asked, Letter
from mainspring.server.answers import DeskPage, DiscardedOut, PlanOut, ReplayedOut, WholeLetter
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import PageQuery, Paging, unseal

router = APIRouter(prefix="/desk", tags=["desk"], route_class=Route)


class Which(BaseModel):
    """Which dead letters are meant: these ids, or all of a kind or cause."""

    model_config = ConfigDict(extra="forbid")

    ids: list[UUID] = Field(default_factory=list, max_length=ASKED_MAX)
    kind: str | None = Field(
        default=None, min_length=1, max_length=64, description="An effect's kind, or `run`"
    )
    cause: str | None = Field(default=None, min_length=1, max_length=200, description="As the groups name it")
    all: StrictBool = Field(default=False, description="Everything on the desk; said, never implied")

    @model_validator(mode="after")
    def _names_something(self) -> Which:
        described = self.kind is not None or self.cause is not None or self.all
        if bool(self.ids) == described:
            raise ValueError("name either ids, or kind and cause, or all")
        return self

    def asked(self) -> Asked:
        """Return it as the desk takes it."""
        return Asked(ids=tuple(self.ids), kind=self.kind, cause=self.cause)


class Replay(Which):
    """What to replay. Without `new_key` only definite failures get a new idempotency key."""

    new_key: StrictBool | None = None


class Discard(Which):
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
    kind: Annotated[str | None, Query(max_length=64, description="An effect's kind, or `run`")] = None,
    group_by: Annotated[Literal["cause"] | None, Query()] = None,
) -> dict[str, Any]:
    """List dead letters, the latest first; or group them by cause, the most frequent first."""
    if group_by == "cause":
        return {"data": await _desk(request).groups(caller.tenant_id, kind=kind), "next": None}
    letters = await _desk(request).letters(
        caller.tenant_id, kind=kind, after=_behind(page), limit=page.limit + 1
    )
    return page.page(letters, Letter.as_json, key=lambda one: (one.since.isoformat(), one.id))


def _behind(page: PageQuery) -> tuple[datetime, UUID] | None:
    if page.after is None:
        return None
    since, last = unseal(page.after, datetime.fromisoformat, UUID)
    assert isinstance(since, datetime)
    assert isinstance(last, UUID)
    return since, last


@router.post("/plan", response_model=PlanOut)
async def plan_replay(
    request: Request, caller: Annotated[Caller, require("desk.plan")], body: Replay
) -> dict[str, Any]:
    """Say what a replay would do, in which order, and what it would leave alone. Changes nothing."""
    return await _desk(request).plan(caller.tenant_id, body.asked(), new_key=body.new_key)


@router.post("/replay", response_model=ReplayedOut)
async def replay(
    request: Request, caller: Annotated[Caller, require("desk.replay")], body: Replay
) -> dict[str, Any]:
    """Owe dead effects again, and queue dead runs again, with fresh attempts."""
    return await _desk(request).replay(caller.actor, body.asked(), new_key=body.new_key)


@router.post("/discard", response_model=DiscardedOut)
async def discard(
    request: Request, caller: Annotated[Caller, require("desk.discard")], body: Discard
) -> dict[str, Any]:
    """Give dead letters up, for a reason that is kept."""
    return await _desk(request).discard(caller.actor, body.asked(), reason=body.reason)


@router.get("/{letter_id:uuid}", response_model=WholeLetter, response_model_exclude_unset=True)
async def show_letter(
    request: Request, caller: Annotated[Caller, require("desk.show")], letter_id: UUID
) -> dict[str, Any]:
    """Show one dead letter: its error, its attempts, and what it was to do."""
    return await _desk(request).show(caller.tenant_id, letter_id)
