"""`/sessions`: the session protocol, by which an agent's program reads what is owed to its agent, and says where it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from mainspring.chat.live import TEXT_LENGTH_MAX
from mainspring.chat.model import Delivery, Session
from mainspring.chat.sessions import SessionService
from mainspring.chat.waits import Waits
from mainspring.rooms import Actor, FieldError, Invalid
from mainspring.server.auth import Caller, authenticate, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging
from mainspring.server.polls import or_gone
from mainspring.server.routes.messages import MessageOut, shown

router = APIRouter(prefix="/sessions", tags=["sessions"], route_class=Route)

SessionId = Annotated[UUID, Path(description="The session's id")]
ClaimId = Annotated[UUID, Query(description="The session's claim")]
WAIT_SECONDS_MAX = 60.0
LOOKS_AGAIN_SECONDS = 10.0
HAVE_MAX = 200
Turn = Annotated[int | None, Field(ge=0, le=2**53)]


class Starting(BaseModel):
    """A session to be begun. `agent`: whose, for a runner's token. `takeover`: in the place of one that lives."""

    model_config = ConfigDict(extra="forbid", strict=True)

    agent: str | None = Field(default=None, min_length=1, max_length=100)
    takeover: bool = False


class Claim(BaseModel):
    """The claim that the session was begun with, and the turn that goes on."""

    model_config = ConfigDict(extra="forbid", strict=True)

    claim_id: UUID = Field(strict=False)
    turn: Turn = None


class Settling(BaseModel):
    """An edge: turns through this one have ended (`ready`), or the session does (`stopped`, `errored`)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    claim_id: UUID = Field(strict=False)
    state: Literal["ready", "stopped", "errored"] = "ready"
    turn: int = Field(default=0, ge=0, le=2**53)
    reason: str = Field(default="", max_length=1000)


class Refused(BaseModel):
    """A delivery that could not be put into the agent's context, and why."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: UUID = Field(strict=False)
    error: str = Field(min_length=1, max_length=4000)


class Acking(BaseModel):
    """What is in the agent's context now, in which turn, in the order in which it came; and what could not be put there."""

    model_config = ConfigDict(extra="forbid", strict=True)

    claim_id: UUID = Field(strict=False)
    turn: Turn = None
    deliveries: list[Annotated[UUID, Field(strict=False)]] = Field(default_factory=list, max_length=HAVE_MAX)
    refused: list[Refused] = Field(default_factory=list, max_length=HAVE_MAX)


class Writing(BaseModel):
    """What the agent is writing just now; whoever watches the channel sees it pass, and it is kept by nobody."""

    model_config = ConfigDict(extra="forbid", strict=True)

    claim_id: UUID = Field(strict=False)
    channel: str = Field(min_length=1, max_length=100)
    topic: str = Field(default="general", min_length=1, max_length=200)
    text: str = Field(max_length=TEXT_LENGTH_MAX)


class SessionOut(BaseModel):
    """A session. `turn` is the last that was begun, `settled_turn` the last that ended."""

    id: UUID
    agent: str
    agent_id: UUID
    run_id: UUID | None
    state: Literal["ready", "working", "stopped", "errored", "displaced", "lost"]
    turn: int
    settled_turn: int
    lease_until: datetime | None
    started_at: datetime
    seen_at: datetime
    ended_at: datetime | None
    reason: str | None


class SessionPage(BaseModel):
    """A page of sessions, the newest first."""

    data: list[SessionOut]
    next: str | None


class Started(SessionOut):
    """A session that has begun: its claim, the pinned messages of its channels, and how much is owed to its agent."""

    claim_id: UUID
    lease_seconds: float
    pins: list[MessageOut]
    owed: int


class DeliveryOut(BaseModel):
    """A message for the agent: `steer` at once, `deliver` between turns. It comes again until it is acked."""

    id: UUID
    kind: Literal["deliver", "steer"]
    message: MessageOut


class Inbox(BaseModel):
    """All that the session holds and has not acked, in the order in which it came: of what came at once, the steers first."""

    deliveries: list[DeliveryOut]
    state: str
    turn: int


class Acked(BaseModel):
    """How many deliveries that settled."""

    settled: int


def _service(request: Request) -> SessionService:
    service: SessionService = request.app.state.services.talk.sessions
    return service


def shown_session(session: Session) -> dict[str, Any]:
    """Return a session as the API shows it."""
    plain = {name: getattr(session, name) for name in SessionOut.model_fields if name != "agent"}
    return {**plain, "agent": session.agent_handle}


def _shown_delivery(delivery: Delivery) -> dict[str, Any]:
    return {"id": delivery.id, "kind": delivery.kind, "message": shown(delivery.message)}


async def _holder(request: Request, caller: Caller, session_id: UUID) -> Actor:
    """Return the agent that the caller speaks for. Raises NotFound for a session that is none of its own."""
    return await _service(request).holder(caller.tenant_id, caller.actor, caller.agents, session_id)


@router.get("", response_model=SessionPage)
async def list_sessions(
    request: Request,
    paging: Paging,
    caller: Annotated[Caller, require("session.list")],
    state: Annotated[Literal["live", "all"], Query(description="All: those that have ended, too")] = "live",
) -> dict[str, Any]:
    """List sessions, the newest first."""
    rows = await _service(request).list_sessions(
        caller.tenant_id, live=state == "live", after=paging.after_id(), limit=paging.limit + 1
    )
    return paging.page(rows, shown_session, key=lambda session: (session.id,))


