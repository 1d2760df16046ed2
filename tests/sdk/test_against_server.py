"""Runners as real processes against a real server: what is promised when one of the two dies, hangs or is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from mainspring.sdk.spool import Spool, Spooled
from mainspring.testing import DevServer, dev_server, wait_until
from tests.sdk.test_command import is_running

pytestmark = [pytest.mark.processes, pytest.mark.slow]

LEASE_SECONDS = 2
PATIENCE_SECONDS = 30
ROOT = Path(__file__).parents[2]

Run = dict[str, Any]
Started = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def server() -> Iterator[DevServer]:
    """One server for all of these tests; each has an agent of its own."""
    with dev_server(run_lease_seconds=LEASE_SECONDS) as running:
        yield running


@pytest.fixture
def agent(server: DevServer) -> str:
    """A fresh agent's handle."""
    handle = f"agent-{uuid.uuid4().hex[:8]}"
    server.call("POST", "/agents", {"handle": handle, "slots": 4})
    return handle


@pytest.fixture
def start(server: DevServer, tmp_path: Path) -> Iterator[Started]:
    """`start(*argv)` → a process that talks to the server with its operator's token; what is left of it is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(*argv: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *argv],
            env=os.environ
            | {
                "MAINSPRING_URL": server.url(),
                "MAINSPRING_TOKEN": server.holder()["token"],
                "MAINSPRING_SPOOL": str(tmp_path / "spool"),
            }
            | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def launch(server: DevServer, agent: str) -> str:
    """Pin a card to the agent where that dispatches it; return the id of its one run."""
    card = server.call("POST", "/cards", {"board": "DEMO", "title": "work", "agent": agent, "state": "ready"})
    wait_until(lambda: bool(runs_of(server, card["key"])), f"a run of {card['key']}")
    [run] = runs_of(server, card["key"])
    run_id: str = run["id"]
    return run_id


def runs_of(server: DevServer, card: str) -> list[Run]:
    """The runs of a card."""
    rows: list[Run] = server.call("GET", f"/runs?card={card}")["data"]
    return rows


def run_now(server: DevServer, run_id: str) -> Run:
    """The run as it is."""
    run: Run = server.call("GET", f"/runs/{run_id}")
    return run


def reaches(server: DevServer, run_id: str, state: str) -> Run:
    """Wait for the run to be in this state."""
    wait_until(lambda: run_now(server, run_id)["state"] == state, f"run {run_id} {state}")
    return run_now(server, run_id)


def said(server: DevServer, run_id: str) -> list[str]:
    """The lines of the run's log."""
    return [line["text"] for line in server.call("GET", f"/runs/{run_id}/log")["data"]]


def says(server: DevServer, run_id: str, wanted: str) -> str:
    """Wait for a line of the log that begins so; return what follows."""
    wait_until(lambda: any(line.startswith(wanted) for line in said(server, run_id)), f"the line {wanted}")
    return next(line for line in said(server, run_id) if line.startswith(wanted)).removeprefix(wanted).strip()


def script(tmp_path: Path, body: str) -> str:
    """A file with an agent in it."""
    path = tmp_path / "agent.py"
    path.write_text("import asyncio, os, sys, time\nfrom mainspring.sdk import Run, Runner\n" + body)
    return str(path)


HANGS_ONCE = """
runner = Runner(wait_seconds=1)
@runner.agent(sys.argv[1])
async def work(run: Run) -> str:
    await run.progress(f"attempt {run.attempt}")
    if run.attempt == 1:
        await asyncio.Event().wait()
    return "done at last"
runner.run()
"""


def test_a_killed_runners_run_gets_its_next_attempt_from_another(
    server: DevServer, agent: str, start: Started, tmp_path: Path
) -> None:
    run_id = launch(server, agent)
    first = start(script(tmp_path, HANGS_ONCE), agent)
    says(server, run_id, "attempt 1")
    first.send_signal(signal.SIGKILL)
    start(script(tmp_path, HANGS_ONCE), agent)
    run = reaches(server, run_id, "done")
    assert run["outcome"] == "done at last"
    assert run["attempts"] == 2
    assert len(runs_of(server, run["card"])) == 1


