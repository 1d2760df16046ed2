"""`/effects`: what is owed, how far it is, and every attempt; a pending one can be cancelled."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request

from mainspring.operators.log import shown_attempt, shown_effect
from mainspring.server.answers import EffectOut, EffectPage, EffectWithAttempts
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging, seal
from mainspring.spine.effects import EffectState

router = APIRouter(prefix="/effects", tags=["effects"], route_class=Route)


@router.get("", response_model=EffectPage)
async def list_effects(
    request: Request,
    caller: Annotated[Caller, require("effect.list")],
    page: Paging,
    state: Annotated[EffectState | None, Query()] = None,
    kind: Annotated[str | None, Query(max_length=64)] = None,
    event_seq: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
) -> dict[str, Any]:
    """List effects, oldest first. Deliveries in channels that the caller does not see are left out, but for operators."""
    rows, following = await request.app.state.services.log.effects(
        caller.reader,
        state=state,
        kind=kind,
        event_seq=event_seq,
        after=page.after_id(),
        limit=page.limit,
    )
    return {
        "data": [shown_effect(row) for row in rows],
        "next": None if following is None else seal(following),
    }


@router.get("/{effect_id}", response_model=EffectWithAttempts)
async def show_effect(
    request: Request, caller: Annotated[Caller, require("effect.show")], effect_id: UUID
) -> dict[str, Any]:
    """Show one effect and every attempt that did not simply succeed the first time."""
    row, attempts = await request.app.state.services.log.effect(caller.reader, effect_id)
    return {**shown_effect(row), "history": [shown_attempt(one) for one in attempts]}


@router.post("/{effect_id}/cancel", response_model=EffectOut)
async def cancel_effect(
    request: Request, caller: Annotated[Caller, require("effect.cancel")], effect_id: UUID
) -> dict[str, Any]:
    """Drop a pending effect; of one that is being done, ask that it be dropped if it does not succeed this time."""
    return shown_effect(await request.app.state.services.log.cancel(caller.actor, effect_id))
