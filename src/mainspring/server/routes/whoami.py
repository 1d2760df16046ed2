"""`/whoami`: who the server takes the caller for, and what their token reaches."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel

from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route

router = APIRouter(prefix="/whoami", tags=["tokens"], route_class=Route)


class WhoAmI(BaseModel):
    """The caller, as their token says."""

    tenant_id: UUID
    account_id: UUID | None
    handle: str
    account_kind: str
    token_kind: str
    role: str
    extras: list[str]
    run_id: UUID | None


@router.get("", response_model=WhoAmI)
async def whoami(caller: Annotated[Caller, require("account.whoami")]) -> dict[str, Any]:
    """Say who the caller is."""
    return {
        "tenant_id": caller.tenant_id,
        "account_id": caller.actor.account_id,
        "handle": caller.actor.handle,
        "account_kind": caller.actor.kind,
        "token_kind": caller.kind,
        "role": caller.role.name.lower(),
        "extras": sorted(caller.extras),
        "run_id": caller.run_id,
    }
