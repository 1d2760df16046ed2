"""A server is really killed at each fault point, while another one lives; afterwards every count is exact and verify is clean."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainspring.faultpoints import FaultPoint
from mainspring.testing import DevServer, Refused, TooLong, dev_server, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]

CARDS_MAX = 8
OF_MESSAGES = (
    "post.",
    "message_settle.",
    "inbox.",
    "session.",
)  # no move comes by: the SDK's tests and the demo do
ON_A_MOVE = [
    point
    for point in FaultPoint
    if point not in (FaultPoint.DESK_AFTER_REPLAY, FaultPoint.DLQ_AFTER_PUBLISH)
    and not point.startswith(OF_MESSAGES)
]

Card = dict[str, Any]


@pytest.fixture(scope="module")
def server() -> Iterator[DevServer]:
    with dev_server(processes=2, lease_seconds_transactional=2) as server:
        states = [{"name": "todo"}, {"name": "doing"}, {"name": "review"}, {"name": "stuck"}]
        reflect = {"done": "review", "failed": "stuck"}
        server.call(
            "POST", "/boards", {"key": "CRASH", "name": "Crash", "states": states, "reflect": reflect}
        )
        when = {"kinds": ["card.moved"], "boards": ["CRASH"], "to_states": ["doing"]}
        for agent, label in (("echo", "go"), ("flaky", "poison")):
            rule = {
                "name": f"crash → {agent}",
                "when": when | {"labels_all": [label]},
                "do": {"launch": {"agent": agent, "prompt": "{{card.key}}"}},
                "options": {"consume_label": agent == "echo"},
            }
            server.call("POST", "/rules", rule)
        yield server


def new_card(server: DevServer, label: str = "go") -> Card:
    card: Card = server.call(
        "POST", "/cards", {"board": "CRASH", "title": "a card", "labels": [label]}, server=2
    )
    return card


def card_now(server: DevServer, card: Card) -> Card:
    now: Card = server.call("GET", f"/cards/{card['key']}", server=2)
    return now


def runs_of(server: DevServer, card: Card) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = server.call("GET", f"/runs?card={card['key']}", server=2)["data"]
    return runs


def move(server: DevServer, card: Card) -> None:
    """As a client does: when the answer is cut off, look, and ask again."""
    try:
        server.call("POST", f"/cards/{card['key']}/move", {"state": "doing"})
    except httpx.TransportError:
        if card_now(server, card)["state"] == "todo":
            server.call("POST", f"/cards/{card['key']}/move", {"state": "doing"}, server=2)


def until_killed(server: DevServer, victim: int, *, seconds: float = 3.0) -> bool:
    with contextlib.suppress(TooLong):
        wait_until(lambda: server.pid("server-1") != victim, "the kill", seconds=seconds)
        return True
    return False


def verified(server: DevServer) -> None:
    wait_until(server.is_up, "both servers up")
    found = server.call("GET", "/verify")
    assert found["ok"], [check for check in found["checks"] if not check["ok"]]


@pytest.mark.parametrize("point", ON_A_MOVE, ids=str)
def test_a_kill_while_a_moved_card_is_carried_loses_and_doubles_nothing(
    server: DevServer, point: FaultPoint
) -> None:
    wait_until(server.is_up, "both servers up")
    victim = server.pid("server-1")
    assert victim is not None
    server.arm(point)
    cards: list[Card] = []
    # the other server may be quicker with a card: the fault then waits for the next one
    while not cards or not until_killed(server, victim):
        assert len(cards) < CARDS_MAX, f"{CARDS_MAX} cards did not reach {point}"
        cards.append(new_card(server))
        move(server, cards[-1])

    for card in cards:
        wait_until(lambda card=card: card_now(server, card)["state"] == "review", f"{card['key']} in review")  # type: ignore[misc]
    for card in cards:
        [run] = runs_of(server, card)
        assert run["state"] == "done"
        assert card_now(server, card)["labels"] == []
    verified(server)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"


def test_a_server_that_is_frozen_in_a_request_frees_its_tenant_and_thawed_it_serves_on(
    server: DevServer,
) -> None:
    wait_until(server.is_up, "both servers up")
    victim = server.pid("server-1")
    assert victim is not None
    card, address = new_card(server), f"{server.url()}/api/v1/cards"
    server.arm(f"{FaultPoint.APPEND_BEFORE_COMMIT}:stop")
    with ThreadPoolExecutor(1) as aside:
        asked = aside.submit(
            server.http.post, f"{address}/{card['key']}/move", json={"state": "doing"}, timeout=60
        )
        wait_until(lambda: is_stopped(victim), "the stop")
        try:
            # it waits for the frozen one's locks, and no lock is waited for longer than 5 s, after which they are free
            path, body = f"/cards/{card['key']}/move", {"state": "doing"}
            try:
                moved = server.call("POST", path, body, server=2)
            except (
                Refused
            ):  # it began to wait in the very moment in which the other was frozen: once more, and no more
                moved = server.call("POST", path, body, server=2)
        finally:
            os.kill(victim, signal.SIGCONT)
        answer = asked.result()

    assert moved["state"] == "doing"
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    wait_until(lambda: card_now(server, card)["state"] == "review", f"{card['key']} in review")
    [run] = runs_of(server, card)
    assert (run["state"], card_now(server, card)["labels"]) == ("done", [])
    assert server.pid("server-1") == victim
    assert server.call("GET", f"/cards/{card['key']}")["state"] == "review"
    verified(server)


def test_a_kill_in_a_replay_leaves_the_letter_on_the_desk_or_its_run_replayed(server: DevServer) -> None:
    wait_until(server.is_up, "both servers up")
    victim = server.pid("server-1")
    assert victim is not None
    card = new_card(server, "poison")
    move(server, card)
    wait_until(lambda: card_now(server, card)["state"] == "stuck", "the poison's failure")
    [failed] = runs_of(server, card)
    server.call("PATCH", f"/cards/{card['key']}", {"fields": {"fixed": True}})
    server.arm(FaultPoint.DESK_AFTER_REPLAY)

    with pytest.raises(httpx.TransportError):
        server.call("POST", "/desk/replay", {"ids": [failed["id"]]})
    assert until_killed(server, victim, seconds=10)

    assert [run["state"] for run in runs_of(server, card)] == ["failed"]
    server.call("POST", "/desk/replay", {"ids": [failed["id"]]}, server=2)
    wait_until(lambda: runs_of(server, card)[0]["state"] == "done", "the replayed run done")
    assert [run["id"] for run in runs_of(server, card)] == [failed["id"]]
    verified(server)


def test_an_operation_outlives_every_server_that_carries_it_on(server: DevServer) -> None:
    wait_until(server.is_up, "both servers up")
    cards = [new_card(server, "poison") for _ in range(3)]
    for card in cards:
        move(server, card)
    for card in cards:
        wait_until(lambda card=card: card_now(server, card)["state"] == "stuck", "the poison's failure")  # type: ignore[misc]
    failed = [runs_of(server, card)[0]["id"] for card in cards]
    for card in cards:
        server.call("PATCH", f"/cards/{card['key']}", {"fields": {"fixed": True}})
    victims = {name: server.pid(name) for name in ("server-1", "server-2")}
    for number in (1, 2):
        server.arm(FaultPoint.DESK_AFTER_REPLAY, server=number)

    operation = server.call("POST", "/desk/replay", {"kind": "run", "rate_per_second": 2})
    path = f"/operations/{operation['id']}"
    wait_until(lambda: server.call("GET", path)["state"] == "done", "the operation's end", seconds=60)

    assert any(server.pid(name) != pid for name, pid in victims.items())
    assert server.call("GET", path)["done"] == operation["total"] == len(cards)
    for card, run_id in zip(cards, failed, strict=True):
        wait_until(lambda card=card: runs_of(server, card)[0]["state"] == "done", "the replayed run done")  # type: ignore[misc]
        assert [run["id"] for run in runs_of(server, card)] == [run_id]
    verified(server)
