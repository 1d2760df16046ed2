"""`/operations`: decisions on many dead letters, each carried out step by step: list, show, stop."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Request

from mainspring.operators.model import Operation
from mainspring.operators.operations import OperationService
from mainspring.server.answers import OperationOut, OperationPage
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging

router = APIRouter(prefix="/operations", tags=["operations"], route_class=Route)


def _operations(request: Request) -> OperationService:
    service: OperationService = request.app.state.services.operations
    return service


@router.get("", response_model=OperationPage)
async def list_operations(
    request: Request, caller: Annotated[Caller, require("operation.list")], page: Paging
) -> dict[str, Any]:
    """List operations, the newest first."""
    found = await _operations(request).list_operations(
        caller.tenant_id, after=page.after_id(), limit=page.limit + 1
    )
    return page.page(found, Operation.as_json, key=lambda one: (one.id,))


@router.get("/{operation_id}", response_model=OperationOut)
async def show_operation(
    request: Request, caller: Annotated[Caller, require("operation.show")], operation_id: UUID
) -> dict[str, Any]:
    """Show an operation, and how far it is."""
    return (await _operations(request).get(caller.tenant_id, operation_id)).as_json()


@router.post("/{operation_id}/stop", response_model=OperationOut)
async def stop_operation(
    request: Request, caller: Annotated[Caller, require("operation.stop")], operation_id: UUID
) -> dict[str, Any]:
    """End an operation. What it has decided stands; when this answers, it decides nothing more."""
    return (await _operations(request).stop(caller.actor, operation_id)).as_json()
