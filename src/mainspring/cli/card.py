"""`mainspring card`: cards, by id or key (OPS-12)."""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Iterable
from typing import Annotated, Any

from cyclopts import App, Parameter

from mainspring.cli import following
from mainspring.cli.client import Client, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.message import Mention, RequestId, Text, said
from mainspring.cli.output import Json, Limit, body_text, emit, emit_rows, named_values, say
from mainspring.cli.post import posted, told

app = App(name="card", help="Cards: create, move, edit, assign, label, comment.")

_Card = Annotated[str, Parameter(help="Its key, as OPS-12, or its id.")]
_Labels = Annotated[
    list[str] | None,
    Parameter(name="--label", negative="", help="A label that it bears. Repeat for more."),
]
_Fields = Annotated[
    list[str] | None,
    Parameter(name="--field", negative="", help="Repeat: NAME=VALUE; a value that reads as JSON is JSON."),
]
_Text = Annotated[str, Parameter(allow_leading_hyphen=True)]  # "-" is stdin, and a text may begin with one
_MaybeText = Annotated[str | None, Parameter(allow_leading_hyphen=True)]
_Flag = Parameter(negative="")
_IfVersion = Annotated[
    int | None, Parameter(name="--if-version", help="Only if the card is still at this version.")
]

_COLUMNS = ("key", "state", "title", "labels", "agent", "assignee", "version")


@app.command(name="list")
def list_(
    *,
    board: str | None = None,
    state: str | None = None,
    label: _Labels = None,
    assignee: str | None = None,
    agent: str | None = None,
    limit: Limit = None,
    json: Json = False,
) -> int:
    """List cards, oldest first; every filter that is given must hold.

    Parameters
    ----------
    board
        The key of their board.
    state
        The state that they are in.
    assignee
        The handle of the person who has them.
    agent
        The handle of the agent that they are pinned to.
    """
    rows = Client.here().pages(
        "cards", limit=limit, board=board, state=state, label=label, assignee=assignee, agent=agent
    )
    emit_rows(rows, _COLUMNS, json)
    return ExitCode.OK


@app.command
def create(
    board: str,
    title: str,
    *,
    body: _Text = "",
    state: str | None = None,
    label: _Labels = None,
    agent: str | None = None,
    assignee: str | None = None,
    priority: int = 0,
    field: _Fields = None,
    json: Json = False,
) -> int:
    """Make a card on a board, say: card create OPS "Mend the pump" --label urgent.

    Parameters
    ----------
    board
        The board's key or id.
    title
        What it is about, in a line.
    body
        Its text; - reads stdin.
    state
        Where it starts; the board's first state by default.
    agent
        The agent that it is pinned to: in an eligible state it is launched.
    assignee
        The handle of the person who has it.
    priority
        The higher, the more urgent.
    """
    given = {
        "board": board,
        "title": title,
        "body": body_text(body),
        "state": state,
        "labels": label or [],
        "agent": agent,
        "assignee": assignee,
        "priority": priority,
        "fields": _fields(field or ()),
    }
    emit(Client.here().post("cards", given), json, _line)
    return ExitCode.OK


@app.command
def show(card: _Card, *, json: Json = False) -> int:
    """Show a card."""
    emit(Client.here().get(_path(card)), json)
    return ExitCode.OK


@app.command
def preview(card: _Card, state: str, *, json: Json = False) -> int:
    """Say who would be launched if you moved the card there, who would not, and why.

    Parameters
    ----------
    state
        The state that it may be moved to.
    """
    emit(Client.here().get(f"{_path(card)}/preview", to=state), json, _preview)
    return ExitCode.OK


@app.command
def move(
    card: _Card,
    state: str,
    *,
    if_version: _IfVersion = None,
    dry_run: Annotated[bool, Parameter(name="--dry-run", negative="")] = False,
    json: Json = False,
) -> int:
    """Move a card to another state of its board.

    Parameters
    ----------
    state
        Where to.
    dry_run
        Move nothing: say who would be launched, like `card preview`.
    """
    if dry_run:
        return preview(card, state, json=json)
    return _change(card, "move", {"state": state}, if_version, as_json=json)


