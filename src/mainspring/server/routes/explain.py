"""`/explain?ref=`: the whole story of a card, event, effect, run or rule, negative verdicts included."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from mainspring.operators.explain import EVENTS_DEFAULT, EVENTS_MAX
from mainspring.server.answers import StoryOut
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route

router = APIRouter(prefix="/explain", tags=["explain"], route_class=Route)

_REF = "A card's key or id, an event as `event:12` or `12`, the id of an effect, delivery, run or message, a rule's id or name"


@router.get("", response_model=StoryOut)
async def explain(
    request: Request,
    caller: Annotated[Caller, require("explain.show")],
    ref: Annotated[str, Query(min_length=1, max_length=250, description=_REF)],
    limit: Annotated[int, Query(ge=1, le=EVENTS_MAX)] = EVENTS_DEFAULT,
) -> dict[str, Any]:
    """Tell what happened, what was owed, every attempt, and why each rule in force did or did not match."""
    story = await request.app.state.services.explain.explain(caller.reader, ref, limit=limit)
    answer: dict[str, Any] = story.as_json()
    return answer
