"""`mainspring rule` against a listening server: what a person types, what a program reads."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from io import StringIO
from types import SimpleNamespace

import pytest
import uvicorn

from mainspring.agents.tokens import Holder
from mainspring.cli import main
from mainspring.ids import new_id
from mainspring.operators.deeds import DeedService
from mainspring.server.app import create_app

from .conftest import House

Run = Callable[..., Awaitable[tuple[int, str, str]]]


class Listening(uvicorn.Server):
    """A server that says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets=None) -> None:
        await super().startup(sockets)
        self.ready.set()

    def capture_signals(self):
        return nullcontext()


@pytest.fixture
async def cli(house: House, monkeypatch, capsys) -> AsyncIterator[Run]:
    """`await cli("rule", "list")` → exit code, stdout, stderr."""

    class Tokens:
        async def authenticate(self, secret: str) -> Holder | None:
            return Holder(token_id=new_id(), actor=house.ana, kind="user", role="operator")

    app = create_app(
        SimpleNamespace(
            rules=house.rules, preview=house.preview, tokens=Tokens(), audit=DeedService(house.db)
        )
    )
    sock = socket.create_server(("127.0.0.1", 0))
    server = Listening(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    await server.ready.wait()
    monkeypatch.setenv("MAINSPRING_URL", f"http://127.0.0.1:{sock.getsockname()[1]}")
    monkeypatch.setenv("MAINSPRING_TOKEN", "s")

    async def run(*argv: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", StringIO(stdin))
        code = await asyncio.to_thread(main, argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield run
    server.should_exit = True
    await serving


async def test_a_rule_from_flags_and_its_life(cli):
    code, out, err = await cli(
        "rule", "create", "ready to echo", "--kind", "card.moved", "--board", "ops", "--board", "nope", "--to-state", "Ready",
        "--label-all", "go", "--launch", "echo", "--prompt", "do {{card.title}}\nnow", "--consume-label", "--recheck",
    )  # fmt: skip
    assert (code, err) == (0, "/when/boards: there is no board NOPE\n")
    assert out.splitlines()[2:] == [
        "when     kinds: card.moved; boards: NOPE, OPS; to_states: ready; labels_all: go",
        "launch   echo",
        "options  consume_label, recheck",
        "prompt   do {{card.title}}",
        "         now",
    ]
    code, out, _ = await cli("rule", "list")
    assert code == 0
    assert "ready to echo  enabled" in out
    code, out, _ = await cli("rule", "disable", "Ready to Echo", "--if-version", "1", "--json")
    assert (code, json.loads(out)["enabled"], json.loads(out)["version"]) == (0, False, 2)
    code, _, err = await cli("rule", "enable", "ready to echo", "--if-version", "1")
    assert (code, "version 2, not 1" in err) == (5, True)
    code, out, _ = await cli("rule", "enable", "ready to echo")
    assert (code, "enabled, version 3" in out) == (0, True)
    code, out, _ = await cli("rule", "show", "ready to echo", "--json")
    assert json.loads(out)["do"]["launch"]["prompt"] == "do {{card.title}}\nnow"
    assert (await cli("rule", "delete", "ready to echo"))[0] == 0
    code, _, err = await cli("rule", "show", "ready to echo")
    assert (code, "no rule ready to echo" in err) == (3, True)


async def test_every_term_and_option_has_a_flag(cli):
    code, out, _ = await cli(
        "rule", "create", "all", "--kind", "card.moved", "--field", "team=a", "--field", "urgent=true",
        "--field", 'size=["s", 1]', "--min-trust", "stranger", "--launch", "echo", "--max-event-age", "60", "--cooldown", "1.5",
        "--max-per-hour", "5", "--while-running", "queue_one", "--queued-timeout", "30", "--json",
    )  # fmt: skip
    made = json.loads(out)
    assert code == 0
    assert made["when"] == {
        "kinds": ["card.moved"],
        "fields": {"team": "a", "urgent": True, "size": [1, "s"]},
        "min_trust": "stranger",
    }
    assert made["options"] == {
        "max_event_age_seconds": 60,
        "cooldown_seconds": 1.5,
        "max_per_hour": 5,
        "while_running": "queue_one",
        "queued_timeout_seconds": 30,
    }
    code, out, _ = await cli("rule", "show", "all")
    assert "fields: size = 1, s, team = a, urgent = true" in out
    assert "while_running = queue_one" in out
    code, out, _ = await cli("rule", "create", "pin", "--kind", "card.moved", "--promote", "echo")
    assert (code, "promote  echo" in out, "prompt" in out) == (0, True, False)
    code, out, _ = await cli(
        "rule", "create", "alarm", "--kind", "rule.changed", "--change", "paused", "--launch", "echo"
    )
    assert (code, "changes: paused" in out) == (0, True)
    assert (await cli("rule", "list"))[1].count("promote echo") == 1
    assert (await cli("rule", "create", "x", "--field", "team", "--launch", "echo"))[0] == 2


@pytest.mark.parametrize(
    ("wrong", "flags", "exit_code", "told"),
    [
        ({"do": []}, (), 1, "/do"),
        ({"do": []}, ("--launch", "echo"), 2, ": do must be an object"),
        ({"do": {"launch": "echo"}}, ("--prompt", "p"), 2, "do.launch must be an object"),
        ({"when": []}, ("--kind", "card.moved"), 2, "when must be an object"),
        ({"options": 1}, ("--recheck",), 2, "options must be an object"),
    ],
)
async def test_a_file_that_is_no_rule_is_refused_in_words_with_and_without_flags(
    cli, wrong, flags, exit_code, told
):
    rule = {"name": "r", "when": {"kinds": ["card.moved"]}, "do": {"launch": {"agent": "echo"}}}
    code, out, err = await cli("rule", "create", "--file", "-", *flags, stdin=json.dumps({**rule, **wrong}))
    assert (code, out, told in err, "Traceback" in err) == (exit_code, "", True, False), err


async def test_flags_are_laid_over_what_a_file_leaves_out(cli):
    read = {"name": "r", "when": {"kinds": ["card.moved"]}, "do": None}
    code, out, _ = await cli(
        "rule",
        "create",
        "--file",
        "-",
        "--board",
        "ops",
        "--launch",
        "echo",
        "--json",
        stdin=json.dumps(read),
    )
    made = json.loads(out)
    assert (code, made["when"]) == (0, {"kinds": ["card.moved"], "boards": ["OPS"]})
    assert made["do"]["launch"]["agent"] == "echo"


async def test_a_rule_is_paused_resumed_and_tried_out(cli, house, tmp_path):
    await cli("rule", "create", "r", "--kind", "card.moved", "--to-state", "ready", "--launch", "echo")
    code, out, _ = await cli("rule", "pause", "r", "--because", "looking into it")
    assert (code, "r  paused" in out, "paused   looking into it" in out) == (0, True, True)
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    assert "looking into it; 1 held" in (await cli("rule", "show", "r"))[1]
    for argv in (["r"], ["r", "--run", "--discard"]):
        code, _, err = await cli("rule", "resume", *argv)
        assert (code, "--run or --discard" in err) == (2, True)
    code, out, err = await cli("rule", "resume", "r", "--run")
    assert (code, err, "r  enabled" in out) == (0, "1 held: they run now\n", True)
    assert (await cli("rule", "resume", "r", "--discard"))[0] == 5
    code, out, _ = await cli("rule", "test", "r", "--last", "50")
    assert code == 0
    assert "card.moved WEB-1: launch echo" in out
    assert "1 of 5 events match, 1 would happen; missed: 4 by kinds" in out
    rule = {"when": {"to_states": ["doing"]}, "do": {"launch": {"agent": "echo"}}}
    file = tmp_path / "rule.json"
    file.write_text(json.dumps(rule))
    code, out, _ = await cli("rule", "test", "--file", str(file), "--json")
    assert (code, json.loads(out)["matched"]) == (0, 0)
    assert (await cli("rule", "create", "test", "--kind", "card.moved", "--launch", "echo"))[0] == 0
    assert "test  enabled" in (await cli("rule", "show", "test"))[1]
    assert (await cli("rule", "test", "test"))[0] == 0
    assert (await cli("rule", "test"))[0] == 2
    assert (await cli("rule", "test", "none"))[0] == 3


async def test_a_move_is_previewed(cli, house):
    await cli("rule", "create", "r", "--kind", "card.moved", "--to-state", "ready", "--launch", "echo")
    await cli("rule", "create", "s", "--kind", "card.moved", "--to-state", "doing", "--launch", "flaky")
    await cli("rule", "create", "k", "--kind", "run.done", "--launch", "flaky")
    await cli("rule", "create", "off", "--kind", "card.moved", "--to-state", "ready", "--launch", "flaky")
    await cli("rule", "disable", "off")
    card = await house.card()
    code, out, _ = await cli("card", "preview", card.key, "ready")
    assert code == 0
    assert out.splitlines() == [
        "WEB-1  inbox → ready",
        "✓ launch echo (rule r): queued, and waits for a runner",
        "  rule off: would match: not in force: disabled",
        "  rule s: no: to_states: it went to ready, the rule asks for doing",
        "  for other kinds of event: rule k",
        "  no pin launches: the card would not be both pinned to an agent and in an eligible state",
    ]
    assert (await cli("card", "move", card.key, "ready", "--dry-run"))[1] == out
    assert (await house.boards.get_card(house.tenant, card.key)).state == "inbox"
    code, out, _ = await cli("card", "preview", card.key, "inbox")
    assert (code, out) == (
        0,
        "WEB-1 is in inbox already: nothing would happen; why nothing did: mainspring explain WEB-1\n",
    )


async def test_a_rule_from_a_file_or_stdin_with_flags_laid_over_it(cli, tmp_path):
    rule = {"name": "r", "when": {"kinds": ["run.failed"]}, "do": {"launch": {"agent": "echo"}}}
    file = tmp_path / "rule.json"
    file.write_text(json.dumps(rule))
    code, out, _ = await cli("rule", "create", "--file", str(file), "--json")
    assert (code, json.loads(out)["when"]) == (0, {"kinds": ["run.failed"]})
    code, out, _ = await cli(
        "rule", "create", "s", "--file", "-", "--agent", "flaky", "--prompt", "{{run.error}}", "--disabled", "--json",
        stdin=json.dumps(rule),
    )  # fmt: skip
    made = json.loads(out)
    assert (code, made["name"], made["enabled"]) == (0, "s", False)
    assert made["when"] == {"kinds": ["run.failed"], "agents": ["flaky"]}
    assert made["do"] == {"launch": {"agent": "echo", "prompt": "{{run.error}}"}}
    code, out, _ = await cli(
        "rule", "create", "t", "--launch", "echo", "--prompt", "-", "--board", "OPS", "--json", stdin="told"
    )
    assert (code, json.loads(out)["do"]["launch"]["prompt"]) == (0, "told")


@pytest.mark.parametrize(
    ("argv", "stdin", "code", "says"),
    [
        (["x", "--launch", "echo", "--kind", "card.move"], "", 1, "did you mean card.moved?"),
        (["x", "--kind", "card.moved"], "", 1, "/do: is missing"),
        (["--file", "/nowhere/rule.json"], "", 3, "No such file"),
        (["--file", "-"], "{", 2, "is no JSON"),
        (["--file", "-"], "[]", 2, "one JSON object"),
        (["x", "--file", "-", "--prompt", "-"], "{}", 2, "cannot both read stdin"),
    ],
)
async def test_what_cannot_be_is_said_so(cli, argv, stdin, code, says):
    found, out, err = await cli("rule", "create", *argv, stdin=stdin)
    assert (found, out) == (code, "")
    assert says in err


async def test_a_rule_that_calls_a_webhook_shows_its_secret_once(cli: Run) -> None:
    code, out, _ = await cli(
        "rule", "create", "hook", "--kind", "card.moved", "--webhook", "https://example.com/x"
    )
    assert code == 0
    assert "webhook  https://example.com/x" in out
    assert "secret   whsec_" in out
    code, out, _ = await cli("rule", "show", "hook")
    assert (code, "whsec_" in out) == (0, False)
    code, out, _ = await cli("rule", "list")
    assert "webhook https://example.com/x" in out
