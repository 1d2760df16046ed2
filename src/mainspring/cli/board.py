"""`mainspring board`: boards and their states."""

from __future__ import annotations

import hashlib
import json as jsonlib
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import App, Parameter

from mainspring.cli.client import Client, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, Limit, emit, emit_rows, say

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
    if not body["reflect"]:
        say(
            "what becomes of a run will move no card here: --reflect done=STATE makes it so, when the board is made"
        )
    return ExitCode.OK


@app.command
def show(board: _Board, *, json: Json = False) -> int:
    """Show a board, by id or key."""
    emit(Client.here().get(f"boards/{segment(board)}"), json, _text)
    return ExitCode.OK


@app.command(name="export")
def export_(
    board: _Board,
    *,
    cards: Annotated[
        bool, Parameter(negative="", help="Its cards, too; not their runs and comments.")
    ] = False,
) -> int:
    """Write a board as YAML to stdout, for `board import`: the same bytes as long as nothing has changed."""
    from mainspring.cli import documents

    client = Client.here()
    document = documents.document_of("board", client.get(f"boards/{segment(board)}"))
    if cards:
        document["cards"] = [documents.card_of(card) for card in client.pages("cards", board=document["key"])]
    print(documents.dumped(document), end="")
    return ExitCode.OK


@app.command(name="import")
def import_(
    file: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="A file that `board export` wrote; - reads stdin.")
    ],
    *,
    key: Annotated[str | None, Parameter(help="Another key for it.")] = None,
    json: Json = False,
) -> int:
    """Make a board of a file, with its cards. Cut off in between, importing the same file again within two days does the rest."""
    from mainspring.cli import documents

    found = documents.read_all(file)
    if len(found) != 1 or found[0].kind != "board":
        raise CliError(f"{file}: must hold one board", code=ExitCode.USAGE)
    body = dict(found[0].body)
    body["key"] = (key or body["key"]).strip().upper()
    cards = body.pop("cards", None) or []
    sent = _Sent(
        Client.here(), hashlib.sha256(jsonlib.dumps([body, cards], sort_keys=True).encode()).hexdigest()[:40]
    )
    made = sent.post("board", "boards", {"name": body["key"], **body})
    for n, card in enumerate(cards, 1):
        sent.post(f"card-{n}", "cards", {**card, "board": body["key"]})
    say(f"{len(cards)} cards on {body['key']}")
    emit(made, json, _text)
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class _Sent:
    """Commands that are carried out once, however often the same file is imported."""

    client: Client
    digest: str

    def post(self, what: str, path: str, body: Any) -> dict[str, Any]:
        """Send one command under its own key."""
        headers = {"Idempotency-Key": f"import-{self.digest}-{what}"}
        answer: dict[str, Any] = self.client.call("POST", path, body=body, headers=headers).body
        return answer


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
