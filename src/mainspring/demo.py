"""The five-minute journey without a head: `python -m mainspring.demo`, or `make demo`.

Takes a fresh `mainspring dev` with two server processes; leaves each promise shown with its evidence, one line a step, and
nothing running. The servers are really killed. Exits 1 when a step does not hold, or when anything was lost or doubled.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

PATIENCE_SECONDS = 30.0
START_SECONDS = 60.0
KILL_POINTS = ("drain.before_commit", "launch.after_run")
KILL_TRIES_MAX = 5

Card = dict[str, Any]
Run = dict[str, Any]


class NotAsPromised(Exception):
    """A step did not hold."""


@dataclass(slots=True)
class Count:
    """What the demo has seen come true, and what it has not."""

    steps: int = 0
    owed: int = 0
    lost: int = 0
    doubled: int = 0


@dataclass(slots=True)
class Demo:
    """A running `mainspring dev`, as its user sees it: two addresses, a token, and files in a state folder."""

    state: Path
    process: subprocess.Popen[bytes]
    http: httpx.Client
    count: Count = field(default_factory=Count)

    # what is there ------------------------------------------------------------------------------------------

    def holder(self) -> dict[str, Any]:
        """What the running `mainspring dev` says of itself."""
        said: dict[str, Any] = json.loads((self.state / "dev.json").read_text())
        return said

    def pid(self, name: str) -> int | None:
        """The pid of a child by its name, None while it is down."""
        pid: int | None = self.holder()["processes"].get(name)
        return pid

    def call(self, method: str, path: str, body: Any = None, *, server: int = 1) -> Any:
        """Call one of the two servers; raise NotAsPromised with its answer when it refuses."""
        url = self.holder()["urls"][server - 1]
        answer = self.http.request(method, f"{url}/api/v1{path}", json=body)
        if answer.is_error:
            raise NotAsPromised(f"{method} {path} answered {answer.status_code}: {answer.text}")
        return answer.json()

    def runs_of(self, card: Card, *, server: int = 2) -> list[Run]:
        """The runs of a card, oldest first."""
        page = self.call("GET", f"/runs?card={card['key']}", server=server)
        return sorted(page["data"], key=lambda run: str(run["id"]))

    def command(self, *words: str) -> str:
        """Run the command line, as a user would; return what it printed."""
        environment = os.environ | {"MAINSPRING_STATE": str(self.state), "NO_COLOR": "1", "COLUMNS": "110"}
        environment |= {
            "MAINSPRING_URL": self.holder()["urls"][0],
            "MAINSPRING_TOKEN": self.holder()["token"],
        }
        done = subprocess.run(
            [sys.executable, "-m", "mainspring", *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise NotAsPromised(
                f"mainspring {' '.join(words)} exited {done.returncode}: {done.stdout}{done.stderr}"
            )
        return done.stdout

    # telling ------------------------------------------------------------------------------------------------

    def step(self, what: str, *evidence: str) -> None:
        """Say that a step held, and what shows it."""
        self.count.steps += 1
        tell(f"✓ {self.count.steps}. {what}")
        for line in evidence:
            tell(f"     {line}")

    def settled(self, card: Card, *, state: str, runs: int = 1) -> list[Run]:
        """Wait until a card's runs are over and it stands in `state`; count what is missing or too many."""
        wait_until(
            lambda: any(run["state"] in ("done", "failed") for run in self.runs_of(card)),
            f"a finished run of {card['key']}",
        )
        wait_until(
            lambda: self.call("GET", f"/cards/{card['key']}", server=2)["state"] == state,
            f"{card['key']} in {state}",
        )
        found = self.runs_of(card)
        self.count.owed += runs
        self.count.lost += max(0, runs - len(found))
        self.count.doubled += max(0, len(found) - runs)
        return found


