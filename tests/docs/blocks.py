"""Pages as what they ask a reader to do: their fenced blocks, in order, and a terminal to do it in.

A comment in front of a block says how to run it, one behind it what to wait for; neither is seen by readers:

    <!-- not run: why -->        skipped                  <!-- until: DEMO-1 in review -->
    <!-- another terminal -->    left running             <!-- until: counter is served -->
    <!-- may be cut off -->      exit 75 will do          <!-- until: 1 dead letter -->
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mainspring.testing import DevServer, wait_until

ROOT = Path(__file__).parents[2]
_PIECE = re.compile(
    r"<!-- (?P<note>[^>]*?) -->|^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_MARKS = ("not run", "another terminal", "may be cut off")
TRY_AGAIN = 75


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block and the mark in front of it."""

    language: str
    text: str
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Until:
    """What a reader sees happen before they go on."""

    what: str


def steps_of(page: Path) -> Iterator[Block | Until]:
    """Yield a page's blocks and waits, in order."""
    mark = ""
    for found in _PIECE.finditer(page.read_text("utf-8")):
        note = found["note"]
        if note is None:
            yield Block(found["language"], found["text"], mark)
            mark = ""
        elif note.startswith("until: "):
            yield Until(note.removeprefix("until: "))
        elif note.startswith(_MARKS):
            mark = note
    assert not mark, f"{page.name}: {mark} stands in front of nothing"


@dataclass(slots=True)
class Terminal:
    """A folder like a checkout's, where a `mainspring dev` serves; what is started in it ends with it."""

    server: DevServer
    folder: Path
    environment: Mapping[str, str]
    said: str = ""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def do(self, step: Block | Until) -> None:
        """Do what a step asks for; fail as a reader would notice."""
        match step:
            case Until(what):
                self._wait(what)
            case Block(language="sh", mark=mark) if not mark.startswith("not run"):
                self._run(step)
            case Block(language="text", text=text):
                self._has_said(text)
            case _:
                pass

    def _run(self, block: Block) -> None:
        script = block.text.replace("http://127.0.0.1:7700", self.server.url())
        argv = ["bash", "-euo", "pipefail", "-c", script]
        if block.mark == "another terminal":
            self._stop()  # "in place of the runner above"
            self.started.append(
                subprocess.Popen(argv, cwd=self.folder, env=dict(self.environment), start_new_session=True)
            )
            return
        done = subprocess.run(
            argv, cwd=self.folder, env=dict(self.environment), capture_output=True, text=True, check=False
        )
        self.said = done.stdout
        fine = {0, TRY_AGAIN} if block.mark == "may be cut off" else {0}
        assert done.returncode in fine, f"{block.text}\nexit {done.returncode}\n{done.stdout}{done.stderr}"

    def _has_said(self, text: str) -> None:
        """Each line that a page shows was printed; … stands for anything."""
        for line in filter(None, map(str.strip, text.splitlines())):
            pattern = ".*".join(re.escape(part.strip()) for part in line.split("…"))
            assert re.search(pattern, self.said), f"not printed: {line}\nbut:\n{self.said}"

    def _wait(self, what: str) -> None:
        match what.split():
            case [card, "in", state]:
                wait_until(lambda: self.server.call("GET", f"/cards/{card}")["state"] == state, what)
            case [agent, "is", "served"]:
                wait_until(lambda: self._is_served(agent), what)
            case [count, "dead", "letter" | "letters"]:
                wait_until(lambda: len(self.server.call("GET", "/desk")["data"]) == int(count), what)
            case [card, "has", "a", "run"]:
                wait_until(lambda: bool(self.server.call("GET", f"/runs?card={card}")["data"]), what)
            case _:
                raise AssertionError(f"nobody knows how to wait for: {what}")

    def _is_served(self, agent: str) -> bool:
        return any(
            one["handle"] == agent and one["served"] for one in self.server.call("GET", "/agents")["data"]
        )

    def _stop(self) -> None:
        while self.started:
            process = self.started.pop()
            os.killpg(process.pid, signal.SIGINT)
            process.wait(30)

    def close(self) -> None:
        """End what was started."""
        self._stop()


@contextmanager
def terminal(server: DevServer, folder: Path) -> Iterator[Terminal]:
    """Open a terminal in a folder that has what a checkout has, and whose `mainspring dev` is `server`."""
    (folder / ".mainspring").symlink_to(server.state)
    for name in ("examples", "docs"):
        (folder / name).symlink_to(ROOT / name)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAINSPRING_", "XDG_"))}
    programs = str(Path(sys.executable).parent)
    opened = Terminal(
        server,
        folder,
        kept
        | {
            "HOME": str(folder),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "NO_COLOR": "1",
            "PYTHONPATH": str(ROOT),
        },
    )
    try:
        yield opened
    finally:
        opened.close()
