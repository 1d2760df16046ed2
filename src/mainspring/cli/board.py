"""`mainspring board`: boards and their states."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from mainspring.cli.client import Client, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, Limit, emit, emit_rows

app = App(name="board", help="Boards and their states.")

_Board = Annotated[str, Parameter(help="Its key or id.")]
_States = Annotated[
    list[str], Parameter(name="--state", negative="", help="Repeat, in order: NAME[:eligible|:terminal].")
]
_Reflect = Annotated[
    list[str] | None,
    Parameter(name="--reflect", negative="", help="Repeat: RUN_STATE=CARD_STATE, like done=review."),
]


@app.command(name="list")
def list_(*, limit: Limit = None, json: Json = False) -> int:
    """List the boards, oldest first."""
    rows = Client.here().pages("boards", limit=limit)
    emit_rows(rows if json else map(_row, rows), ("key", "name", "states"), json)
    return ExitCode.OK


@app.command
def create(
    key: str, name: str | None = None, *, state: _States, reflect: _Reflect = None, json: Json = False
) -> int:
    """Make a board, say: board create OPS Operations --state inbox --state ready:eligible --state done:terminal.

    Parameters
    ----------
    key
        What its cards are called by: OPS gives OPS-1, OPS-2.
    name
        Its name; the key by default.
    """
    body = {
        "key": key,
        "name": name or key,
        "states": [_state(one) for one in state],
        "reflect": dict(_pair(one) for one in reflect or ()),
    }
    emit(Client.here().post("boards", body), json, _text)
    return ExitCode.OK


@app.command
def show(board: _Board, *, json: Json = False) -> int:
    """Show a board, by id or key."""
    emit(Client.here().get(f"boards/{segment(board)}"), json, _text)
    return ExitCode.OK


def _state(text: str) -> dict[str, Any]:
    name, _, kind = text.partition(":")
    if kind not in ("", "eligible", "terminal"):
        raise CliError(f"--state {text}: after the colon stands eligible or terminal", code=ExitCode.USAGE)
    return {"name": name, "eligible": kind == "eligible", "terminal": kind == "terminal"}


def _pair(text: str) -> tuple[str, str]:
    run_state, equals, card_state = text.partition("=")
    if not equals:
        raise CliError(f"--reflect {text}: must be RUN_STATE=CARD_STATE", code=ExitCode.USAGE)
    return run_state.strip().lower(), card_state


def _named(state: dict[str, Any]) -> str:
    kind = ":eligible" if state["eligible"] else ":terminal" if state["terminal"] else ""
    return f"{state['name']}{kind}"


def _row(board: dict[str, Any]) -> dict[str, Any]:
    return board | {"states": [_named(state) for state in board["states"]]}


def _text(board: dict[str, Any]) -> str:
    reflected = [f"{run}={card}" for run, card in board["reflect"].items()]
    lines = [f"{board['key']}  {board['name']}", f"states   {', '.join(map(_named, board['states']))}"]
    return "\n".join([*lines, f"reflect  {', '.join(reflected) or '-'}"])
