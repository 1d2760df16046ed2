"""The five-minute journey without a head: `python -m mainspring.demo`, or `make demo`.

Takes a fresh `mainspring dev` with two server processes; leaves each promise shown with its evidence, one line a step, and
nothing running. The servers are really killed. Exits 1 when a step does not hold, or when anything was lost or doubled.
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from mainspring.testing import DevServer, Refused, TooLong, dev_server, wait_until

KILL_POINTS = ("drain.before_commit", "launch.after_run")
DELIVERY_KILL_POINTS = ("message_settle.after_commit", "inbox.after_offer")
KILL_TRIES_MAX = 5

Card = dict[str, Any]
Run = dict[str, Any]
Message = dict[str, Any]


class NotAsPromised(Exception):
    """A step did not hold."""


@dataclass(slots=True)
class Count:
    """What the demo has seen come true, and what it has not."""

    steps: int = 0
    lost: int = 0
    doubled: int = 0


@dataclass(slots=True)
class Demo:
    """The journey's state: the server that it travels on, and what was seen."""

    server: DevServer
    count: Count = field(default_factory=Count)

    def call(self, method: str, path: str, body: Any = None, *, server: int = 1) -> Any:
        """Call one of the two servers."""
        return self.server.call(method, path, body, server=server)

    def runs_of(self, card: Card) -> list[Run]:
        """The runs of a card, oldest first, as the server that is never killed tells them."""
        return sorted(
            self.call("GET", f"/runs?card={card['key']}", server=2)["data"], key=lambda run: str(run["id"])
        )

    def command(self, *words: str) -> list[str]:
        """Run the command line, as a user would; return the lines that it printed."""
        done = self.server.command(*words)
        if done.returncode:
            raise NotAsPromised(
                f"mainspring {' '.join(words)} exited {done.returncode}: {done.stdout}{done.stderr}"
            )
        return done.stdout.rstrip().splitlines()

    def step(self, what: str, *evidence: str) -> None:
        """Say that a step held, and what shows it."""
        self.count.steps += 1
        tell(f"✓ {self.count.steps}. {what}")
        for line in evidence:
            tell(f"     {line}")

    def settled(self, card: Card, *, state: str) -> list[Run]:
        """Wait until a moved card's run is over and the card stands in `state`; count what is missing or too many."""
        key = card["key"]
        try:
            wait_until(
                lambda: any(run["state"] in ("done", "failed") for run in self.runs_of(card)),
                f"a finished run of {key}",
            )
        except TooLong:
            self.count.lost += 1
            raise
        wait_until(lambda: self.call("GET", f"/cards/{key}", server=2)["state"] == state, f"{key} in {state}")
        found = self.runs_of(card)
        self.count.doubled += len(found) - 1
        return found


