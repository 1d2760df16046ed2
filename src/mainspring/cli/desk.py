"""`mainspring desk`: dead letters, dead effects and failed or lost runs alike. Nothing leaves the desk by itself."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

from cyclopts import App, Parameter

from mainspring.cli.client import Client, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.operation import finish
from mainspring.cli.output import Json, Limit, emit, emit_rows, say, table

app = App(name="desk", help="Dead letters: group, plan, replay, discard, export.")

_Letters = Annotated[str, Parameter(help="Ids of effects and runs, as `desk list` shows them.")]
_Kind = Annotated[str | None, Parameter(help="All of a kind: launch, reflect, ..., or run.")]
_Cause = Annotated[str | None, Parameter(help="All of a cause, as `desk list --group-by cause` names it.")]
_Rule = Annotated[str | None, Parameter(help="All of a rule, by name or id.")]
_Agent = Annotated[
    str | None, Parameter(help="All of an agent, by handle or id: its runs, and what launches or pins it.")
]
_All = Annotated[bool, Parameter(name="--all", negative="", help="Everything on the desk.")]
_NewKey = Annotated[
    bool,
    Parameter(
        name="--new-key",
        negative="",
        help="What goes outside gets a new idempotency key; by default only after a definite failure.",
    ),
]
_SameKey = Annotated[
    bool, Parameter(name="--same-key", negative="", help="What goes outside keeps its idempotency key.")
]
_Rate = Annotated[
    float | None, Parameter(help="At most so many a second, of all that is described (not of ids).")
]
_Wait = Annotated[
    bool,
    Parameter(name="--wait", help="Wait for the operation's end; without, it goes on by itself."),
]


@app.command(name="list")
def list_(
    *,
    group_by: Annotated[
        Literal["cause"] | None, Parameter(help="Put together what failed for the same reason.")
    ] = None,
    kind: _Kind = None,
    rule: _Rule = None,
    agent: _Agent = None,
    limit: Limit = None,
    json: Json = False,
) -> int:
    """List dead letters, the latest first; or by cause, the most frequent first."""
    if group_by is not None:
        rows = Client.here().pages("desk", group_by=group_by, kind=kind, rule=rule, agent=agent)
        emit_rows(rows, ("count", "kinds", "oldest", "newest", "cause"), json, whole="cause")
    else:
        rows = Client.here().pages("desk", kind=kind, rule=rule, agent=agent, limit=limit)
        emit_rows(rows, ("id", "kind", "subject", "cause", "attempts", "since"), json)
    return ExitCode.OK


@app.command
def show(
    letter: Annotated[str, Parameter(help="The id of the effect or run.")], *, json: Json = False
) -> int:
    """Show a dead letter: its error, its attempts, what it was to do."""
    if not _is_id(letter):
        raise CliError(f"{letter} is no letter's id; `mainspring desk list` shows them", code=ExitCode.USAGE)
    emit(Client.here().get(f"desk/{segment(letter)}"), json)
    return ExitCode.OK


@app.command
def plan(
    *ids: _Letters,
    kind: _Kind = None,
    cause: _Cause = None,
    rule: _Rule = None,
    agent: _Agent = None,
    all_: _All = False,
    new_key: _NewKey = False,
    same_key: _SameKey = False,
    json: Json = False,
) -> int:
    """Say what a replay would do, in which order, and what it would leave alone. Changes nothing."""
    asked = _which(ids, everything=all_, kind=kind, cause=cause, rule=rule, agent=agent) | _keyed(
        new=new_key, same=same_key
    )
    emit(Client.here().post("desk/plan", asked), json, _planned)
    return ExitCode.OK


@app.command
def replay(
    *ids: _Letters,
    kind: _Kind = None,
    cause: _Cause = None,
    rule: _Rule = None,
    agent: _Agent = None,
    all_: _All = False,
    new_key: _NewKey = False,
    same_key: _SameKey = False,
    rate: _Rate = None,
    wait: _Wait = True,
    json: Json = False,
) -> int:
    """Owe dead effects again, queue dead runs again, with fresh attempts.

    Ids are replayed at once. All that is described, or --all, is an operation, which goes through them step by step.
    """
    asked = _which(ids, everything=all_, kind=kind, cause=cause, rule=rule, agent=agent) | _keyed(
        new=new_key, same=same_key
    )
    return _decide("replay", asked, rate, wait=wait, as_json=json)


@app.command
def discard(
    *ids: _Letters,
    reason: Annotated[str, Parameter(help="Why; it is kept.")],
    kind: _Kind = None,
    cause: _Cause = None,
    rule: _Rule = None,
    agent: _Agent = None,
    all_: _All = False,
    rate: _Rate = None,
    wait: _Wait = True,
    json: Json = False,
) -> int:
    """Give dead letters up, for a reason.

    Ids are discarded at once. All that is described, or --all, is an operation, which goes through them step by step.
    """
    asked = {**_which(ids, everything=all_, kind=kind, cause=cause, rule=rule, agent=agent), "reason": reason}
    return _decide("discard", asked, rate, wait=wait, as_json=json)


@app.command
def export(
    *,
    kind: _Kind = None,
    cause: _Cause = None,
    rule: _Rule = None,
    agent: _Agent = None,
    output: Annotated[
        str | None, Parameter(name=("--output", "-o"), help="A file, instead of stdout.")
    ] = None,
) -> int:
    """Write dead letters whole, one JSON object a line, oldest event first: error, attempts, what each was to do."""
    query = {"kind": kind, "cause": cause, "rule": rule, "agent": agent}
    with Client.here().opened("GET", "desk/export", query=query) as (_, letters):
        if output is None:
            for line in letters:
                print(line.decode(), end="")
            return ExitCode.OK
        try:
            count = _saved(letters, Path(output))
        except OSError as error:
            raise CliError(f"--output {output}: {error.strerror or error}") from error
    say(f"{count} letters in {output}")
    return ExitCode.OK


def _saved(lines: Iterable[bytes], file: Path) -> int:
    with file.open("wb") as saved:
        return sum(1 for line in lines if saved.write(line))


def _which(ids: tuple[str, ...], *, everything: bool, **described: str | None) -> dict[str, Any]:
    named: dict[str, Any] = {name: value for name, value in described.items() if value is not None}
    named |= {"all": True} if everything else {}
    if bool(ids) == bool(named):
        raise CliError(
            "name ids, or any of --kind, --cause, --rule and --agent, or --all", code=ExitCode.USAGE
        )
    return {"ids": list(ids)} if ids else named


def _keyed(*, new: bool, same: bool) -> dict[str, Any]:
    if new and same:
        raise CliError("--new-key or --same-key, not both", code=ExitCode.USAGE)
    return {"new_key": new} if new or same else {}


def _planned(answer: dict[str, Any]) -> str:
    rows = [[one["kind"], one["id"], one["subject"], one["then"]] for one in answer["eligible"]]
    lines = [table(["kind", "id", "subject", "then"], rows)] if rows else []
    lines += [f"left alone: {one['id']}: {one['because']}" for one in answer["skipped"]]
    total = answer["total"]
    if total is None or total > len(rows):
        lines.append(f"and {'more' if total is None else total - len(rows)} that are not listed here")
    count = "at least " * (total is None) + str(len(rows) if total is None else total)
    lines.append(f"{count} to replay, {answer['order']}; waived: {', '.join(answer['waived'])}")
    return "\n".join(lines)


def _decide(verb: str, asked: dict[str, Any], rate: float | None, *, wait: bool, as_json: bool) -> int:
    client = Client.here()
    answer = client.post(f"desk/{verb}", asked if rate is None else {**asked, "rate_per_second": rate})
    if "ids" not in asked:
        return finish(client, answer, wait=wait, as_json=as_json)
    word = f"{verb}ed"
    if as_json:
        emit(answer, as_json)
    else:
        emit_rows(answer[word], ("kind", "id", "subject"), as_json)
        for one in answer["skipped"]:
            say(f"left alone: {one['id']}: {one['because']}")
        say(f"{word} {len(answer[word])}")
    return ExitCode.OK


parked = App(name="parked", help="References on the fabric that nobody could take. Nothing is owed by them.")
app.command(parked)
_Place = Annotated[int, Parameter(help="Its place, as `desk parked list` shows it.")]


@parked.command(name="list")
def list_parked(*, limit: Limit = None, json: Json = False) -> int:
    """List parked references, the oldest first."""
    rows = Client.here().pages("desk/parked", limit=limit)
    emit_rows(rows, ("seq", "subject", "at", "reason"), json, whole="reason")
    return ExitCode.OK


@parked.command(name="replay")
def replay_parked(seq: _Place, *, json: Json = False) -> int:
    """Have a parked reference told again: whoever takes it looks at its tenant's log."""
    told = Client.here().post(f"desk/parked/{seq}/replay")
    emit(told, json, lambda one: f"{one['seq']} is told again: {one['subject']}")
    return ExitCode.OK


@parked.command(name="discard")
def discard_parked(seq: _Place, *, json: Json = False) -> int:
    """Take a parked reference away for good."""
    gone = Client.here().delete(f"desk/parked/{seq}")
    emit(gone, json, lambda one: f"{one['seq']} is discarded: {one['reason']}")
    return ExitCode.OK


def _is_id(text: str) -> bool:
    with suppress(ValueError):
        return bool(UUID(text))
    return False
