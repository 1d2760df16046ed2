"""`mainspring rule`: rules, by id or name: which changes of cards and runs launch whom."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from mainspring.cli.client import Client, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, Limit, body_text, emit, emit_rows, say

app = App(name="rule", help="Rules: which card changes launch whom.")

_Flag = Parameter(negative="")
_Values = list[str] | None
_Rule = Annotated[str, Parameter(help="Its name or id.")]
_IfVersion = Annotated[
    int | None, Parameter(name="--if-version", help="Only if the rule is still at this version.")
]


def _term(name: str, help_: str) -> Any:
    return Parameter(name=name, negative="", help=help_ + " Repeat for more.")


@app.command(name="list")
def list_(*, limit: Limit = None, json: Json = False) -> int:
    """List the rules, oldest first."""
    rows = Client.here().pages("rules", limit=limit)
    emit_rows(
        rows if json else map(_row, rows), ("name", "enabled", "when", "launches", "version", "id"), json
    )
    return ExitCode.OK


@app.command
def create(
    name: str | None = None,
    *,
    kind: Annotated[_Values, _term("--kind", "Kind of event, like card.moved or run.failed.")] = None,
    board: Annotated[_Values, _term("--board", "Key of the card's board.")] = None,
    from_state: Annotated[_Values, _term("--from-state", "A move's start.")] = None,
    to_state: Annotated[_Values, _term("--to-state", "A move's end.")] = None,
    state: Annotated[_Values, _term("--state", "The state that the card is in.")] = None,
    label_all: Annotated[_Values, _term("--label-all", "A label that must be on the card.")] = None,
    label_any: Annotated[_Values, _term("--label-any", "One of these must be on it.")] = None,
    label_none: Annotated[_Values, _term("--label-none", "A label that must not be on it.")] = None,
    label_added: Annotated[_Values, _term("--label-added", "A label that was just put on.")] = None,
    actor: Annotated[_Values, _term("--actor", "Who did it: members, agents, or a handle.")] = None,
    agent: Annotated[_Values, _term("--agent", "Whose run it is, for run.* events.")] = None,
    launch: str | None = None,
    prompt: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    consume_label: Annotated[bool, _Flag] = False,
    recheck: Annotated[bool, _Flag] = False,
    self_trigger: Annotated[bool, _Flag] = False,
    disabled: Annotated[bool, _Flag] = False,
    file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    json: Json = False,
) -> int:
    """Make a rule, say: rule create "ready to coder" --kind card.moved --to-state ready --launch coder.

    Parameters
    ----------
    name
        What it is called.
    launch
        The agent to launch.
    prompt
        What the agent is told, with names like {{card.title}}; the card's title and body by default; - reads stdin.
    consume_label
        The launch takes the labels of --label-all off the card, and so happens once.
    recheck
        The card must still match when the launch is carried out.
    self_trigger
        Match what this rule's own launches led to, too.
    disabled
        Make it switched off.
    file
        A file with the whole rule as JSON, as the API takes it; - reads stdin. Flags are laid over it.
    """
    terms = {
        "kinds": kind, "boards": board, "from_states": from_state, "to_states": to_state, "states": state,
        "labels_all": label_all, "labels_any": label_any, "labels_none": label_none, "labels_added": label_added,
        "actors": actor, "agents": agent,
    }  # fmt: skip
    options = {"consume_label": consume_label, "recheck": recheck, "self_trigger": self_trigger}
    if file == "-" and prompt == "-":
        raise CliError("--file - and --prompt - cannot both read stdin", code=ExitCode.USAGE)
    body = _read(file) if file is not None else {}
    if name is not None:
        body["name"] = name
    if disabled:
        body["enabled"] = False
    _over(body, "when", {term: values for term, values in terms.items() if values})
    _over(body, "options", {option: True for option, is_set in options.items() if is_set})
    told = None if prompt is None else body_text(prompt)
    launched = {"agent": launch, "prompt": told}
    if launch is not None or told is not None:
        do = body.setdefault("do", {})
        _over(do, "launch", {part: value for part, value in launched.items() if value is not None})
    written = Client.here().post("rules", body)
    for remark in written["remarks"]:
        say(f"{remark['pointer']}: {remark['detail']}")
    emit(written, json, _text)
    return ExitCode.OK


@app.command
def show(rule: _Rule, *, json: Json = False) -> int:
    """Show a rule, by id or name."""
    emit(Client.here().get(_path(rule)), json, _text)
    return ExitCode.OK


@app.command
def enable(rule: _Rule, *, if_version: _IfVersion = None, json: Json = False) -> int:
    """Switch a rule on, for what comes after."""
    return _switch(rule, "enable", if_version, as_json=json)


@app.command
def disable(rule: _Rule, *, if_version: _IfVersion = None, json: Json = False) -> int:
    """Switch a rule off; what it owes and has not launched yet is dropped."""
    return _switch(rule, "disable", if_version, as_json=json)


@app.command
def delete(rule: _Rule, *, if_version: _IfVersion = None) -> int:
    """Delete a rule; what it owes and has not launched yet is dropped."""
    Client.here().delete(_path(rule), version=if_version)
    say(f"deleted {rule}")
    return ExitCode.OK


def _path(rule: str) -> str:
    return f"rules/{segment(rule)}"


def _switch(rule: str, verb: str, if_version: int | None, *, as_json: bool) -> int:
    headers = {} if if_version is None else {"If-Match": f'"{if_version}"'}
    answer = Client.here().call("POST", f"{_path(rule)}/{verb}", body={}, headers=headers)
    emit(answer.body, as_json, _text)
    return ExitCode.OK


def _read(file: str) -> dict[str, Any]:
    try:
        read = jsonlib.loads(sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise CliError(f"--file {file}: {error.strerror or error}", code=ExitCode.NOT_FOUND) from error
    except ValueError as error:
        raise CliError(f"--file {file}: is no JSON: {error}", code=ExitCode.USAGE) from error
    if not isinstance(read, dict):
        raise CliError(f"--file {file}: must be one JSON object", code=ExitCode.USAGE)
    return read


def _over(body: dict[str, Any], part: str, flags: Mapping[str, Any]) -> None:
    if flags:
        below = body.get(part)
        body[part] = {**(below if isinstance(below, dict) else {}), **flags}


def _when(rule: Mapping[str, Any]) -> str:
    return "; ".join(f"{term}: {', '.join(values)}" for term, values in rule["when"].items()) or "anything"


def _row(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {**rule, "when": _when(rule), "launches": rule["do"]["launch"]["agent"]}


def _text(rule: Mapping[str, Any]) -> str:
    launch = rule["do"]["launch"]
    state = "enabled" if rule["enabled"] else "disabled"
    return "\n".join(
        [
            f"{rule['name']}  {state}, version {rule['version']}, judges events behind {rule['from_seq']}",
            f"id       {rule['id']}",
            f"when     {_when(rule)}",
            f"launch   {launch['agent']}",
            f"options  {', '.join(rule['options']) or '-'}",
            "prompt   " + launch["prompt"].replace("\n", "\n         "),
        ]
    )