def tell(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def wait_until(holds: Callable[[], bool], what: str, *, seconds: float = PATIENCE_SECONDS) -> None:
    """Ask until it holds; a server that is down meanwhile is asked again."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(httpx.TransportError, FileNotFoundError, json.JSONDecodeError):
            if holds():
                return
        time.sleep(0.05)
    raise NotAsPromised(f"{seconds:.0f} s have passed without {what}")


# the journey ----------------------------------------------------------------------------------------------------


def two_servers(demo: Demo) -> None:
    """Two server processes share one database."""
    urls = demo.holder()["urls"]
    demo.step(
        "two server processes share one PostgreSQL",
        *(
            f"{name}: pid {demo.pid(name)} at {url}"
            for name, url in zip(("server-1", "server-2"), urls, strict=True)
        ),
    )


def set_the_table(demo: Demo) -> None:
    """A board, and two rules on it."""
    states = [
        {"name": "todo"},
        {"name": "doing"},
        {"name": "review"},
        {"name": "stuck"},
        {"name": "done", "terminal": True},
    ]
    reflect = {"running": "doing", "done": "review", "failed": "stuck"}
    board = demo.call(
        "POST", "/boards", {"key": "SHIP", "name": "Shipping", "states": states, "reflect": reflect}
    )
    when = {"kinds": ["card.moved"], "boards": ["SHIP"], "to_states": ["doing"]}
    for agent, term in (("echo", "labels_none"), ("flaky", "labels_all")):
        demo.call(
            "POST",
            "/rules",
            {
                "name": f"shipping → {agent}",
                "when": {**when, term: ["poison"], "actors": ["members"]},
                "do": {"launch": {"agent": agent, "prompt": "ship {{card.key}}: {{card.title}}"}},
            },
        )
    rules = [rule["name"] for rule in demo.call("GET", "/rules")["data"]]
    demo.step("a board and two rules", f"board {board['key']}, rules: {', '.join(rules)}")


def new_card(demo: Demo, title: str, **more: Any) -> Card:
    """Make a card in the first column."""
    card: Card = demo.call("POST", "/cards", {"board": "SHIP", "title": title, **more})
    return card


def a_card_moves(demo: Demo) -> None:
    """A move launches an agent, whose outcome moves the card on."""
    card = new_card(demo, "the red parcel")
    started = time.monotonic()
    demo.call("POST", f"/cards/{card['key']}/move", {"state": "doing"})
    [run] = demo.settled(card, state="review")
    seconds = time.monotonic() - started
    demo.step(
        f"{card['key']} moved to doing: launched, run, reflected to review",
        f"run {run['id']} by {run['agent']}: {run['outcome']}, {seconds:.2f} s from move to review",
    )


def a_server_is_killed(demo: Demo, point: str) -> None:
    """A server dies at a fault point, with a card's launch half-way; the launch happens once all the same."""
    victim = demo.pid("server-1")
    assert victim is not None
    demo.call("POST", "/dev/faults", {"point": point})
    cards: list[Card] = []
    # the other server may carry the card before the victim gets to it: then the fault waits for the next card
    while demo.pid("server-1") == victim and len(cards) < KILL_TRIES_MAX:
        card = new_card(demo, f"killed at {point}, {len(cards) + 1}")
        cards.append(card)
        with contextlib.suppress(
            httpx.TransportError
        ):  # the answer may die with the server; the move has committed
            demo.call("POST", f"/cards/{card['key']}/move", {"state": "doing"})
        with contextlib.suppress(NotAsPromised):
            wait_until(lambda: demo.pid("server-1") != victim, "the kill", seconds=3.0)
    if demo.pid("server-1") == victim:
        raise NotAsPromised(f"{len(cards)} moves did not reach {point}")
    counts = [len(demo.settled(card, state="review")) for card in cards]
    wait_until(lambda: demo.call("GET", "/rules", server=1) is not None, "server-1 back")
    demo.step(
        f"server-1 was killed at {point}, and started again",
        f"pid {victim} got SIGKILL, now pid {demo.pid('server-1')}",
        f"{len(cards)} moved, runs of each: {counts}",
    )


def a_dead_letter(demo: Demo) -> Card:
    """A poison card becomes a dead letter; mended, planned and replayed, it is done by the same run."""
    card = new_card(demo, "the poisoned parcel", labels=["poison"])
    demo.call("POST", f"/cards/{card['key']}/move", {"state": "doing"})
    [failed] = demo.settled(card, state="stuck")
    letters = demo.call("GET", "/desk?kind=run")["data"]
    letter = next(found for found in letters if found["id"] == failed["id"])
    demo.step(f"{card['key']} is poison: its run lies on the desk", f"run {letter['id']}: {letter['error']}")

    demo.call("PATCH", f"/cards/{card['key']}", {"fields": {"fixed": True}})
    plan = demo.call("POST", "/desk/plan", {"ids": [failed["id"]]})
    if [item["id"] for item in plan["eligible"]] != [failed["id"]]:
        raise NotAsPromised(f"the plan does not name the run: {plan}")
    demo.call("POST", "/desk/replay", {"ids": [failed["id"]]})
    wait_until(lambda: demo.runs_of(card)[0]["state"] == "done", "the replayed run done")
    found = demo.runs_of(card)
    if [run["id"] for run in found] != [failed["id"]]:
        raise NotAsPromised(f"a replay is the same run, not {found}")
    demo.step(
        "mended, planned, replayed: the same run is done", f"run {found[0]['id']}: {found[0]['outcome']}"
    )
    return card


def the_story(demo: Demo, card: Card) -> None:
    """`explain` tells what happened, and `verify` finds nothing amiss."""
    told = demo.command("explain", card["key"]).rstrip().splitlines()
    demo.step(f"mainspring explain {card['key']}", *told)
    checked = demo.command("verify").rstrip().splitlines()
    demo.step("mainspring verify", *checked)


def all_is_over(demo: Demo) -> None:
    """Ctrl-C leaves no process behind."""
    pids = [pid for pid in (*demo.holder()["processes"].values(), demo.process.pid) if pid]
    demo.process.send_signal(signal.SIGINT)
    demo.process.wait(PATIENCE_SECONDS)
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists() and not _is_zombie(pid)]
    if left:
        raise NotAsPromised(f"Ctrl-C left {left}")
    demo.step("Ctrl-C ends all of it", f"{len(pids)} processes gone")


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def journey(demo: Demo) -> None:
    """Every step, in order."""
    two_servers(demo)
    set_the_table(demo)
    a_card_moves(demo)
    for point in KILL_POINTS:
        a_server_is_killed(demo, point)
    card = a_dead_letter(demo)
    the_story(demo, card)
    all_is_over(demo)


