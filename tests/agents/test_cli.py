"""Agents, runs and tokens from the command line, against a server on a real socket."""

from __future__ import annotations

import asyncio
import io
import json
import stat
from collections.abc import Awaitable, Callable

import pytest

from mainspring.cli import main

Run = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
async def cli(served, place, monkeypatch, capsys) -> Run:
    """`await cli("agent", "list")` → exit code, stdout, stderr."""
    _, secret = await place.room.tokens.create(place.admin, kind="user", role="operator")
    monkeypatch.setenv("MAINSPRING_URL", served.url)
    monkeypatch.setenv("MAINSPRING_TOKEN", secret)

    async def run(*argv: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


async def test_an_agents_life_from_the_command_line(cli, place):
    code, out, _ = await cli("agent", "create", "coder", "--slots", "2", "--name", "The Coder")
    assert (code, out.strip()) == (
        0, "coder  (The Coder)  no runner serves it  0 running, 0 queued, 2 slots",
    )  # fmt: skip
    agent = (await place.room.agents.get(place.tenant, "coder")).agent.id
    run_id = str(await place.queue(agent))
    code, out, _ = await cli("agent", "show", "@coder")
    assert code == 0
    assert "waiting for a runner" in out
    assert run_id in out
    code, out, _ = await cli("agent", "pause", "coder", "--json")
    assert (code, json.loads(out)["paused"]) == (0, True)
    code, out, _ = await cli("agent", "resume", "coder", "--json")
    assert (code, json.loads(out)["paused"]) == (0, False)
    code, out, _ = await cli("agent", "edit", "coder", "--slots", "3", "--json")
    assert (code, json.loads(out)["slots"], json.loads(out)["name"]) == (0, 3, "The Coder")
    assert (await cli("agent", "edit", "coder"))[0] == 2
    code, out, _ = await cli("agent", "list")
    assert (code, out.splitlines()[1].split()[:3]) == (0, ["coder", "The", "Coder"])
    assert (await cli("agent", "create", "coder"))[0] == 5
    assert (await cli("agent", "show", "nobody"))[0] == 3


@pytest.mark.slow
async def test_a_runs_life_from_the_command_line(cli, place):
    agent = await place.agent(slots=2)
    run_id = str(await place.queue(agent))
    runner = await place.runner("coder")
    work = await runner.take()
    await runner.log(work, ["one", "two"])
    code, out, _ = await cli("run", "logs", run_id)
    assert (code, out.splitlines()) == (0, ["one", "two"])
    following = asyncio.create_task(cli("run", "logs", run_id, "-f", "--json"))
    await runner.log(work, ["three"])
    await runner.complete(work, "failed", error="no field")
    code, out, _ = await following
    assert (code, [json.loads(line)["text"] for line in out.splitlines()]) == (0, ["one", "two", "three"])
    code, out, _ = await cli("run", "show", run_id)
    assert code == 0
    for said in ("[failed]", "because  a card was made", "no field", "laptop", "event 1, launch"):
        assert said in out
    code, out, _ = await cli("run", "list", "--state", "failed", "--json")
    assert [json.loads(line)["id"] for line in out.splitlines()] == [run_id]
    code, out, _ = await cli("run", "retry", run_id)
    assert (code, "[queued]" in out) == (0, True)
    assert (await cli("run", "retry", run_id))[0] == 5
    code, out, _ = await cli("run", "cancel", run_id, "--reason", "not needed")
    assert (code, out.strip().endswith("[cancelled]  not needed")) == (0, True)
    assert (await cli("run", "show", str(agent)))[0] == 3


async def test_tokens_from_the_command_line(cli, place, tmp_path, monkeypatch):
    await place.agent()
    code, out, err = await cli("token", "create", "--account", "vera", "--role", "viewer")
    assert (code, err) == (0, "keep it: it is not shown again\n")
    secret = out.strip()
    holder = await place.room.tokens.authenticate(secret)
    assert (holder.actor.handle, holder.role) == ("vera", "viewer")
    kept = tmp_path / "runner.token"
    code, out, _ = await cli("token", "create", "--kind", "runner", "--agent", "coder", "--to", str(kept))
    assert code == 0
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    runner = kept.read_text().strip()
    assert runner not in out
    assert (await place.room.tokens.authenticate(runner)).kind == "runner"
    before = len(await place.room.tokens.list_tokens(place.tenant))
    assert (await cli("token", "create", "--to", str(tmp_path / "no" / "where")))[0] == 1
    assert len(await place.room.tokens.list_tokens(place.tenant)) == before
    for path in (kept, tmp_path / "refused.token"):
        refused = await cli("token", "create", "--kind", "runner", "--agent", "nobody", "--to", str(path))
        assert refused[0] == 3
    assert [path.name for path in tmp_path.glob("*token*")] == ["runner.token"], "no file without a token"
    assert kept.read_text().strip() == runner
    code, out, _ = await cli("token", "list", "--json")
    [vera] = [row for row in map(json.loads, out.splitlines()) if row["account"] == "vera"]
    assert secret not in out
    assert (await cli("token", "revoke", vera["id"]))[0] == 0
    assert await place.room.tokens.authenticate(secret) is None
    monkeypatch.setenv("MAINSPRING_TOKEN", secret)
    assert (await cli("agent", "list"))[0] == 4


async def test_questions_are_listed_and_answered_from_the_command_line(cli, place, monkeypatch):
    agent = await place.agent(slots=2)
    run_id, other = str(await place.queue(agent)), str(await place.queue(agent))
    runner = await place.runner("coder")
    assert (await cli("ask", "list"))[1:] == ("", "nothing\n")
    ask = await runner.ask(await runner.begin(slots=(0,)), "Touch the schema?", "yes", "no")
    await runner.complete(await runner.begin(slots=(1,)), "needs_input", text="Which region?")

    code, out, _ = await cli("ask", "list")
    assert code == 0
    assert [line.split()[1:4] for line in out.splitlines()[1:]] == [
        ["coder", "OPS-1", "Touch"],
        ["coder", "OPS-1", "Which"],
    ]
    code, out, _ = await cli("run", "show", run_id)
    assert "waiting for an answer since" in out
    assert "Touch the schema?: open" in out
    code, out, err = await cli("run", "answer", run_id)  # no terminal to ask at
    assert (code, out) == (2, "")
    assert "Touch the schema?" in err
    assert "yes, no" in err
    code, _, err = await cli("run", "answer", run_id, "perhaps")
    assert (code, "yes, no" in err) == (1, True)
    code, out, _ = await cli("run", "answer", run_id, "YES")
    assert (code, out.splitlines()[-1]) == (0, "answered  yes, by admin")
    assert (await cli("run", "answer", run_id, "no"))[0] == 5
    assert (await cli("run", "answer", run_id))[0] == 5
    code, _, err = await cli("ask", "answer", str(ask.id), "no")
    assert (code, "admin has answered it: yes" in err) == (5, True)

    monkeypatch.setattr("sys.stdin", io.StringIO("eu\n"))
    code, out, _ = await cli("run", "answer", other, "-", "--json")
    assert (code, json.loads(out)["answer"]) == (0, "eu")
    code, out, _ = await cli("ask", "list", "--all", "--json")
    assert [json.loads(line)["answer"] for line in out.splitlines()] == ["yes", "eu"]
    code, out, _ = await cli("ask", "show", str(ask.id))
    assert (code, out.splitlines()[0]) == (0, "Touch the schema?")
    assert (await cli("ask", "show", run_id))[0] == 3


async def test_a_run_that_asks_two_things_is_answered_by_the_questions_ids(cli, place):
    run_id = str(await place.queue(await place.agent()))
    runner = await place.runner("coder")
    work = await runner.begin()
    one, two = await runner.ask(work, "One?"), await runner.ask(work, "Two?")
    code, _, err = await cli("run", "answer", run_id)
    assert (code, str(one.id) in err, str(two.id) in err) == (5, True, True)
    assert (await cli("run", "answer", run_id, "yes"))[0] == 5
    assert (await cli("ask", "answer", str(two.id), "yes"))[0] == 0
    assert (await cli("run", "answer", run_id, "no"))[0] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        ("--agent", "a b"),
        ("--agent", "coder", "--slots", "0"),
        ("--agent", "coder", "--timeout-seconds", "0"),
        ("--agent", "echo", "--builtin"),
        ("--agent", "coder", "--wait-seconds", "61"),
    ],
)
async def test_a_runner_that_is_misdeclared_is_a_mistake_in_the_command(cli, wrong):
    code, out, err = await cli("runner", "start", "--exec", "true", *wrong)
    assert (code, out) == (2, "")
    assert err.startswith("mainspring: ")
