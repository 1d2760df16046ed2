"""`mainspring rule`: rules, by id or name: which events launch or pin whom."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from mainspring.cli.client import Client, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, Limit, body_text, emit, emit_rows, named_values, say

app = App(name="rule", help="Rules: which card changes launch whom.")

_Flag = Parameter(negative="")
_Among = Parameter(name="*")  # its fields are flags of the command itself
_Values = list[str] | None
_Rule = Annotated[str, Parameter(help="Its name or id.")]
_IfVersion = Annotated[
    int | None, Parameter(name="--if-version", help="Only if the rule is still at this version.")
]


def _term(name: str, help_: str) -> Any:
    return Parameter(name=name, negative="", help=help_ + " Repeat for more.")


@dataclass(frozen=True, kw_only=True)
class _When:
    """The terms of a rule, as flags."""

    kind: Annotated[_Values, _term("--kind", "Kind of event, like card.moved or run.failed.")] = None
    board: Annotated[_Values, _term("--board", "Key of the card's board.")] = None
    channel: Annotated[_Values, _term("--channel", "The open channel that it was said in.")] = None
    from_state: Annotated[_Values, _term("--from-state", "A move's start.")] = None
    to_state: Annotated[_Values, _term("--to-state", "A move's end.")] = None
    state: Annotated[_Values, _term("--state", "The state that the card is in.")] = None
    label_all: Annotated[_Values, _term("--label-all", "A label that must be on the card.")] = None
    label_any: Annotated[_Values, _term("--label-any", "One of these must be on it.")] = None
    label_none: Annotated[_Values, _term("--label-none", "A label that must not be on it.")] = None
    label_added: Annotated[_Values, _term("--label-added", "A label that was just put on.")] = None
    actor: Annotated[_Values, _term("--actor", "Who did it: members, agents, or a handle.")] = None
    agent: Annotated[_Values, _term("--agent", "Whose run it is, for run.* events.")] = None
    field: Annotated[_Values, _term("--field", "NAME=VALUE: a field of the card; JSON is JSON.")] = None
    change: Annotated[_Values, _term("--change", "What became of a rule, for rule.changed.")] = None
    min_trust: str | None = None
    """How far what happened must be trusted: stranger, forge, agent or member; agent by default."""

    def as_json(self) -> dict[str, Any]:
        """Return what was said, as the API takes it."""
        terms = {
            "kinds": self.kind, "boards": self.board, "channels": self.channel, "from_states": self.from_state, "to_states": self.to_state,
            "states": self.state, "labels_all": self.label_all, "labels_any": self.label_any,
            "labels_none": self.label_none, "labels_added": self.label_added, "actors": self.actor,
            "agents": self.agent, "changes": self.change, "min_trust": self.min_trust,
            "fields": named_values("--field", self.field or ()),
        }  # fmt: skip
        return {term: values for term, values in terms.items() if values}


@dataclass(frozen=True, kw_only=True)
class _Do:
    """What a rule does, as flags."""

    launch: str | None = None
    """The agent to launch."""
    promote: str | None = None
    """The agent to pin the card to, instead of a launch."""
    webhook: str | None = None
    """The address to send the event to, signed, instead of a launch. The secret is shown once."""
    prompt: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    """What the agent is told, with names like {{card.title}}; the card's title and body by default; - reads stdin."""
    runner_label: Annotated[_Values, _term("--runner-label", "A label that the run's runner must have.")] = (
        None
    )

    def as_json(self) -> dict[str, dict[str, Any]]:
        """Return what was said, as the API takes it."""
        told = None if self.prompt is None else body_text(self.prompt)
        actions: dict[str, dict[str, Any]] = {
            "launch": {"agent": self.launch, "prompt": told, "runner_labels": self.runner_label},
            "promote": {"agent": self.promote},
            "webhook": {"url": self.webhook},
        }
        said = {
            action: {part: value for part, value in parts.items() if value is not None}
            for action, parts in actions.items()
        }
        return {action: parts for action, parts in said.items() if parts}