@contextlib.contextmanager
def running() -> Iterator[Demo]:
    """A `mainspring dev` of its own, in a folder of its own, gone afterwards."""
    state = Path(tempfile.mkdtemp(prefix="mainspring-demo-"))
    log = (state / "dev.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "mainspring", "dev", "--processes", "2"],
        env=os.environ
        | {"MAINSPRING_STATE": str(state / "state"), "MAINSPRING_LEASE_SECONDS_TRANSACTIONAL": "2"},
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        with httpx.Client(timeout=10.0) as http:
            demo = Demo(state=state / "state", process=process, http=http)
            wait_until(lambda: _is_up(demo, log.name), "mainspring dev ready", seconds=START_SECONDS)
            http.headers["Authorization"] = f"Bearer {demo.holder()['token']}"
            yield demo
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_SECONDS)
        log.close()
        shutil.rmtree(state, ignore_errors=True)


def _is_up(demo: Demo, log: str) -> bool:
    if demo.process.poll() is not None:
        raise NotAsPromised(f"mainspring dev ended:\n{Path(log).read_text()}")
    holder = demo.holder()
    return "runner" in holder["processes"] and all(
        demo.http.get(f"{url}/readyz").status_code == httpx.codes.OK for url in holder["urls"]
    )


def main() -> int:
    """Run the journey; return the exit code."""
    count = Count()
    try:
        with running() as demo:
            count = demo.count
            journey(demo)
    except (NotAsPromised, httpx.HTTPError) as error:
        tell(f"✗ {error}")
        tell(f"demo: failed after {count.steps} steps, lost {count.lost}, doubled {count.doubled}")
        return 1
    tell(f"demo: {count.steps} steps ok, lost {count.lost}, doubled {count.doubled}")
    return 0 if count.lost == count.doubled == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
