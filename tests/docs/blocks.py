"""Pages as what they ask a reader to do: their fenced blocks, in order, and a terminal to do it in.

A comment in front of a block says how it is to be run, one behind it what a reader waits for; neither is seen by readers:

    <!-- not run: why -->                           <!-- until: DEMO-1 in review -->
    <!-- another terminal -->                       <!-- until: DEMO-3 has a run -->
    <!-- another terminal, the last one closed -->  <!-- until: counter is served -->
    <!-- save as agent.py -->                       <!-- until: 1 dead letter -->
    <!-- may be cut off -->                         <!-- until: 1 open question -->

Lines of a `text` block that follows were printed by the block before it; … stands for anything.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mainspring.testing import DevServer, wait_until

ROOT = Path(__file__).parents[2]
_PIECE = re.compile(
    r"<!-- (?P<note>[^>]*?) -->|^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_MARKS = (
    "not run",
    "another terminal",
    "save as",
    "may be cut off",
    "may be refused",
    "as a superuser",
    "setup",
)
REFUSED, MAY_BE_DONE = 1, 6
BASH = ("bash", "-euo", "pipefail", "-c")


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
    """A folder and an environment in which a page is done; what is started in it ends with it.

    `ask` gets a path of the API; `replaced` are the words of a page that are others here, such as its port.
    """

    ask: Callable[[str], Any]
    replaced: Mapping[str, str]
    folder: Path
    environment: Mapping[str, str]
    said: str = ""
    code: int = 0
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def do(self, step: Block | Until) -> None:
        """Do what a step asks for; fail where a reader would notice."""
        match self._here(step):
            case Until(what):
                wait_until(lambda: self._holds(what), what)
            case Block(mark=mark, text=text) if mark.startswith("save as "):
                (self.folder / mark.removeprefix("save as ")).write_text(text)
            case Block(language="sh", mark=mark, text=text) if mark.startswith("another terminal"):
                if mark.endswith("the last one closed"):
                    self._close_one()
                self._begin(text)
            case Block(language="sh", mark=mark, text=text) if not mark.startswith("not run"):
                self._run(text, mark)
            case Block(language="text", text=text):
                self._has_said(text)
            case _:
                pass

    def _here(self, step: Block | Until) -> Block | Until:
        """Return a step with the words that are others here."""
        match step:
            case Until(what):
                return Until(self._replaced(what))
            case Block(text=text):
                return replace(step, text=self._replaced(text))

    def _replaced(self, text: str) -> str:
        for word, here in self.replaced.items():
            text = text.replace(word, here)
        return text

    def _begin(self, text: str) -> None:
        environment = dict(self.environment)
        self.started.append(
            subprocess.Popen(
                [*BASH, text],
                cwd=self.folder,
                env=environment,
                start_new_session=True,
                # whoever runs the tests in the background has told them not to hear it; a terminal's programs do
                preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            )
        )

    def _run(self, text: str, mark: str) -> None:
        done = subprocess.run(
            [*BASH, text],
            cwd=self.folder,
            env=dict(self.environment),
            capture_output=True,
            text=True,
            check=False,
        )
        self.said, self.code = done.stdout, done.returncode
        also = {"may be cut off": MAY_BE_DONE, "may be refused": REFUSED}.get(mark, 0)
        assert done.returncode in {0, also}, f"{text}\nexit {done.returncode}\n{done.stdout}{done.stderr}"

    def _has_said(self, text: str) -> None:
        for line in filter(None, map(str.strip, text.splitlines())):
            pattern = ".*".join(re.escape(part.strip()) for part in line.split("…"))
            assert re.search(pattern, self.said), f"not printed: {line}\nbut:\n{self.said}"

    def _holds(self, what: str) -> bool:
        match what.split():
            case [card, "in", state]:
                return bool(self.ask(f"/cards/{card}")["state"] == state)
            case [card, "has", "a", "run"]:
                return bool(self.ask(f"/runs?card={card}")["data"])
            case ["a", "run", "of", agent, "waits"]:
                return bool(self.ask(f"/runs?agent={agent}&state=queued")["data"])
            case [agent, "listens"]:
                sessions = self.ask("/sessions?limit=200")["data"]
                return any(one["agent"] == agent for one in sessions)
            case [agent, "has", "answered", "in", channel]:
                said = self.ask(f"/channels/{channel}/messages?limit=5")["data"]
                return any(one["author"] == agent and not one["held"] for one in said)
            case [agent, "is", "served"]:
                agents = self.ask("/agents")["data"]
                return any(one["handle"] == agent and one["served"] for one in agents)
            case [count, "open", "question"]:
                return len(self.ask("/asks")["data"]) == int(count)
            case [count, "dead", "letter"]:
                return len(self.ask("/desk")["data"]) == int(count)
            case ["a", "webhook", "was", "sent"]:
                return any(one["state"] == "done" for one in self.ask("/effects?kind=webhook")["data"])
            case ["both", "serve"]:
                return bool(self.ask("/boards"))
            case _:
                raise AssertionError(f"nobody knows how to wait for: {what}")

    def _close_one(self) -> None:
        process = self.started.pop()
        os.killpg(process.pid, signal.SIGINT)
        process.wait(30)

    def close(self) -> None:
        """End what was started, the last one first."""
        while self.started:
            self._close_one()


def surroundings(folder: Path) -> dict[str, str]:
    """Return an environment in which this folder is home, our programs are found, and nothing says where a server is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAINSPRING_", "XDG_"))}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return kept | {"HOME": str(folder), "PATH": path, "NO_COLOR": "1", "COLUMNS": "200"}


@contextmanager
def terminal(server: DevServer, folder: Path, **replaced: str) -> Iterator[Terminal]:
    """Open a terminal in a folder that has what a checkout has, and in which `server` is the running `mainspring dev`."""
    (folder / ".mainspring").symlink_to(server.state)
    (folder / "examples").symlink_to(ROOT / "examples")
    opened = Terminal(
        ask=lambda path: server.call("GET", path),
        replaced={"http://127.0.0.1:7700": server.url()} | replaced,
        folder=folder,
        environment=surroundings(folder),
    )
    try:
        yield opened
    finally:
        opened.close()
