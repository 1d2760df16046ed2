"""The how-to pages are done as they stand, most of them on one `mainspring dev`; one of them on a PostgreSQL of its reader's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from mainspring.embedded import ports
from mainspring.testing import DevServer, dev_server
from tests.docs.blocks import ROOT, Block, Terminal, Until, steps_of, surroundings, terminal

pytestmark = [pytest.mark.processes, pytest.mark.slow]

HOWTO = ROOT / "docs" / "how-to"
ON_DEV = (
    "first-agent",
    "always-on-agent",
    "runner-exec",
    "write-rules",
    "why-nothing-happened",
    "work-the-desk",
    "ask-a-person",
    "chat",
    "webhooks",
)


def test_every_page_is_done_by_a_test() -> None:
    assert {page.stem for page in HOWTO.glob("*.md")} == {*ON_DEV, "own-postgresql", "library"}


@pytest.fixture(scope="module")
def server() -> Iterator[DevServer]:
    """One server for all pages that need no other."""
    with dev_server(webhook_allow_private=True) as running:
        yield running


@pytest.mark.parametrize("name", ON_DEV)
def test_a_page_does_what_it_says(server: DevServer, name: str, tmp_path: Path) -> None:
    newest = max(card["number"] for card in server.call("GET", "/cards?limit=200")["data"])
    # on a fresh server, as its reader's, the first new card is DEMO-3
    with terminal(server, tmp_path, **{"DEMO-3": f"DEMO-{newest + 1}"}) as reader:
        for step in steps_of(HOWTO / f"{name}.md"):
            reader.do(step)
    assert server.call("GET", "/verify")["ok"]


def test_its_pythons_types_are_right(tmp_path: Path) -> None:
    for page in HOWTO.glob("*.md"):
        for n, step in enumerate(steps_of(page)):
            if isinstance(step, Block) and step.language == "python":
                (tmp_path / f"{page.stem.replace('-', '_')}_{n}.py").write_text(step.text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class TwoInstances:
    """A reader who follows the page on two instances."""

    def __init__(self, url: str, folder: Path, nats: dict[str, str]) -> None:
        held = ports.hold_row(31_000, 2)
        first = held[0].getsockname()[1]
        for sock in held:
            sock.close()
        self.urls = [f"http://127.0.0.1:{first + n}" for n in range(2)]
        self.folder = folder
        self.terminal = Terminal(
            ask=self.ask,
            replaced={"7701": str(first), "7702": str(first + 1)},
            folder=folder,
            environment=surroundings(folder) | nats | {"MAINSPRING_DATABASE_URL": url},
        )

    def ask(self, path: str) -> Any:
        """Ask both, with the token that the page made."""
        headers = {"Authorization": f"Bearer {(self.folder / 'operator.token').read_text().strip()}"}
        answers = [httpx.get(f"{url}/api/v1{path}", headers=headers) for url in self.urls]
        assert all(answer.is_success for answer in answers)
        return answers[0].json()


async def test_two_instances_share_a_postgresql_of_its_readers_own(
    fresh_database: Callable[..., Any], tmp_path: Path, nats_environment: Callable[[str], dict[str, str]]
) -> None:
    database = await fresh_database("empty")
    reader = TwoInstances(database.url, tmp_path, nats_environment(database.url))
    try:
        for step in steps_of(HOWTO / "own-postgresql.md"):
            match step:
                case Block(mark="as a superuser: roles.sql", text=text):
                    # elsewhere in this test run the login may have been given the roles already
                    if reader.terminal.code:
                        admin = await asyncpg.connect(**database.admin)
                        await admin.execute((tmp_path / "roles.sql").read_text())
                        await admin.close()
                    reader.terminal.do(Block("sh", text))
                case Block() | Until():
                    reader.terminal.do(step)
    finally:
        reader.terminal.close()