@app.command
def edit(
    card: _Card,
    *,
    title: _MaybeText = None,
    body: _MaybeText = None,
    priority: int | None = None,
    field: _Fields = None,
    drop_field: Annotated[list[str] | None, Parameter(name="--drop-field", negative="")] = None,
    if_version: _IfVersion = None,
    json: Json = False,
) -> int:
    """Change a card's title, body, priority or fields; what is left out stays.

    Parameters
    ----------
    title
        What it is about, in a line.
    body
        Its text; - reads stdin.
    priority
        The higher, the more urgent.
    drop_field
        Take a field away. Repeat for more.
    """
    fields = _fields(field or ()) | dict.fromkeys(drop_field or ())
    given = {
        "title": title,
        "body": None if body is None else body_text(body),
        "priority": priority,
        "fields": fields or None,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise CliError("say what to change: --title, --body, --priority, --field", code=ExitCode.USAGE)
    emit(Client.here().patch(_path(card), changes, version=if_version), json, _line)
    return ExitCode.OK


@app.command
def assign(
    card: _Card,
    *,
    to: str | None = None,
    agent: str | None = None,
    unassign: Annotated[bool, _Flag] = False,
    unpin: Annotated[bool, _Flag] = False,
    if_version: _IfVersion = None,
    json: Json = False,
) -> int:
    """Say who has a card: a person, an agent that it is pinned to, or both.

    Parameters
    ----------
    to
        The assignee's handle.
    agent
        The agent's handle: in an eligible state the card is launched.
    unassign
        Nobody has it.
    unpin
        It is pinned to no agent.
    """
    if (to and unassign) or (agent and unpin):
        raise CliError("--to goes without --unassign, and --agent without --unpin", code=ExitCode.USAGE)
    body: dict[str, Any] = {}
    if to or unassign:
        body["assignee"] = to
    if agent or unpin:
        body["agent"] = agent
    if not body:
        raise CliError("say whom: --to, --agent, --unassign, --unpin", code=ExitCode.USAGE)
    return _change(card, "assign", body, if_version, as_json=json)


@app.command
def label(
    card: _Card,
    *add: Annotated[str, Parameter(help="Labels to put on.")],
    remove: Annotated[
        list[str] | None, Parameter(negative="", help="A label to take off. Repeat for more.")
    ] = None,
    if_version: _IfVersion = None,
    json: Json = False,
) -> int:
    """Put labels on a card and take labels off, say: card label OPS-12 urgent --remove later."""
    if not add and not remove:
        raise CliError("say which labels to add, or --remove", code=ExitCode.USAGE)
    return _change(card, "labels", {"add": list(add), "remove": remove or []}, if_version, as_json=json)


@app.command
def delete(card: _Card, *, if_version: _IfVersion = None) -> int:
    """Delete a card; its events and runs stay."""
    Client.here().delete(_path(card), version=if_version)
    say(f"{card} is deleted")
    return ExitCode.OK


@app.command
def comment(
    card: _Card,
    text: Text = None,
    *,
    mention: Mention = None,
    request_id: RequestId = None,
    json: Json = False,
) -> int:
    """Say something about a card, in its topic of its board's channel; both are made if they are not there."""
    body = {"text": said(text), "mentions": mention or [], "request_id": request_id}
    client = Client.here()
    told(client, posted(client, f"{_path(card)}/comments", body), as_json=json)
    return ExitCode.OK


@app.command
def watch(
    card: _Card,
    *,
    until: str | None = None,
    timeout_seconds: float | None = None,
    json: Json = False,
) -> int:
    """Print what happens to a card and its runs, as it happens, until Ctrl-C.

    Parameters
    ----------
    until
        End when the card is in this state.
    timeout_seconds
        Give up after so long, with exit code 6.
    """
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    client = Client.here()
    messages = following.follow(client, deadline=deadline, card=card)
    next(messages)  # from here on nothing is missed: what the card is now, and whatever comes
    now = client.get(_path(card))
    if not json:
        print(_line(now), flush=True)
    if until is not None and now["state"] == until.strip().lower():
        return ExitCode.OK
    for message in messages:
        if not message.is_event:
            continue
        event = message.data
        print(jsonlib.dumps(event, ensure_ascii=False) if json else following.line_of(event), flush=True)
        state = (event["data"].get("card") or {}).get("state")
        if until is not None and event["kind"].startswith("card.") and state == until.strip().lower():
            return ExitCode.OK
    return ExitCode.OK


def _path(card: str) -> str:
    return f"cards/{segment(card)}"


def _change(card: str, verb: str, body: dict[str, Any], version: int | None, *, as_json: bool) -> int:
    body = body if version is None else body | {"expected_version": version}
    emit(Client.here().post(f"{_path(card)}/{verb}", body), as_json, _line)
    return ExitCode.OK


def _fields(given: Iterable[str]) -> dict[str, Any]:
    return named_values("--field", given)


def _preview(preview: dict[str, Any]) -> str:
    if not preview["moves"]:
        return f"{preview['card']} is in {preview['to']} already: nothing would happen; why nothing did: mainspring explain {preview['card']}"
    lines = [f"{preview['card']}  {preview['from']} → {preview['to']}"]
    lines += [
        f"{'✓' if one['happens'] else '✗'} {' '.join(filter(None, (one['do'], one['agent'])))} ({one['because']}): {one['then']}"
        for one in preview["wakes"]
    ]
    others = [one["name"] for one in preview["misses"] if one["failed_term"] == "kinds"]
    lines += [_missed(one) for one in preview["misses"] if one["missed_term"] != "kinds"]
    if others:
        lines.append(f"  for other kinds of event: rule {', '.join(others)}")
    if preview["misses_left_out"]:
        lines.append(f"  {preview['misses_left_out']} more rules: no")
    if preview["dispatch"] is not None:
        lines.append(f"  no pin launches: {preview['dispatch']}")
    return "\n".join(lines)


def _missed(one: dict[str, Any]) -> str:
    no = "no" if one["missed_term"] is not None else "would match"
    return f"  rule {one['name']}: {no}: {one['why']}"


def _line(card: dict[str, Any]) -> str:
    who = "".join(
        [
            f"  → {card['agent']}" if card["agent"] else "",
            f"  @{card['assignee']}" if card["assignee"] else "",
        ]
    )
    labels = "".join(f" #{one}" for one in card["labels"])
    return f"{card['key']}  [{card['state']}]  {card['title']}{labels}{who}  (version {card['version']})"
