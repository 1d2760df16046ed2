"""`mainspring run`: one piece of work of one agent."""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import App, Parameter

from mainspring.cli import ask
from mainspring.cli.client import Client, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, Limit, body_text, emit, emit_rows, printable, table

app = App(name="run", help="Runs: one piece of work of one agent.")

_Run = Annotated[str, Parameter(help="Its id.")]

_COLUMNS = ("id", "state", "agent", "card", "attempts", "runner", "outcome", "error")
_FOLLOW_SECONDS = 0.5


@app.command(name="list")
def list_(
    *,
    state: Annotated[
        list[str] | None, Parameter(negative="", help="The state they are in. Repeat for any of several.")
    ] = None,
    agent: Annotated[str | None, Parameter(help="The handle of their agent.")] = None,
    card: Annotated[str | None, Parameter(help="The key or id of their card.")] = None,
    limit: Limit = None,
    json: Json = False,
) -> int:
    """List runs, the newest first; every filter that is given must hold."""
    rows = Client.here().pages("runs", limit=limit, state=state, agent=agent, card=card)
    emit_rows(rows, _COLUMNS, json)
    return ExitCode.OK


@app.command
def show(run: _Run, *, json: Json = False) -> int:
    """Show a run: why it runs, what it waits for, and every attempt."""
    emit(Client.here().get(_path(run)), json, _whole)
    return ExitCode.OK


@app.command
def logs(
    run: _Run,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative="")] = False,
    json: Json = False,
) -> int:
    """Print a run's log.

    Parameters
    ----------
    follow
        Go on until the run has ended.
    """
    for line in _lines(Client.here(), run, follow=follow):
        print(jsonlib.dumps(line, ensure_ascii=False) if json else line["text"], flush=True)
    return ExitCode.OK


@app.command
def cancel(
    run: _Run, *, reason: Annotated[str | None, Parameter(help="Why; it is kept.")] = None, json: Json = False
) -> int:
    """Cancel a queued run, or ask the runner of a held one to stop."""
    body = {} if reason is None else {"reason": reason}
    emit(Client.here().post(f"{_path(run)}/cancel", body), json, _line)
    return ExitCode.OK


@app.command
def retry(run: _Run, *, json: Json = False) -> int:
    """Queue a failed or lost run again: the same run, with fresh attempts."""
    emit(Client.here().post(f"{_path(run)}/retry"), json, _line)
    return ExitCode.OK


@app.command
def answer(
    run: _Run,
    text: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True,
            help="The answer; - reads stdin. Left out in a terminal, it is asked for.",
        ),
    ] = None,
    *,
    json: Json = False,
) -> int:
    """Answer the question that a run waits for. The first answer counts."""
    client = Client.here()
    said = body_text(text) if text is not None else ask.asked_for(_question(client, run))
    emit(client.post(f"{_path(run)}/answer", {"answer": said}), json, ask.shown)
    return ExitCode.OK


def _question(client: Client, run: str) -> dict[str, Any]:
    """Return the one question that a run waits for."""
    waiting: list[dict[str, Any]] = [one for one in client.get(_path(run))["asks"] if one["state"] == "open"]
    match waiting:
        case [one]:
            return one
        case []:
            raise CliError("the run waits for no answer", code=ExitCode.CONFLICT)
        case _:
            ids = ", ".join(one["id"] for one in waiting)
            raise CliError(
                f"the run asks more than one thing: mainspring ask answer, for each of {ids}",
                code=ExitCode.CONFLICT,
            )


def _path(run: str) -> str:
    return f"runs/{segment(run)}"


def _lines(client: Client, run: str, *, follow: bool) -> Iterator[dict[str, Any]]:
    after = 0
    while True:
        page = client.get(f"{_path(run)}/log", after=after, limit=1000)
        yield from page["data"]
        after = page["last"]
        if page["next"] is None:
            # ended before this page was read: nothing can have come behind it
            if page["ended"] or not follow:
                return
            time.sleep(_FOLLOW_SECONDS)


def _line(run: dict[str, Any]) -> str:
    what = run["outcome"] or run["error"] or run["waiting"] or ""
    if run["cancel_requested"] and run["ended_at"] is None:
        what = "asked to stop"
    return f"{run['id']}  {run['agent']}  {run['card'] or '-'}  [{run['state']}]  {what}".rstrip()


def _whole(run: dict[str, Any]) -> str:
    lines = [_line(run)]
    cause = run["cause"]
    because = run["trigger"].get("summary")
    if because:
        lines.append(f"because  {because}")
    lines.append(f"from     event {cause['event_seq']}, {cause['effect_kind']} {cause['effect_key']}")
    lines += [f"{name:<8} {run[name]}" for name in ("waiting", "outcome", "error") if run[name]]
    for one in run["asks"]:
        said = one["answer"] or one["reason"] or one["state"]
        lines.append(f"asked    {printable(one['question'])}: {printable(said)}")
    if run["attempt_list"]:
        cells = [
            [str(one["n"]), one["runner"], one["started_at"], one["outcome"] or "-", one["error"] or "-"]
            for one in run["attempt_list"]
        ]
        lines.append(table(("attempt", "runner", "started", "outcome", "said"), cells))
    return "\n".join(lines)
