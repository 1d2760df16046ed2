"""`/dev/faults`: arms a fault point in this process, and disarms them. Only in dev mode and from this machine; elsewhere it does not exist."""

from __future__ import annotations

import os
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from mainspring import faultpoints
from mainspring.config import is_loopback
from mainspring.rooms import FieldError, Invalid, NotFound
from mainspring.server.auth import require
from mainspring.server.keyed import Route

router = APIRouter(prefix="/dev", tags=["dev"], route_class=Route)


class Fault(BaseModel):
    """A fault point, as MAINSPRING_FAULT takes it."""

    model_config = ConfigDict(extra="forbid")

    point: str = Field(max_length=100, description="`point[:nth][:kill|stop|raise]`")


class Armed(BaseModel):
    """What was armed, where."""

    armed: str
    nth: int
    action: str
    process: int


@router.post("/faults", response_model=Armed, dependencies=[require("dev.fault")])
async def arm_fault(request: Request, body: Fault) -> dict[str, Any]:
    """Arm a fault point: this process dies, stops or fails when it next gets there."""
    _refuse_elsewhere(request)
    try:
        point, nth, action = faultpoints.parse(body.point)
    except ValueError as error:
        raise Invalid(FieldError("/point", str(error))) from error
    faultpoints.arm(body.point)
    return {"armed": str(point), "nth": nth, "action": str(action), "process": os.getpid()}


@router.delete("/faults", status_code=204, dependencies=[require("dev.fault")])
async def disarm_faults(request: Request) -> None:
    """Disarm every fault point that is armed in this process."""
    _refuse_elsewhere(request)
    faultpoints.disarm()


def _refuse_elsewhere(request: Request) -> None:
    client = request.client.host if request.client else ""
    if not request.app.state.services.settings.dev_mode or not is_loopback(client):
        raise NotFound("path", request.url.path)