def test_the_program_of_a_killed_runner_dies_with_it(server: DevServer, agent: str, start: Started) -> None:
    run_id = launch(server, agent)
    runner = start(
        "-m", "mainspring", "runner", "start", "--agent", agent, "--exec", "echo pid $$; exec sleep 600"
    )
    pid = int(says(server, run_id, "pid"))
    assert is_running(pid)
    runner.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(pid), f"the end of process {pid}")
    # the token that it made for itself is left behind, and ends by itself
    tokens = server.call("GET", "/tokens?limit=200")["data"]
    [left] = [token for token in tokens if token["agents"] == [agent]]
    assert datetime.fromisoformat(left["expires_at"]) - datetime.fromisoformat(
        left["created_at"]
    ) <= timedelta(days=1, seconds=1)


BLOCKS = """
import httpx
runner = Runner(wait_seconds=1)
@runner.agent(sys.argv[1])
async def work(run: Run) -> str:
    # Blocks the event loop's thread itself until the server has renewed the lease far beyond the first one.
    def lease():
        headers = {"authorization": f"Bearer {run.token}"}
        run_now = httpx.get(f"{os.environ['MAINSPRING_URL']}/api/v1/runs/{run.id}", headers=headers).json()
        return run_now["lease_until"], run_now["attempts"]
    from datetime import datetime, timedelta
    first, _ = lease()
    while True:
        until, attempts = lease()
        if datetime.fromisoformat(until) > datetime.fromisoformat(first) + timedelta(seconds=2 * float(sys.argv[2])):
            return f"kept, attempt {attempts}"
        time.sleep(0.1)
runner.run()
"""


def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(
    server: DevServer, agent: str, start: Started, tmp_path: Path
) -> None:
    run_id = launch(server, agent)
    start(script(tmp_path, BLOCKS), agent, str(LEASE_SECONDS))
    assert reaches(server, run_id, "done")["outcome"] == "kept, attempt 1"


def test_a_result_left_on_disk_is_taken_after_its_lease_ran_out(
    server: DevServer, agent: str, start: Started, tmp_path: Path
) -> None:
    run_id = launch(server, agent)
    made = server.call("POST", "/tokens", {"kind": "runner", "agents": [agent]})
    claimed = _claim_as_a_runner_that_dies(server, made["secret"], agent)
    assert claimed["id"] == run_id
    spool = Spool.of(server.url(), environ={"MAINSPRING_SPOOL": str(tmp_path / "spool")})
    spool.put(Spooled(run_id, claimed["claim_id"], {"outcome": "done", "result": "finished before the cut"}))
    reaches(server, run_id, "queued")  # its lease ran out
    server.call(
        "POST", f"/agents/{agent}/pause"
    )  # so that nobody else may claim it: the result must come from the disk
    runner = start(
        "-m",
        "mainspring",
        "runner",
        "start",
        "--agent",
        agent,
        "--exec",
        "false",
        "--once",
        "--wait-seconds",
        "1",
    )
    assert runner.wait(PATIENCE_SECONDS) == 0
    run = run_now(server, run_id)
    assert (run["state"], run["outcome"], run["attempts"]) == ("done", "finished before the cut", 1)
    assert spool.waiting() == []


def _claim_as_a_runner_that_dies(server: DevServer, token: str, agent: str) -> Run:
    headers = {"Authorization": f"Bearer {token}"}
    body = {"runner": "doomed", "incarnation": str(uuid.uuid4()), "agents": [agent], "slots": [0]}
    claimed: Run = server.http.post(f"{server.url()}/api/v1/runner/claim", json=body, headers=headers).json()[
        "run"
    ]
    beat = server.http.post(
        f"{server.url()}/api/v1/runs/{claimed['id']}/heartbeat",
        json={"claim_id": claimed["claim_id"]},
        headers=headers,
    )
    assert beat.status_code == 200
    return claimed


