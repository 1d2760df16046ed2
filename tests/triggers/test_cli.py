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

    app = create_app(SimpleNamespace(rules=house.rules, tokens=Tokens()))
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
    assert "ready to echo  yes" in out
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
