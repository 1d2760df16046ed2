"""A real server process, and the command line as real processes against it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mainspring import wiring
from mainspring.config import Settings
from tests.server.conftest import RULE, free_port, people

DEADLINE_SECONDS = 60.0
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("MAINSPRING_", "XDG_"))}


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command came to."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """What it printed, as one document."""
        return json.loads(self.out)

    def rows(self) -> list[Any]:
        """What it printed, as a document a line."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(slots=True)
class Cli:
    """The command line, as somebody, in a folder and a home of their own."""

    url: str
    tokens: dict[str, str]
    home: Path
    env: dict[str, str] = field(default_factory=dict)

    async def __call__(self, *argv: str, who: str | None = "operator", stdin: str = "") -> Ran:
        """Run one command."""
        known = {"MAINSPRING_URL": self.url, "MAINSPRING_TOKEN": self.tokens[who]} if who else {}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mainspring", *argv,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            cwd=self.home,
            env={**CLEAN, "HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / "config"), **known, **self.env},
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(stdin.encode()), DEADLINE_SECONDS)
        return Ran(process.returncode or 0, out.decode(), err.decode())

    async def ok(self, *argv: str, **more: Any) -> Ran:
        """Run one command that must succeed."""
        ran = await self(*argv, **more)
        assert ran.code == 0, ran
        return ran


@pytest.fixture(scope="session")
async def live(databases, nats_environment) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """A server process with a board, an agent and a rule; its address and a token for each role."""
    database = await databases.create("server")
    services = await wiring.build(Settings(database_url=database.url))
    _, actors, tokens = await people(services)
    await services.agents.create(actors["operator"], handle="echo")
    await services.agents.create(actors["operator"], handle="scribe")
    await services.stop()
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mainspring", "server", "run",
        stdout=asyncio.subprocess.PIPE,
        env={**CLEAN, **nats_environment(database.url), "MAINSPRING_DATABASE_URL": database.url, "MAINSPRING_PORT": str(port), "MAINSPRING_FLOOR_TICK_SECONDS": "0.2"},
    )  # fmt: skip
    assert process.stdout is not None
    assert b"ready" in await asyncio.wait_for(process.stdout.readline(), DEADLINE_SECONDS)
    yield f"http://127.0.0.1:{port}", tokens
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.wait(), DEADLINE_SECONDS)
    await databases.drop(database)


@pytest.fixture
def cli(live, tmp_path) -> Cli:
    """The command line of somebody new, with every role's token at hand."""
    url, tokens = live
    return Cli(url, tokens, tmp_path)


@pytest.fixture(scope="session")
async def furnished(live, tmp_path_factory) -> Cli:
    """The same, once there is a board and a rule."""
    cli = Cli(*live, tmp_path_factory.mktemp("home"))
    await cli.ok(
        "board", "create", "OPS", "Operations", "--state", "todo", "--state", "doing", "--state", "review", "--reflect", "done=review"
    )  # fmt: skip
    for rule in (
        RULE,
        {
            **RULE,
            "name": "letters",
            "do": {"launch": {"agent": "scribe", "prompt": "to {{card.fields.who}}"}},
        },
    ):
        await cli.ok("api", "POST", "rules", "-", stdin=json.dumps(rule))
    return cli