@pytest.mark.parametrize("point", ["runs.after_claim", "runs.before_complete", "runs.after_complete"])
def test_a_server_killed_around_a_claim_or_a_complete_costs_no_attempt_and_no_result(
    server: DevServer, agent: str, start: Started, point: str
) -> None:
    victim = server.pid("server")
    run_id = launch(server, agent)
    server.arm(point)
    start("-m", "mainspring", "runner", "start", "--agent", agent, "--exec", "echo once")
    wait_until(lambda: server.pid("server") not in (victim, None), f"the kill at {point}")
    run = reaches(server, run_id, "done")
    assert (run["outcome"], run["attempts"]) == ("once", 1)
    assert said(server, run_id) == ["once"]


def test_a_signal_drains_and_what_is_not_finished_is_handed_back(
    server: DevServer, agent: str, start: Started
) -> None:
    run_id = launch(server, agent)
    command = ["-m", "mainspring", "runner", "start", "--agent", agent]
    first = start(*command, "--exec", "echo begun; exec sleep 600", "--grace-seconds", "0")
    says(server, run_id, "begun")
    first.send_signal(signal.SIGTERM)
    assert first.wait(PATIENCE_SECONDS) == 0
    run = run_now(server, run_id)
    assert (run["state"], run["attempts"]) == ("queued", 0)
    assert [attempt["outcome"] for attempt in run["attempt_list"]] == ["handed back"]
    start(*command, "--exec", "echo finished by another")
    assert reaches(server, run_id, "done")["outcome"] == "finished by another"


def test_a_server_that_is_away_for_longer_than_a_lease_costs_no_attempt(
    server: DevServer, agent: str, start: Started, tmp_path: Path
) -> None:
    run_id = launch(server, agent)
    go_on = tmp_path / "go-on"
    program = f"echo begun; while [ ! -e {go_on} ]; do sleep 0.05; done; echo finished"
    start("-m", "mainspring", "runner", "start", "--agent", agent, "--exec", program)
    says(server, run_id, "begun")
    victim = server.pid("server")
    assert victim is not None
    server.process.send_signal(signal.SIGSTOP)  # so that it does not start another one at once
    try:
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: lease_is_over(server, run_id), f"the end of the lease of {run_id}")
    finally:
        server.process.send_signal(signal.SIGCONT)
    wait_until(lambda: not lease_is_over(server, run_id), f"a heartbeat of {run_id}")
    go_on.touch()
    run = reaches(server, run_id, "done")
    assert (run["outcome"], run["attempts"]) == ("begun\nfinished", 1)
    assert [attempt["outcome"] for attempt in run["attempt_list"]] == ["done"]


def lease_is_over(server: DevServer, run_id: str) -> bool:
    """Ask the database, with no server between: what a server that is away would see."""

    async def ask() -> bool:
        connection = await asyncpg.connect((server.state / "secrets" / "admin.url").read_text())
        try:
            over = "select lease_until < clock_timestamp() from mainspring.runs where id = $1::text::uuid"
            return await connection.fetchval(over, run_id) is not False  # taken back: it has no lease at all
        finally:
            await connection.close()

    return asyncio.run(ask())


def test_a_drain_lets_what_is_held_be_finished(
    server: DevServer, agent: str, start: Started, tmp_path: Path
) -> None:
    run_id = launch(server, agent)
    go_on = tmp_path / "go-on"
    program = f"echo begun; while [ ! -e {go_on} ]; do sleep 0.05; done; echo finished"
    runner = start(
        "-m", "mainspring", "runner", "start", "--agent", agent, "--exec", program, "--name", agent
    )
    says(server, run_id, "begun")
    server.command("runner", "drain", agent)
    later = launch(server, agent)
    go_on.touch()
    assert runner.wait(PATIENCE_SECONDS) == 0
    assert run_now(server, run_id)["state"] == "done"
    assert run_now(server, later)["state"] == "queued"


def test_a_cancelled_run_ends_its_program(server: DevServer, agent: str, start: Started) -> None:
    run_id = launch(server, agent)
    start("-m", "mainspring", "runner", "start", "--agent", agent, "--exec", "echo pid $$; exec sleep 600")
    pid = int(says(server, run_id, "pid"))
    server.call("POST", f"/runs/{run_id}/cancel", {})
    reaches(server, run_id, "cancelled")
    assert not is_running(pid)


