"""`mainspring runner`: start one here, see them all, drain one.

`start` needs no code: a program, or the built-in agents. Whoever writes agents in Python starts their own file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from mainspring.cli.client import Client, segment
from mainspring.cli.exits import CliError, ExitCode
from mainspring.cli.output import Json, emit, emit_rows

if TYPE_CHECKING:
    from mainspring.sdk import Runner

app = App(name="runner", help="Runners: the machines that do agents' work.")

_Flag = Parameter(negative="")


@app.command
def start(
    *,
    agent: str | None = None,
    exec_: Annotated[str | None, Parameter(name="--exec")] = None,
    builtin: Annotated[bool, _Flag] = False,
    once: Annotated[bool, _Flag] = False,
    slots: int = 1,
    timeout_seconds: float = 3600,
    wait_seconds: Annotated[int, Parameter(help="How long one poll waits, 0 to 60.")] = 30,
    grace_seconds: Annotated[float, Parameter(help="How long runs may go on after a signal to stop.")] = 25,
    name: str | None = None,
    label: Annotated[list[str] | None, Parameter(name="--label", negative="")] = None,
) -> int:
    """Run an agent on this machine until Ctrl-C: `--agent coder --exec 'claude -p "$MAINSPRING_PROMPT"'`.

    Parameters
    ----------
    agent
        The agent whose runs the program does.
    exec_
        A shell command. Exit 0 is done, with the end of its output as the result; 75 is try again; else failed.
    builtin
        Run the built-in agents, echo and flaky.
    once
        Claim one run, finish it, and exit; exit too if there is none within the wait.
    slots
        How many runs of the agent at once.
    timeout_seconds
        After how long a run is stopped, and failed.
    name
        What people see; this host and its agents by default.
    label
        What this machine has, like gpu; again for each. A rule may ask for it (runner_labels).
    """
    if (agent is None) != (exec_ is None) or (agent is None and not builtin):
        raise CliError(
            "say what to run: --agent NAME --exec COMMAND, or --builtin, or both", code=ExitCode.USAGE
        )
    from mainspring.sdk import MainspringError, Runner

    try:
        name = name or ("built-in" if agent is None else None)
        runner = Runner(name=name, wait_seconds=wait_seconds, grace_seconds=grace_seconds, labels=label or ())
        if builtin:
            from mainspring import builtin_agents

            builtin_agents.add_to(runner)
        if agent is not None and exec_ is not None:
            runner.command(agent, ["/bin/sh", "-c", exec_], slots=slots, timeout_seconds=timeout_seconds)
    except MainspringError as error:
        raise CliError(str(error), code=ExitCode.USAGE) from error
    return _run(runner, once=once)


@app.command(name="list")
def list_(*, json: Json = False) -> int:
    """Show the runners: what they run, whether they are heard of, what they hold."""
    columns = {
        "name": "name",
        "live": "live",
        "draining": "draining",
        "slots": "slots",
        "agents": "agents",
        "labels": "labels",
        "last seen": "last_seen_at",
    }
    emit_rows(Client.here().pages("runners"), columns, json)
    return ExitCode.OK


@app.command
def drain(runner: Annotated[str, Parameter(help="Its name or id.")], *, json: Json = False) -> int:
    """Ask a runner, by name or id, to finish what it holds and to take no more."""
    emit(Client.here().post(f"runners/{segment(runner)}/drain"), json)
    return ExitCode.OK


def _run(runner: Runner, *, once: bool) -> int:
    from mainspring.sdk import MainspringError, NotAuthorized, NotConfigured, NotFound, Refused, Unreachable

    try:
        runner.run(once=once)
    except MainspringError as error:
        match error:
            case NotAuthorized() | NotConfigured():
                code = ExitCode.AUTH
            case NotFound():
                code = ExitCode.NOT_FOUND
            case Unreachable():
                code = ExitCode.TRY_AGAIN
            case _:
                code = ExitCode.ERROR
        problem = error.problem if isinstance(error, Refused) else None
        raise CliError(str(error), code=code, problem=problem) from error
    return ExitCode.OK
