"""`/audit`: who did what that asks for an operator. Nobody rewrites it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from mainspring.operators.deeds import Noted
from mainspring.server.answers import AuditPage
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging

router = APIRouter(prefix="/audit", tags=["audit"], route_class=Route)


@router.get("", response_model=AuditPage)
async def list_deeds(
    request: Request,
    caller: Annotated[Caller, require("audit.list")],
    page: Paging,
    verb: Annotated[
        str | None, Query(max_length=100, description="`desk.replay`, or `rule.*` for all of a noun")
    ] = None,
    by: Annotated[str | None, Query(max_length=64, description="The handle of who did it")] = None,
) -> dict[str, Any]:
    """List what was done, the latest first."""
    found = await request.app.state.services.audit.list_deeds(
        caller.tenant_id, verb=verb, by=by, after=page.after_id(), limit=page.limit + 1
    )
    return page.page(found, Noted.as_json, key=lambda deed: (deed.id,))