def test_once_does_one_run_and_exits_and_exits_too_when_there_is_none(
    server: DevServer, agent: str, start: Started
) -> None:
    command = [
        "-m",
        "mainspring",
        "runner",
        "start",
        "--agent",
        agent,
        "--exec",
        "echo ok",
        "--once",
        "--wait-seconds",
        "1",
    ]
    assert start(*command).wait(PATIENCE_SECONDS) == 0
    first, second = launch(server, agent), launch(server, agent)
    assert start(*command).wait(PATIENCE_SECONDS) == 0
    assert [run_now(server, run_id)["state"] for run_id in (first, second)] == ["done", "queued"]


def test_exit_75_is_tried_again_and_other_codes_are_dead_letters(
    server: DevServer, agent: str, start: Started
) -> None:
    run_id = launch(server, agent)
    program = 'test "$MAINSPRING_ATTEMPT" -gt 1 || exit 75; echo for good >&2; exit 3'
    start("-m", "mainspring", "runner", "start", "--agent", agent, "--exec", program)
    run = reaches(server, run_id, "failed")
    assert run["attempts"] == 2
    assert run["error"] == "for good (exit 3)"


def test_the_readmes_agent_runs_with_a_newcomers_token(server: DevServer, start: Started) -> None:
    runner = start(str(ROOT / "examples" / "agent.py"))
    wait_until(
        lambda: "greeter" in [row["handle"] for row in server.call("GET", "/agents")["data"]],
        "the agent greeter",
    )
    run_id = launch(server, "greeter")
    run = reaches(server, run_id, "done")
    assert run["outcome"] == "hello, work"
    wait_until(lambda: server.call("GET", f"/cards/{run['card']}")["state"] == "review", "the card in review")
    assert server.call("GET", f"/cards/{run['card']}")["labels"] == ["greeted"]
    runner.send_signal(signal.SIGINT)
    assert runner.wait(PATIENCE_SECONDS) == 0
    valid = [token["agents"] for token in server.call("GET", "/tokens?limit=200")["data"] if token["valid"]]
    assert ["greeter"] not in valid


def test_a_refused_token_ends_the_runner_with_the_code_of_that(
    server: DevServer, agent: str, start: Started
) -> None:
    command = ["-m", "mainspring", "runner", "start", "--agent", agent, "--exec", "true"]
    runner = start(*command, MAINSPRING_TOKEN="ms_runner_nobody")
    _, err = runner.communicate(timeout=PATIENCE_SECONDS)
    assert runner.returncode == 4
    assert "mainspring:" in err


GIVES_UP = """
from mainspring.sdk import NeedsInput, execution
execution.UNRESPONSIVE_SECONDS = 0.1
runner = Runner(wait_seconds=1)
@runner.agent(sys.argv[1], timeout_seconds=0.1 if sys.argv[2] == "overstays" else 600)
async def work(run: Run):
    await run.progress("called")
    match sys.argv[2]:
        case "waits longer than the server lets it":
            await run.retry(after_seconds=14 * 86400)
        case "asks with two options that are one":
            return NeedsInput("which?", ("a", "A"))
        case "overstays":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                while runner._shift._liveness._held:  # until its claim is kept no longer; the lease has not run out then
                    await asyncio.sleep(0.01)
                raise
runner.run()
"""


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("waits longer than the server lets it", "its result was refused: "),
        ("asks with two options that are one", "its result was refused: "),
        ("overstays", "timed out after 0.1 s"),
    ],
)
def test_a_run_that_its_runner_gives_up_is_a_dead_letter_and_is_not_done_over(
    server: DevServer, agent: str, start: Started, tmp_path: Path, how: str, error: str
) -> None:
    run_id = launch(server, agent)
    start(script(tmp_path, GIVES_UP), agent, how)
    run = reaches(server, run_id, "failed")
    assert run["error"].startswith(error)
    assert (run["attempts"], said(server, run_id).count("called")) == (1, 1)


