"""`mainspring agent`: who rules launch. An agent is named by handle or id."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from mainspring.cli.client import Client, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, Limit, emit, emit_rows, table

app = App(name="agent", help="Agents that rules launch.")

_Agent = Annotated[str, Parameter(help="Its handle or id.")]

_COLUMNS = ("handle", "name", "slots", "running", "queued", "paused", "wake", "served", "waiting")


@app.command(name="list")
def list_(*, limit: Limit = None, json: Json = False) -> int:
    """List agents, oldest first."""
    emit_rows(Client.here().pages("agents", limit=limit), _COLUMNS, json)
    return ExitCode.OK


@app.command
def create(
    handle: str, *, name: str | None = None, slots: int = 1, wake: bool = False, json: Json = False
) -> int:
    """Make an agent. Its runs wait until a runner serves it: `mainspring runner start --agent HANDLE --exec COMMAND`.

    Parameters
    ----------
    handle
        What rules and commands call it by.
    name
        What people see; the handle by default.
    slots
        How many of its runs may be held by runners at once.
    wake
        Queue a run for it when messages are owed to it and no session of it reads them.
    """
    body = {"handle": handle, "slots": slots, "wake": wake} | ({} if name is None else {"name": name})
    emit(Client.here().post("agents", body), json, _line)
    return ExitCode.OK


@app.command
def show(agent: _Agent, *, json: Json = False) -> int:
    """Show an agent with its live runs, and what they wait for."""
    emit(Client.here().get(_path(agent)), json, _whole)
    return ExitCode.OK


@app.command
def edit(
    agent: _Agent,
    *,
    name: str | None = None,
    slots: int | None = None,
    wake: bool | None = None,
    json: Json = False,
) -> int:
    """Change an agent.

    Parameters
    ----------
    name
        What people see.
    slots
        How many of its runs may be held by runners at once.
    wake
        Whether a run is queued for it when messages are owed to it and no session of it reads them.
    """
    given = {"name": name, "slots": slots, "wake": wake}
    changed = {field: value for field, value in given.items() if value is not None}
    if not changed:
        raise CliError("say what to change: --name, --slots, --wake, --no-wake", code=ExitCode.USAGE)
    emit(Client.here().patch(_path(agent), changed), json, _line)
    return ExitCode.OK


@app.command
def pause(agent: _Agent, *, json: Json = False) -> int:
    """Let an agent's queued runs wait, and do not wake it. Runs that a runner holds go on, and a session that is live reads on: end its program."""
    emit(Client.here().post(f"{_path(agent)}/pause"), json, _line)
    return ExitCode.OK


@app.command
def resume(agent: _Agent, *, json: Json = False) -> int:
    """Let an agent's runs be claimed again."""
    emit(Client.here().post(f"{_path(agent)}/resume"), json, _line)
    return ExitCode.OK


def _path(agent: str) -> str:
    return f"agents/{segment(agent.removeprefix('@'))}"


def _line(agent: dict[str, Any]) -> str:
    state = "paused" if agent["paused"] else ("served" if agent["served"] else "no runner serves it")
    work = f"{agent['running']} running, {agent['queued']} queued, {agent['slots']} slots"
    woken = "  woken by messages" if agent["wake"] else ""
    waiting = f"  {agent['waiting']}" if agent["waiting"] else ""
    return f"{agent['handle']}  ({agent['name']})  {state}  {work}{woken}{waiting}"


def _whole(agent: dict[str, Any]) -> str:
    lines = [_line(agent)]
    if agent["runs"]:
        cells = [
            [run["id"], run["state"], run["card"] or "-", run["runner"] or "-", run["created_at"]]
            for run in agent["runs"]
        ]
        lines.append(table(("run", "state", "card", "runner", "since"), cells))
    return "\n".join(lines)
