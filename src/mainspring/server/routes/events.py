"""`/events`: the log, in the order of commits. `after` is a seq, so that whoever follows the log can start anywhere."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request

from mainspring.operators.log import shown
from mainspring.server.answers import EventOut, EventPage
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import LIMIT_DEFAULT, LIMIT_MAX

router = APIRouter(prefix="/events", tags=["events"], route_class=Route)

Seq = Annotated[int, Path(ge=1, lt=2**63, description="Place in the log")]
SEQ_MAX = 2**63 - 1


@router.get("", response_model=EventPage)
async def list_events(
    request: Request,
    caller: Annotated[Caller, require("event.list")],
    after: Annotated[int, Query(ge=0, le=SEQ_MAX, description="Only events behind this seq")] = 0,
    kind: Annotated[
        str | None, Query(max_length=100, description="`card.moved`, or `card.*` for all of a noun")
    ] = None,
    subject: Annotated[str | None, Query(max_length=200, description="The id of what it is about")] = None,
    last: Annotated[int | None, Query(ge=1, le=LIMIT_MAX, description="Only the last so many")] = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT,
) -> dict[str, Any]:
    """List events, oldest first. `next` is the seq to go on behind; at the end of the log it is null."""
    if last is not None:
        found = await request.app.state.services.log.last_events(
            caller.tenant_id, kind=kind, subject=subject, limit=last
        )
        return {"data": [shown(event) for event in found if event.seq > after], "next": None}
    events = await request.app.state.services.log.events(
        caller.tenant_id, after=after, kind=kind, subject=subject, limit=limit + 1
    )
    page = events[:limit]
    return {
        "data": [shown(event) for event in page],
        "next": str(page[-1].seq) if len(events) > limit else None,
    }


@router.get("/{seq}", response_model=EventOut)
async def show_event(
    request: Request, caller: Annotated[Caller, require("event.show")], seq: Seq
) -> dict[str, Any]:
    """Show one event, with its immutable snapshot."""
    return shown(await request.app.state.services.log.event(caller.tenant_id, seq))