ASKS = """
runner = Runner(wait_seconds=1)
@runner.agent(sys.argv[1], timeout_seconds=float(sys.argv[2]))
async def work(run: Run) -> str:
    await run.progress(f"attempt {run.attempt} by {os.getpid()}")
    said = await run.ask("Touch the schema?", ["yes", "no"])
    return f"attempt {run.attempt}: {said}"
runner.run()
"""


def open_asks(server: DevServer, run_id: str) -> list[Run]:
    """What the run waits for."""
    return [ask for ask in run_now(server, run_id)["asks"] if ask["state"] == "open"]


def test_an_agent_waits_for_a_person_longer_than_its_lease_and_its_own_time(
    server: DevServer, agent: str, start: Started, tmp_path: Path
) -> None:
    run_id = launch(server, agent)
    start(script(tmp_path, ASKS), agent, "1")
    wait_until(lambda: bool(open_asks(server, run_id)), "a question")
    first = datetime.fromisoformat(run_now(server, run_id)["lease_until"])

    def kept() -> bool:
        until = datetime.fromisoformat(run_now(server, run_id)["lease_until"])
        return until > first + timedelta(seconds=2 * LEASE_SECONDS)

    wait_until(kept, "a lease that is kept")
    assert run_now(server, run_id)["waiting"].startswith("waiting for an answer since")
    server.command("run", "answer", run_id, "yes")
    assert reaches(server, run_id, "done")["outcome"] == "attempt 1: yes"


@pytest.mark.parametrize("answered", ["before the next attempt", "while it asks again"])
def test_the_question_of_a_killed_runner_is_asked_once_and_its_answer_goes_to_the_next(
    server: DevServer, agent: str, start: Started, tmp_path: Path, answered: str
) -> None:
    run_id = launch(server, agent)
    first = start(script(tmp_path, ASKS), agent, "60")
    wait_until(lambda: bool(open_asks(server, run_id)), "a question")
    first.send_signal(signal.SIGKILL)
    first.wait()
    if answered == "before the next attempt":
        server.call("POST", f"/runs/{run_id}/answer", {"answer": "yes"})
    second = start(script(tmp_path, ASKS), agent, "60")
    if answered == "while it asks again":
        says(server, run_id, f"attempt 2 by {second.pid}")
        server.call("POST", f"/runs/{run_id}/answer", {"answer": "yes"})
    run = reaches(server, run_id, "done")
    assert (run["outcome"], run["attempts"]) == ("attempt 2: yes", 2)
    assert [ask["state"] for ask in run["asks"]] == ["answered"]


NEEDS = """
runner = Runner(wait_seconds=1)
@runner.agent(sys.argv[1])
async def work(run: Run) -> str:
    region = await run.needs_input("Which region?")
    return f"attempt {run.attempt}: {region}"
runner.run()
"""


def test_a_run_that_needs_input_is_held_by_nobody_and_any_runner_goes_on_with_it(
    server: DevServer, agent: str, start: Started, tmp_path: Path
) -> None:
    run_id = launch(server, agent)
    first = start(script(tmp_path, NEEDS), agent)
    run = reaches(server, run_id, "needs_input")
    assert (run["runner"], run["attempts"]) == (None, 0)
    first.send_signal(signal.SIGINT)
    assert first.wait(PATIENCE_SECONDS) == 0
    server.call("POST", f"/runs/{run_id}/answer", {"answer": "eu"})
    assert run_now(server, run_id)["state"] == "queued"
    start(script(tmp_path, NEEDS), agent)
    assert reaches(server, run_id, "done")["outcome"] == "attempt 1: eu"


def test_a_cancelled_run_that_asks_stops_asking(
    server: DevServer, agent: str, start: Started, tmp_path: Path
) -> None:
    run_id = launch(server, agent)
    start(script(tmp_path, ASKS), agent, "60")
    wait_until(lambda: bool(open_asks(server, run_id)), "a question")
    server.call("POST", f"/runs/{run_id}/cancel", {})
    run = reaches(server, run_id, "cancelled")
    assert [ask["state"] for ask in run["asks"]] == ["closed"]
