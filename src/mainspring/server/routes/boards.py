"""`/boards`: boards and their states."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from mainspring.boards.model import Board, BoardState
from mainspring.boards.service import BoardService
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging
from mainspring.server.versions import etag

router = APIRouter(prefix="/boards", tags=["boards"], route_class=Route)

Ref = Annotated[str, Path(max_length=100, description="Id or key")]
RunState = Literal["queued", "running", "done", "failed", "blocked", "cancelled", "lost"]


class State(BaseModel):
    """A column. A pinned card in an `eligible` one is dispatched to its agent; a `terminal` one ends the work."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=64)
    eligible: bool = False
    terminal: bool = False


class NewBoard(BaseModel):
    """A board to be made."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str = Field(min_length=1, max_length=10, pattern=r"^[A-Za-z][A-Za-z0-9]*$", examples=["OPS"])
    name: str = Field(min_length=1, max_length=200)
    states: list[State] = Field(min_length=1, max_length=64)
    reflect: dict[RunState, str] = Field(
        default_factory=dict, description="Run state → the state its card moves to"
    )


class BoardOut(BaseModel):
    """A board."""

    id: UUID
    key: str
    name: str
    states: list[State]
    reflect: dict[str, str]
    version: int


class BoardPage(BaseModel):
    """A page of boards, oldest first."""

    data: list[BoardOut]
    next: str | None


class StatePage(BaseModel):
    """All states of a board, in order."""

    data: list[State]
    next: None = None


def shown(board: Board) -> dict[str, Any]:
    """Return a board as the API shows it."""
    return {
        "id": str(board.id),
        "key": board.key,
        "name": board.name,
        "states": [state.as_json() for state in board.states],
        "reflect": dict(board.reflect),
        "version": board.version,
    }


def _boards(request: Request) -> BoardService:
    service: BoardService = request.app.state.services.boards
    return service


@router.get("", response_model=BoardPage)
async def list_boards(
    request: Request, paging: Paging, caller: Annotated[Caller, require("board.list")]
) -> dict[str, Any]:
    """List the boards, oldest first."""
    rows = await _boards(request).list_boards(
        caller.tenant_id, after=paging.after_id(), limit=paging.limit + 1
    )
    return paging.page(rows, shown, key=lambda board: (board.id,))


@router.post("", status_code=201, response_model=BoardOut)
async def create_board(
    request: Request, response: Response, body: NewBoard, caller: Annotated[Caller, require("board.create")]
) -> dict[str, Any]:
    """Make a board. 409 when its key is taken."""
    board = await _boards(request).create_board(
        caller.actor,
        key=body.key,
        name=body.name,
        states=[BoardState(name=s.name, eligible=s.eligible, terminal=s.terminal) for s in body.states],
        reflect={str(run_state): to_state for run_state, to_state in body.reflect.items()},
    )
    response.headers.update(
        {"Location": f"{request.url.path.rstrip('/')}/{board.key}", **etag(board.version)}
    )
    return shown(board)


@router.get("/{board}", response_model=BoardOut)
async def show_board(
    request: Request, response: Response, board: Ref, caller: Annotated[Caller, require("board.show")]
) -> dict[str, Any]:
    """Show one board."""
    found = await _boards(request).get_board(caller.tenant_id, board)
    response.headers.update(etag(found.version))
    return shown(found)


@router.get("/{board}/states", response_model=StatePage)
async def list_states(
    request: Request, board: Ref, caller: Annotated[Caller, require("board.show")]
) -> dict[str, Any]:
    """List a board's states, in order."""
    found = await _boards(request).get_board(caller.tenant_id, board)
    return {"data": [state.as_json() for state in found.states], "next": None}