def tell(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


# the journey ----------------------------------------------------------------------------------------------------


def two_servers(demo: Demo) -> None:
    """Two server processes share one database."""
    names = ("server-1", "server-2")
    demo.step(
        "two server processes share one PostgreSQL",
        *(f"{name}: pid {demo.server.pid(name)} at {demo.server.url(n)}" for n, name in enumerate(names, 1)),
    )


def a_board_and_rules(demo: Demo) -> None:
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
    when = {"kinds": ["card.moved"], "boards": ["SHIP"], "to_states": ["doing"], "actors": ["members"]}
    for agent, term in (("echo", "labels_none"), ("flaky", "labels_all")):
        launch = {"agent": agent, "prompt": "ship {{card.key}}: {{card.title}}"}
        demo.call(
            "POST",
            "/rules",
            {"name": f"shipping → {agent}", "when": {**when, term: ["poison"]}, "do": {"launch": launch}},
        )
    rules = [rule["name"] for rule in demo.call("GET", "/rules")["data"]]
    demo.step("a board and two rules", f"board {board['key']}; rules {', '.join(rules)}")


def new_card(demo: Demo, title: str, **more: Any) -> Card:
    """Make a card in the first column."""
    card: Card = demo.call("POST", "/cards", {"board": "SHIP", "title": title, **more})
    return card


def move(demo: Demo, card: Card) -> None:
    """Move a card to doing; where the answer is cut off, look whether the move stands, and ask again if not."""
    try:
        demo.call("POST", f"/cards/{card['key']}/move", {"state": "doing"})
    except httpx.TransportError:
        if demo.call("GET", f"/cards/{card['key']}", server=2)["state"] == "todo":
            demo.call("POST", f"/cards/{card['key']}/move", {"state": "doing"}, server=2)


def a_card_moves(demo: Demo) -> None:
    """A move launches an agent, whose outcome moves the card on."""
    card = new_card(demo, "the red parcel")
    started = time.monotonic()
    move(demo, card)
    [run] = demo.settled(card, state="review")
    demo.step(
        f"{card['key']} moved to doing: launched, run by the runner process, reflected to review",
        f"run {run['id']} by {run['agent']} is {run['state']}, {time.monotonic() - started:.2f} s after the move",
    )


def a_server_is_killed(demo: Demo, point: str) -> None:
    """A server dies at a fault point, with a card's launch half-way; the launch happens once all the same."""
    victim = demo.server.pid("server-1")
    demo.server.arm(point)
    cards: list[Card] = []
    # the other server may carry a card before the victim gets to it: the fault then waits for the next card
    while demo.server.pid("server-1") == victim:
        if len(cards) == KILL_TRIES_MAX:
            raise NotAsPromised(f"{len(cards)} moves did not reach {point}")
        cards.append(new_card(demo, f"killed at {point}, {len(cards) + 1}"))
        move(demo, cards[-1])
        with contextlib.suppress(TooLong):
            wait_until(lambda: demo.server.pid("server-1") != victim, "the kill", seconds=3.0)
    counts = [len(demo.settled(card, state="review")) for card in cards]
    wait_until(demo.server.is_up, "server-1 back")
    demo.step(
        f"server-1 was killed at {point} and started again: one run for each move",
        f"pid {victim} got SIGKILL, now pid {demo.server.pid('server-1')}",
        *(f"{card['key']}: {n} run{'s' * (n != 1)}" for card, n in zip(cards, counts, strict=True)),
    )


def answers_to(demo: Demo, asked: Message) -> list[Message]:
    """What echo has said since a message, as the server that is never killed tells it."""
    after = f"/channels/general/messages?after_seq={asked['channel_seq']}"
    return [said for said in demo.call("GET", after, server=2)["data"] if said["author"] == "echo"]


def delivery_of(demo: Demo, asked: Message) -> dict[str, Any]:
    """What a mention owes to echo."""
    wait_until(lambda: bool(_owed(demo, asked)), "a delivery owed")
    [owed] = _owed(demo, asked)
    return owed


def _owed(demo: Demo, asked: Message) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = demo.call("GET", "/effects?kind=steer&limit=200", server=2)["data"]
    return [row for row in rows if row["key"].startswith(asked["id"])]


def ask_echo(demo: Demo, text: str) -> Message:
    """Mention echo in #general, at the server that is never killed."""
    asked: Message = demo.call("POST", "/channels/general/messages", {"text": text}, server=2)
    return asked


def answered(demo: Demo, asked: Message) -> Message:
    """Wait until a mention is answered and acked; count what is missing or too many."""
    try:
        wait_until(lambda: delivery_of(demo, asked)["state"] == "done", "an ack by echo")
        wait_until(lambda: any(not said["held"] for said in answers_to(demo, asked)), "an answer by echo")
    except TooLong:
        demo.count.lost += 1
        raise
    found = answers_to(demo, asked)
    demo.count.doubled += len(found) - 1
    return found[0]


def a_mention(demo: Demo) -> None:
    """An agent that is always on answers what mentions it."""
    started = time.monotonic()
    asked = ask_echo(demo, "@echo what is DEMO-1?")
    answer = answered(demo, asked)
    owed = delivery_of(demo, asked)
    demo.step(
        f"{asked['text']!r} in #general: {answer['text']!r}",
        f"{owed['kind']} {owed['id']} owed, offered and acked, {time.monotonic() - started:.2f} s after the post",
    )


def a_server_is_killed_over_a_mention(demo: Demo, point: str) -> None:
    """A server dies at a fault point of delivery; the mention is answered once all the same."""
    victim = demo.server.pid("server-1")
    demo.server.arm(point)
    asked = ask_echo(demo, f"@echo who dies at {point}?")
    wait_until(lambda: demo.server.pid("server-1") != victim, f"the kill at {point}")
    answer = answered(demo, asked)
    wait_until(demo.server.is_up, "server-1 back")
    demo.step(
        f"server-1 was killed at {point} and started again: one answer, one ack",
        f"pid {victim} got SIGKILL, now pid {demo.server.pid('server-1')}; {answer['text']!r}",
    )


def a_dead_letter(demo: Demo) -> Card:
    """A poison card becomes a dead letter; mended, planned and replayed, it is done by the same run."""
    card = new_card(demo, "the poisoned parcel", labels=["poison"])
    move(demo, card)
    [failed] = demo.settled(card, state="stuck")
    letter = next(
        found for found in demo.call("GET", "/desk?kind=run")["data"] if found["id"] == failed["id"]
    )
    demo.step(f"{card['key']} is poison: its run lies on the desk", f"run {letter['id']}: {letter['error']}")

    demo.call("PATCH", f"/cards/{card['key']}", {"fields": {"fixed": True}})
    plan = demo.call("POST", "/desk/plan", {"ids": [failed["id"]]})
    if [item["id"] for item in plan["eligible"]] != [failed["id"]]:
        raise NotAsPromised(f"the plan does not name the run: {plan}")
    demo.call("POST", "/desk/replay", {"ids": [failed["id"]]})
    wait_until(lambda: demo.runs_of(card)[0]["state"] == "done", "the replayed run done")
    [replayed] = demo.runs_of(card)
    if replayed["id"] != failed["id"]:
        raise NotAsPromised(f"a replay is the same run, not {replayed['id']}")
    demo.step(
        "field mended, planned, replayed: the same run is done",
        f"run {replayed['id']} is {replayed['state']}",
    )
    return card


def the_story(demo: Demo, card: Card) -> None:
    """`explain` tells what happened, and `verify` finds nothing amiss."""
    demo.step(f"mainspring explain {card['key']}", *demo.command("explain", card["key"]))
    demo.step("mainspring verify", *demo.command("verify"))


def all_is_over(demo: Demo) -> None:
    """Ctrl-C leaves no process behind."""
    pids = [pid for pid in (*demo.server.holder()["processes"].values(), demo.server.process.pid) if pid]
    demo.server.stop()
    left = [pid for pid in pids if _lives(pid)]
    if left:
        raise NotAsPromised(f"Ctrl-C left {left}")
    demo.step("Ctrl-C ends all of it", f"{len(pids)} processes are gone")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def journey(demo: Demo) -> None:
    """Every step, in order."""
    two_servers(demo)
    a_board_and_rules(demo)
    a_card_moves(demo)
    for point in KILL_POINTS:
        a_server_is_killed(demo, point)
    a_mention(demo)
    for point in DELIVERY_KILL_POINTS:
        a_server_is_killed_over_a_mention(demo, point)
    card = a_dead_letter(demo)
    the_story(demo, card)
    all_is_over(demo)


def main() -> int:
    """Run the journey; return the exit code."""
    count = Count()
    try:
        with dev_server(processes=2, lease_seconds_transactional=2) as server:
            demo = Demo(server, count)
            journey(demo)
    except (NotAsPromised, TooLong, Refused, httpx.HTTPError) as error:
        tell(f"✗ {error}")
        tell(f"demo: failed after {count.steps} steps, lost {count.lost}, doubled {count.doubled}")
        return 1
    tell(f"demo: {count.steps} steps ok, lost {count.lost}, doubled {count.doubled}")
    return 0 if count.lost == count.doubled == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
