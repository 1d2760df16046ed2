"""`mainspring desk`: dead letters, dead effects and failed or lost runs alike. Nothing leaves the desk by itself."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from mainspring.cli.client import Client, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, Limit, emit, emit_rows, say, table

app = App(name="desk", help="Dead letters: group, plan, replay, discard.")

_Letters = Annotated[str, Parameter(help="Ids of effects and runs, as `desk list` shows them.")]
_Kind = Annotated[str | None, Parameter(help="All of a kind: launch, reflect, ..., or run.")]
_Cause = Annotated[str | None, Parameter(help="All of a cause, as `desk list --group-by cause` names it.")]
_All = Annotated[bool, Parameter(name="--all", negative="", help="Everything on the desk.")]
_Key = Annotated[
    Literal["new", "same"] | None,
    Parameter(help="Idempotency key of what goes outside; by default new only after a definite failure."),
]


@app.command(name="list")
def list_(
    *,
    group_by: Annotated[
        Literal["cause"] | None, Parameter(help="Put together what failed for the same reason.")
    ] = None,
    kind: _Kind = None,
    limit: Limit = None,
    json: Json = False,
) -> int:
    """List dead letters, the latest first; or by cause, the most frequent first."""
    if group_by is not None:
        rows = Client.here().pages("desk", group_by=group_by, kind=kind)
        emit_rows(rows, ("count", "kinds", "cause", "oldest", "newest"), json)
    else:
        rows = Client.here().pages("desk", kind=kind, limit=limit)
        emit_rows(rows, ("id", "kind", "subject", "cause", "attempts", "since"), json)
    return ExitCode.OK


@app.command
def show(
    letter: Annotated[str, Parameter(help="The id of the effect or run.")], *, json: Json = False
) -> int:
    """Show a dead letter: its error, its attempts, what it was to do."""
    emit(Client.here().get(f"desk/{segment(letter)}"), json)
    return ExitCode.OK


@app.command
def plan(
    *ids: _Letters,
    kind: _Kind = None,
    cause: _Cause = None,
    all_: _All = False,
    key: _Key = None,
    json: Json = False,
) -> int:
    """Say what a replay would do, in which order, and what it would leave alone. Changes nothing."""
    asked = _which(ids, kind, cause, everything=all_) | _keyed(key)
    emit(Client.here().post("desk/plan", asked), json, _planned)
    return ExitCode.OK


@app.command
def replay(
    *ids: _Letters,
    kind: _Kind = None,
    cause: _Cause = None,
    all_: _All = False,
    key: _Key = None,
    json: Json = False,
) -> int:
    """Owe dead effects again, queue dead runs again, with fresh attempts."""
    asked = _which(ids, kind, cause, everything=all_) | _keyed(key)
    return _done(Client.here().post("desk/replay", asked), "replayed", as_json=json)


@app.command
def discard(
    *ids: _Letters,
    reason: Annotated[str, Parameter(help="Why; it is kept.")],
    kind: _Kind = None,
    cause: _Cause = None,
    all_: _All = False,
    json: Json = False,
) -> int:
    """Give dead letters up, for a reason."""
    asked = {**_which(ids, kind, cause, everything=all_), "reason": reason}
    return _done(Client.here().post("desk/discard", asked), "discarded", as_json=json)


def _which(ids: tuple[str, ...], kind: str | None, cause: str | None, *, everything: bool) -> dict[str, Any]:
    described: dict[str, Any] = {"kind": kind, "cause": cause, "all": everything or None}
    named = {name: value for name, value in described.items() if value is not None}
    if bool(ids) == bool(named):
        raise CliError("name ids, or --kind and --cause, or --all", code=ExitCode.USAGE)
    return {"ids": list(ids)} if ids else named


def _keyed(key: Literal["new", "same"] | None) -> dict[str, Any]:
    return {} if key is None else {"new_key": key == "new"}


def _planned(answer: dict[str, Any]) -> str:
    rows = [[one["kind"], one["id"], one["subject"], one["then"]] for one in answer["eligible"]]
    lines = [table(["kind", "id", "subject", "then"], rows)] if rows else []
    lines += [f"left alone: {one['id']}: {one['because']}" for one in answer["skipped"]]
    count = len(rows)
    lines.append(f"{count} to replay, {answer['order']}; waived: {', '.join(answer['waived'])}")
    return "\n".join(lines)


def _done(answer: dict[str, Any], word: str, *, as_json: bool) -> int:
    if as_json:
        emit(answer, as_json)
    else:
        emit_rows(answer[word], ("kind", "id", "subject"), as_json)
        for one in answer["skipped"]:
            say(f"left alone: {one['id']}: {one['because']}")
        say(f"{word} {len(answer[word])}")
    return ExitCode.OK
