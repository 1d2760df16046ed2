"""`/doctor`: one plain sentence on whether anything is lost or late, and what is amiss with the process that answers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request

from mainspring.operators.symptoms import Diagnosis
from mainspring.server.answers import DiagnosisOut
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route

router = APIRouter(prefix="/doctor", tags=["doctor"], route_class=Route)


@router.get("", response_model=DiagnosisOut)
async def examine(request: Request, caller: Annotated[Caller, require("doctor.run")]) -> dict[str, Any]:
    """Look at everything that could be amiss. What is found is no error of the request: look at `ok`."""
    diagnosis: Diagnosis = await request.app.state.services.doctor.examine(caller.tenant_id)
    return diagnosis.as_json()