@router.post("", response_model=Started, status_code=201)
async def start_session(
    request: Request, body: Starting, caller: Annotated[Caller, require("session.start")]
) -> dict[str, Any]:
    """Begin a session of an agent. 409 `session_live` when another was heard of a moment ago, unless it is taken over."""
    service = _service(request)
    actor = await service.agent_named(caller.tenant_id, caller.actor, caller.agents, body.agent)
    started = await service.start(actor, run_id=caller.run_id, takeover=body.takeover)
    return {
        **shown_session(started.session),
        "claim_id": started.session.claim_id,
        "lease_seconds": service.policy.lease_seconds,
        "pins": [shown(message) for message in started.pins],
        "owed": started.owed,
    }


@router.post("/{session}/heartbeat", response_model=SessionOut)
async def heartbeat(
    request: Request, session: SessionId, body: Claim, caller: Annotated[Caller, require("session.heartbeat")]
) -> dict[str, Any]:
    """Renew the session's lease; a turn that is new begins. 409 `session_lost` or `session_displaced` when it is over."""
    actor = await _holder(request, caller, session)
    return shown_session(
        await _service(request).heartbeat(actor, session, body.claim_id, turn=body.turn or None)
    )


@router.post("/{session}/settle", response_model=SessionOut)
async def settle(
    request: Request,
    session: SessionId,
    body: Settling,
    caller: Annotated[Caller, require("session.settle")],
) -> dict[str, Any]:
    """End turns, or the session: what was held for them is settled in the same commit."""
    actor, service = await _holder(request, caller, session), _service(request)
    if body.state == "ready":
        settled = await service.settle(actor, session, body.claim_id, turn=body.turn)
        request.app.state.services.talk.waits.poke()
        return shown_session(settled)
    ended = await service.end(
        actor, session, body.claim_id, errored=body.state == "errored", reason=body.reason
    )
    return shown_session(ended)


@router.post("/{session}/live", status_code=204)
async def say_live(
    request: Request, session: SessionId, body: Writing, caller: Annotated[Caller, require("session.live")]
) -> None:
    """Show whoever watches a channel at this server what is being written."""
    actor = await _holder(request, caller, session)
    await _service(request).say_live(
        actor, session, body.claim_id, channel=body.channel, topic=body.topic, text=body.text
    )


@router.get("/{session}/inbox", response_model=Inbox)
async def inbox(
    request: Request,
    session: SessionId,
    claim_id: ClaimId,
    caller: Annotated[Caller, require("session.inbox")],
    wait: Annotated[float, Query(ge=0, le=WAIT_SECONDS_MAX, allow_inf_nan=False)] = 30.0,
    have: Annotated[
        str,
        Query(
            max_length=8000, description="Deliveries that the caller has: waits for others; commas between"
        ),
    ] = "",
) -> dict[str, Any]:
    """Return what the session holds unacked, and what it is offered now, waiting until there is something that the caller lacks."""
    actor, known = await _holder(request, caller, session), _ids(have)
    services = request.app.state.services
    work = _until_new(
        request, services.talk.sessions, services.talk.waits, actor, session, claim_id, known, wait
    )
    with request.app.state.load.wait(caller.tenant_id):
        found = await or_gone(request, work)
    if found is None:
        return {"deliveries": [], "state": "ready", "turn": 0}
    held, deliveries = found
    return {
        "deliveries": [_shown_delivery(delivery) for delivery in deliveries],
        "state": held.state,
        "turn": held.turn,
    }


@router.post("/{session}/ack", response_model=Acked)
async def ack(
    request: Request, session: SessionId, body: Acking, caller: Annotated[Caller, require("session.ack")]
) -> dict[str, Any]:
    """Say what is in the agent's context now. 409 `ack_out_of_order` when an earlier one of its topic is left out."""
    actor = await _holder(request, caller, session)
    settled = await _service(request).ack(
        actor,
        session,
        body.claim_id,
        ids=body.deliveries,
        refused={one.id: one.error for one in body.refused},
        turn=body.turn or None,
    )
    return {"settled": settled}


async def _until_new(
    request: Request,
    service: SessionService,
    waits: Waits,
    actor: Actor,
    session: UUID,
    claim_id: UUID,
    known: Collection[UUID],
    wait: float,
) -> tuple[Session, Collection[Delivery]]:
    """Look, and look again when called or now and then, until there is a delivery that the caller does not have, or it is time.

    Who waits is asked before every further look who they are: a token that was revoked meanwhile is given nothing more.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    with waits.waiting(actor.tenant_id, session) as woken:
        while True:
            held, found = await service.inbox(actor, session, claim_id)
            left = until - loop.time()
            if left <= 0 or any(delivery.id not in known for delivery in found):
                return held, found
            with suppress(TimeoutError):
                await asyncio.wait_for(
                    woken.wait(), min(left, LOOKS_AGAIN_SECONDS, service.policy.lease_seconds / 3)
                )
            woken.clear()
            await authenticate(request)


def _ids(text: str) -> frozenset[UUID]:
    try:
        found = frozenset(UUID(one) for one in text.split(",") if one)
    except ValueError:
        raise Invalid(FieldError("/have", "ids with commas between")) from None
    if len(found) > HAVE_MAX:
        raise Invalid(FieldError("/have", f"at most {HAVE_MAX} ids"))
    return found
