"""`/verify`: audits the caller's tenant: every invariant that rows can show, each by name."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from mainspring.server.answers import ReportOut
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route

router = APIRouter(prefix="/verify", tags=["verify"], route_class=Route)


@router.get("", response_model=ReportOut)
async def verify(
    request: Request,
    caller: Annotated[Caller, require("verify.run")],
    since: Annotated[int, Query(ge=0, lt=2**63, description="Judge again only events behind this seq")] = 0,
) -> dict[str, Any]:
    """Check that nothing was lost or doubled. A finding is no error of the request: look at `ok`."""
    report = await request.app.state.services.verify.verify(caller.tenant_id, since=since)
    answer: dict[str, Any] = report.as_json()
    return answer
