"""The README is done as it stands: its shell lines against a real `mainspring dev`, its Python against a real database."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.testing import dev_server
from tests.docs.blocks import ROOT, Block, steps_of, terminal

pytestmark = [pytest.mark.processes, pytest.mark.slow]

README = ROOT / "README.md"


def snippet() -> str:
    """The README's one piece of Python."""
    [block] = [step for step in steps_of(README) if isinstance(step, Block) and step.language == "python"]
    return block.text


@pytest.mark.skipif(shutil.which("curl") is None, reason="the README uses curl, and there is none")
def test_its_shell_lines_do_what_they_say(tmp_path: Path) -> None:
    with dev_server() as server, terminal(server, tmp_path) as reader:
        for step in steps_of(README):
            reader.do(step)
        assert server.call("GET", "/verify")["ok"]
        [survivor] = server.call("GET", "/runs?card=DEMO-3")["data"]
        assert survivor["state"] == "done"


async def test_its_python_runs(fresh_database, tmp_path: Path) -> None:
    database = await fresh_database("empty")
    file = tmp_path / "shop.py"
    file.write_text(snippet())
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(file), env=os.environ | {"DATABASE_URL": database.url}, stdout=subprocess.PIPE
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    [line] = printed.decode().splitlines()
    assert line.startswith("mail the receipt for 1001, under the key ")


def test_its_python_has_the_types_that_it_claims(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(snippet())
    cache = ROOT / ".mypy_cache"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_names_targets_that_there_are() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("run", "test", "demo", "bench"):
        assert f"make {target}" in README.read_text("utf-8")
        assert f"\n{target}:" in makefile
