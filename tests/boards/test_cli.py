"""`mainspring board` and `mainspring card` against a listening server: what a person types, what a program reads."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace

import pytest
import uvicorn

from mainspring.agents.tokens import Holder
from mainspring.cli import main
from mainspring.ids import new_id
from mainspring.operators.deeds import DeedService
from mainspring.server.app import create_app

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
        from contextlib import nullcontext

        return nullcontext()


@pytest.fixture
async def cli(house, monkeypatch, capsys) -> AsyncIterator[Run]:
    """`await cli("card", "list")` → exit code, stdout, stderr."""

    class Secrets:
        async def authenticate(self, secret: str) -> Holder | None:
            return (
                Holder(token_id=new_id(), actor=house.ana, kind="user", role="operator")
                if secret == "s"
                else None
            )

    app = create_app(SimpleNamespace(boards=house.boards, tokens=Secrets(), audit=DeedService(house.db)))
    sock = socket.create_server(("127.0.0.1", 0))
    server = Listening(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    await server.ready.wait()
    monkeypatch.setenv("MAINSPRING_URL", f"http://127.0.0.1:{sock.getsockname()[1]}")
    monkeypatch.setenv("MAINSPRING_TOKEN", "s")

    async def run(*argv: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield run
    server.should_exit = True
    await serving


async def test_a_board_and_a_card_from_the_command_line(cli):
    code, out, _ = await cli(
        "board", "create", "dev", "Development", "--state", "todo", "--state", "ready:eligible",
        "--state", "done:terminal", "--reflect", "done=done",
    )  # fmt: skip
    assert (code, out.splitlines()[1:]) == (
        0,
        ["states   todo, ready:eligible, done:terminal", "reflect  done=done"],
    )
    code, _, err = await cli("board", "create", "still", "--state", "todo")
    assert (code, "will move no card here" in err) == (0, True)
    code, out, _ = await cli("board", "list", "--json")
    assert [json.loads(line)["key"] for line in out.splitlines()] == ["OPS", "DEV", "STILL"]
    code, out, _ = await cli(
        "card", "create", "DEV", "Mend the pump", "--label", "Bug", "--label", "p1", "--agent", "echo",
        "--field", "n=1", "--field", "who=ana",
    )  # fmt: skip
    assert (code, out.strip()) == (0, "DEV-1  [todo]  Mend the pump #bug #p1  → echo  (version 1)")
    code, out, _ = await cli("card", "move", "dev-1", "ready", "--if-version", "1", "--json")
    assert (code, json.loads(out)["state"], json.loads(out)["fields"]) == (0, "ready", {"n": 1, "who": "ana"})
    code, out, _ = await cli("card", "label", "DEV-1", "new", "--remove", "bug", "--json")
    assert json.loads(out)["labels"] == ["new", "p1"]
    code, out, _ = await cli("card", "edit", "DEV-1", "--field", "fixed=true", "--drop-field", "n", "--json")
    assert json.loads(out)["fields"] == {"who": "ana", "fixed": True}
    code, out, _ = await cli("card", "assign", "DEV-1", "--to", "qa", "--unpin", "--json")
    assert (json.loads(out)["assignee"], json.loads(out)["agent"]) == ("qa", None)
    code, out, _ = await cli("card", "list", "--board", "DEV", "--label", "new")
    assert (code, out.splitlines()[1].split()[:2]) == (0, ["DEV-1", "ready"])
    code, out, _ = await cli("card", "show", "DEV-1")
    assert (code, "Mend the pump" in out) == (0, True)
    code, _, err = await cli("card", "delete", "DEV-1")
    assert (code, err) == (0, "DEV-1 is deleted\n")


async def test_each_refusal_has_its_exit_code(cli):
    await cli("card", "create", "OPS", "t")
    await cli("card", "move", "OPS-1", "doing")
    assert (await cli("card", "show", "OPS-9"))[0] == 3
    code, out, _ = await cli("card", "move", "OPS-1", "done", "--if-version", "1", "--json")
    assert (code, json.loads(out)["current"]["changed_by"]["handle"]) == (5, "ana")
    assert (await cli("card", "move", "OPS-1", "nowhere"))[0] == 1
    for usage in (
        ("card", "edit", "OPS-1"),
        ("card", "assign", "OPS-1"),
        ("card", "assign", "OPS-1", "--to", "qa", "--unassign"),
        ("card", "label", "OPS-1"),
        ("card", "create", "OPS", "t", "--field", "x"),
        ("board", "create", "X", "--state", "a:b"),
        ("board", "create", "X", "--state", "a", "--reflect", "done"),
        ("board", "create", "X"),
    ):
        assert (await cli(*usage))[0] == 2, usage


async def test_a_body_is_read_from_stdin(cli, monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("first\nsecond\n"))
    code, out, _ = await cli("card", "create", "OPS", "t", "--body", "-", "--json")
    assert (code, json.loads(out)["body"]) == (0, "first\nsecond\n")
