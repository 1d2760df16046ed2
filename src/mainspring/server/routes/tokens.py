"""`/tokens`: make, list, revoke. A secret is in the answer that makes its token, and nowhere else."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from mainspring.agents.tokens import EXPIRY_SECONDS_MAX, TokenService
from mainspring.agents.views import TokenView
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging

router = APIRouter(prefix="/tokens", tags=["tokens"], route_class=Route)


class NewToken(BaseModel):
    """A token to be made.

    A user's is for the caller, or for the person `account`, who is made if there is nobody of that handle. An agent's is for
    the agent `account`. A runner's names the `agents` that it may run.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Literal["user", "agent", "runner"]
    role: Literal["viewer", "member", "operator"] | None = Field(
        default=None, description="member by default"
    )
    account: str | None = Field(default=None, min_length=1, max_length=100)
    agents: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        default_factory=list, max_length=1000
    )
    extras: list[Annotated[str, Field(max_length=64)]] = Field(default_factory=list, max_length=16)
    expires_in_seconds: float | None = Field(
        default=None, gt=0, le=EXPIRY_SECONDS_MAX, allow_inf_nan=False, description="never, by default"
    )


class TokenOut(BaseModel):
    """A token without its secret; `prefix` is what the secret begins with."""

    id: UUID
    account: str
    kind: str
    role: str
    extras: list[str]
    prefix: str
    agents: list[str]
    demo: bool
    valid: bool
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class MadeToken(BaseModel):
    """A new token, and its secret: keep it, it is not shown again."""

    token: TokenOut
    secret: str


class TokenPage(BaseModel):
    """A page of tokens, the newest first."""

    data: list[TokenOut]
    next: str | None


def _tokens(request: Request) -> TokenService:
    service: TokenService = request.app.state.services.tokens
    return service


@router.get("", response_model=TokenPage)
async def list_tokens(
    request: Request, paging: Paging, caller: Annotated[Caller, require("token.list")]
) -> dict[str, Any]:
    """List the tokens of people, agents and runners, the newest first."""
    rows = await _tokens(request).list_tokens(
        caller.tenant_id, after=paging.after_id(), limit=paging.limit + 1
    )
    return paging.page(rows, TokenView.as_json, key=lambda view: (view.id,))


@router.post("", status_code=201, response_model=MadeToken)
async def create_token(
    request: Request, response: Response, body: NewToken, caller: Annotated[Caller, require("token.create")]
) -> dict[str, Any]:
    """Make a token."""
    view, secret = await _tokens(request).create(
        caller.actor,
        kind=body.kind,
        role=body.role,
        account=body.account,
        agents=body.agents,
        extras=body.extras,
        expires_in_seconds=body.expires_in_seconds,
    )
    response.headers["Cache-Control"] = "no-store"
    return {"token": view.as_json(), "secret": secret}


@router.post("/{token}/revoke", response_model=TokenOut)
async def revoke_token(
    request: Request,
    token: Annotated[UUID, Path(description="The token's id")],
    caller: Annotated[Caller, require("token.revoke")],
) -> dict[str, Any]:
    """Make a token worthless, at once and for good."""
    return (await _tokens(request).revoke(caller.tenant_id, token)).as_json()