@dataclass(frozen=True, kw_only=True)
class _Options:
    """The options of a rule, as flags."""

    consume_label: Annotated[bool, _Flag] = False
    """The launch takes the labels of --label-all off the card, and so happens once."""
    recheck: Annotated[bool, _Flag] = False
    """The card must still match when the launch is carried out."""
    self_trigger: Annotated[bool, _Flag] = False
    """Match what this rule's own launches led to, too."""
    max_event_age: float | None = None
    """Seconds: what happened longer ago is not acted upon."""
    cooldown: float | None = None
    """Seconds: how long the rule rests on a card after it fired on it."""
    max_per_hour: int | None = None
    """One more within the hour pauses the rule."""
    while_running: str | None = None
    """While a run of the card and agent has not ended: allow, skip or queue_one."""
    queued_timeout: float | None = None
    """Seconds: a run that no runner takes for so long is lost."""

    def as_json(self) -> dict[str, Any]:
        """Return what was said, as the API takes it."""
        options = {
            "consume_label": self.consume_label, "recheck": self.recheck, "self_trigger": self.self_trigger,
            "max_event_age_seconds": self.max_event_age, "cooldown_seconds": self.cooldown,
            "max_per_hour": self.max_per_hour, "while_running": self.while_running,
            "queued_timeout_seconds": self.queued_timeout,
        }  # fmt: skip
        return {option: value for option, value in options.items() if value not in (None, False)}


@app.command(name="list")
def list_(*, limit: Limit = None, json: Json = False) -> int:
    """List the rules, oldest first."""
    rows = Client.here().pages("rules", limit=limit)
    emit_rows(rows if json else map(_row, rows), ("name", "state", "when", "does", "version", "id"), json)
    return ExitCode.OK


@app.command
def create(
    name: str | None = None,
    *,
    when: Annotated[_When, _Among] = _When(),
    do: Annotated[_Do, _Among] = _Do(),
    options: Annotated[_Options, _Among] = _Options(),
    disabled: Annotated[bool, _Flag] = False,
    file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    json: Json = False,
) -> int:
    """Make a rule, say: rule create "ready to coder" --kind card.moved --to-state ready --launch coder.

    Parameters
    ----------
    name
        What it is called.
    disabled
        Make it switched off.
    file
        A file with the whole rule as JSON, as the API takes it; - reads stdin. Flags are laid over it.
    """
    if file == "-" and do.prompt == "-":
        raise CliError("--file - and --prompt - cannot both read stdin", code=ExitCode.USAGE)
    body = _read(file) if file is not None else {}
    if name is not None:
        body["name"] = name
    if disabled:
        body["enabled"] = False
    _over(body, when.as_json(), "when")
    _over(body, options.as_json(), "options")
    for action, said in do.as_json().items():
        _over(body, said, "do", action)
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
def pause(rule: _Rule, *, because: str | None = None, json: Json = False) -> int:
    """Pause a rule: what it owes, and what it will owe meanwhile, is held until somebody resumes it.

    Parameters
    ----------
    because
        Why; your name by default.
    """
    body = {} if because is None else {"because": because}
    emit(Client.here().post(f"{_path(rule)}/pause", body), json, _text)
    return ExitCode.OK


@app.command
def resume(
    rule: _Rule,
    *,
    run: Annotated[bool, _Flag] = False,
    discard: Annotated[bool, _Flag] = False,
    json: Json = False,
) -> int:
    """Resume a paused rule, and say what becomes of what it owes by now: --run or --discard.

    Parameters
    ----------
    run
        Run it, however old and many it is.
    discard
        Give it up.
    """
    if run == discard:
        raise CliError("say what becomes of what it owes: --run or --discard", code=ExitCode.USAGE)
    resumed = Client.here().post(f"{_path(rule)}/resume", {"owed": "run" if run else "discard"})
    say(f"{resumed['held']} held: {'they run now' if run else 'given up'}")
    emit(resumed, json, _text)
    return ExitCode.OK


@app.command(name="test")
def try_out(
    rule: str | None = None,
    *,
    file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    last: int = 200,
    json: Json = False,
) -> int:
    """Try a rule out on the last events, without effect, say: rule test "ready to coder" --last 500.

    Parameters
    ----------
    rule
        Its name or id.
    file
        A rule that is not made yet, as JSON; - reads stdin.
    last
        On how many events.
    """
    if (rule is None) == (file is None):
        raise CliError(
            "say which rule: its name, or --file with one that is not made yet", code=ExitCode.USAGE
        )
    if file is not None:
        tried = Client.here().post("rules/test", {**_read(file), "last": last})
    else:
        tried = Client.here().post(f"{_path(rule or '')}/test", {"last": last})
    for remark in tried["remarks"]:
        say(f"{remark['pointer']}: {remark['detail']}")
    emit(tried, json, _tried)
    return ExitCode.OK


@app.command
def delete(rule: _Rule, *, if_version: _IfVersion = None) -> int:
    """Delete a rule; what it owes and has not launched yet is dropped."""
    Client.here().delete(_path(rule), version=if_version)
    say(f"deleted {rule}")
    return ExitCode.OK


def _path(rule: str) -> str:
    # rules/test is a command; a rule of that name is reached all the same, since a name's case does not matter
    return f"rules/{segment('TEST' if rule == 'test' else rule)}"


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


def _over(body: dict[str, Any], flags: Mapping[str, Any], *path: str) -> None:
    """Lay flags over the object at a path of what was read, made where there is none."""
    if not flags:
        return
    below = body
    for n, part in enumerate(path, start=1):
        if below.get(part) is None:
            below[part] = {}
        below = below[part]
        if not isinstance(below, dict):
            where = ".".join(path[:n])
            raise CliError(
                f"--file: {where} must be an object for flags to be laid over it", code=ExitCode.USAGE
            )
    below.update(flags)


def _when(rule: Mapping[str, Any]) -> str:
    return "; ".join(f"{term}: {_asked(values)}" for term, values in rule["when"].items()) or "anything"


def _asked(values: Any) -> str:
    match values:
        case dict():
            return ", ".join(f"{name} = {_asked(one)}" for name, one in values.items())
        case list():
            return ", ".join(map(_asked, values))
        case str():
            return values
        case _:
            return jsonlib.dumps(values)


def _state(rule: Mapping[str, Any]) -> str:
    if rule["paused_because"] is not None:
        return "paused"
    return "enabled" if rule["enabled"] else "disabled"


def _does(rule: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    [(kind, said)] = rule["do"].items()
    return kind, said


def _whom(said: Mapping[str, Any]) -> str:
    """Return what a rule is about: an agent's handle, or an address."""
    return str(said["agent"] if "agent" in said else said["url"])


def _row(rule: Mapping[str, Any]) -> dict[str, Any]:
    kind, said = _does(rule)
    return {**rule, "state": _state(rule), "when": _when(rule), "does": f"{kind} {_whom(said)}"}


def _text(rule: Mapping[str, Any]) -> str:
    kind, said = _does(rule)
    options = ", ".join(
        name if value is True else f"{name} = {_asked(value)}" for name, value in rule["options"].items()
    )
    lines = [
        f"{rule['name']}  {_state(rule)}, version {rule['version']}, judges what happens after event {rule['from_seq']}",
        f"id       {rule['id']}",
        f"when     {_when(rule)}",
        f"{kind:<8} {_whom(said)}",
        f"options  {options or '-'}",
    ]
    if rule["paused_because"] is not None:
        held = f"; {rule['held']} held" if "held" in rule else ""
        lines.append(f"paused   {rule['paused_because']}{held}")
    if rule.get("secret"):
        lines.append(f"secret   {rule['secret']}  (keep it: it is not shown again)")
    if "prompt" in said:
        lines.append("prompt   " + said["prompt"].replace("\n", "\n         "))
    return "\n".join(lines)


def _tried(tried: Mapping[str, Any]) -> str:
    """What matched, what missed by more than its kind, and how many missed at which term."""
    lines = [
        f"{'✓' if one['happens'] else '✗'} {one['seq']} {one['kind']} {one['subject']}: "
        + (one["then"] if one["matched"] else one["why"])
        for one in tried["data"]
        if one["failed_term"] != "kinds"
    ]
    missed = ", ".join(f"{count} by {term}" for term, count in tried["missed_by"].items())
    would = f"{tried['matched']} of {tried['events']} events match, {tried['would_happen']} would happen"
    return "\n".join([*lines, would + (f"; missed: {missed}" if missed else "")])
