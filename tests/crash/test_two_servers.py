"""Two servers share the work: an author speaks at one, its reader listens at the other, and either is really killed. What is read is
what was meant at last, once by (message id, revision).
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from mainspring.testing import DevServer, dev_server, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]

AUTHORS, READERS = 1, 2
LEASE_SECONDS = 8  # longer than a killed server is away
BOTH = (AUTHORS, READERS)
Said = tuple[str, int, str]  # a message's id, its revision, its text


@pytest.fixture(scope="module")
def server() -> Iterator[DevServer]:
    with dev_server(processes=2, session_lease_seconds=LEASE_SECONDS) as running:
        yield running


def kill(server: DevServer, number: int) -> None:
    """End a server as a power cut does; it is up again when this returns."""
    pid = server.pid(f"server-{number}")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: server.pid(f"server-{number}") not in (None, pid) and server.is_up(), "it is up again")


@dataclass(slots=True)
class Program:
    """An agent's program at one of the servers, that asks again as long as its server is down."""

    server: DevServer
    at: int
    agent: str
    http: httpx.Client
    session: dict[str, Any] = field(default_factory=dict)
    read: list[Said] = field(default_factory=list)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        answers: list[Any] = []

        def answered() -> bool:
            url = f"{self.server.url(self.at)}/api/v1{path}"
            answers.append(self.http.request(method, url, json=body))
            return True

        wait_until(answered, f"an answer to {method} {path}")
        assert answers[0].is_success, answers[0].text
        return answers[0].json()

    def begin(self) -> None:
        secret = self.server.call("POST", "/tokens", {"kind": "agent", "account": self.agent})["secret"]
        self.http.headers["Authorization"] = f"Bearer {secret}"
        self.session = self.call("POST", "/sessions", {})

    def of_session(self, path: str, body: dict[str, Any]) -> Any:
        held = {"claim_id": self.session["claim_id"]}
        return self.call("POST", f"/sessions/{self.session['id']}/{path}", held | body)

    @property
    def speaking(self) -> dict[str, Any]:
        return {"id": self.session["id"], "claim_id": self.session["claim_id"], "turn": 1}

    def inbox(self) -> list[dict[str, Any]]:
        query = f"claim_id={self.session['claim_id']}&wait=0"
        found: list[dict[str, Any]] = self.call("GET", f"/sessions/{self.session['id']}/inbox?{query}")[
            "deliveries"
        ]
        return found

    def take(self) -> list[Said]:
        """Read what is there, and say so; return it."""
        found = self.inbox()
        said = [(one["message"]["id"], one["message"]["revision"], one["message"]["text"]) for one in found]
        if found:
            self.of_session("ack", {"deliveries": [one["id"] for one in found]})
            self.read += said
        return said


@dataclass(frozen=True, slots=True)
class Scene:
    """A channel in which one writes and one reads."""

    server: DevServer
    author: Program
    reader: Program
    channel: str

    def draft(self, text: str) -> dict[str, Any]:
        """Let the author begin to write, in its first turn."""
        self.author.of_session("heartbeat", {"turn": 1})
        body = {"text": text, "request_id": "draft", "session": self.author.speaking}
        posted: dict[str, Any] = self.author.call("POST", f"/channels/{self.channel}/messages", body)
        return posted

    def is_whole(self) -> None:
        """Nothing else was said or read, nothing is left, and every count agrees."""
        assert self.reader.take() == []
        assert len({(message, revision) for message, revision, _ in self.reader.read}) == len(
            self.reader.read
        )
        assert self.server.call("GET", "/verify")["ok"]


@pytest.fixture
def scene(server: DevServer) -> Iterator[Scene]:
    name = uuid.uuid4().hex[:8]
    server.call("POST", "/channels", {"name": name})
    with httpx.Client(timeout=10.0) as writing, httpx.Client(timeout=10.0) as reading:
        author = Program(server, AUTHORS, f"writes-{name}", writing)
        reader = Program(server, READERS, f"reads-{name}", reading)
        for program in (author, reader):
            server.call("POST", "/agents", {"handle": program.agent})
            server.call("POST", f"/channels/{name}/members", {"account": program.agent, "subscribed": True})
            program.begin()
        yield Scene(server, author, reader, name)


@pytest.mark.parametrize("killed", BOTH, ids=["the author's", "the reader's"])
def test_whichever_server_is_killed_in_the_middle_of_a_turn_what_was_meant_is_read_once(
    scene: Scene, killed: int
) -> None:
    posted = scene.draft("half a sen")
    assert scene.reader.take() == []
    kill(scene.server, killed)
    if killed == AUTHORS:  # nobody told it whether its post went through
        assert scene.draft("half a sen")["id"] == posted["id"]
    edited = {"text": "half a sentence, and the rest", "session": scene.author.speaking}
    message = scene.author.call("PATCH", f"/messages/{posted['id']}", edited)
    if scene.reader.take():
        raise AssertionError("it was read before it was settled")
    scene.author.of_session("settle", {"turn": 1})
    wait_until(lambda: bool(scene.reader.inbox()), "an offer")
    first = scene.reader.inbox()
    kill(scene.server, killed)  # offered, and not yet read
    assert [one["id"] for one in scene.reader.inbox()] == [one["id"] for one in first]
    assert scene.reader.take() == [(posted["id"], message["revision"], "half a sentence, and the rest")]
    scene.is_whole()


def test_an_author_that_is_gone_with_its_server_is_read_as_far_as_it_came_and_again_when_it_goes_on(
    scene: Scene,
) -> None:
    posted = scene.draft("half a sen")
    kill(scene.server, AUTHORS)  # and its program with it: it says nothing more
    wait_until(lambda: bool(scene.reader.take()), "what the lease settled")
    assert scene.reader.read == [(posted["id"], posted["revision"], "half a sen")]
    edited = scene.author.call(
        "PATCH", f"/messages/{posted['id']}", {"text": "half a sentence, and the rest"}
    )
    wait_until(lambda: bool(scene.reader.take()), "what its author says now")
    assert scene.reader.read[1:] == [(posted["id"], edited["revision"], "half a sentence, and the rest")]
    scene.is_whole()


def test_each_post_of_a_row_is_read_once_while_servers_are_killed_under_posts_and_polls(scene: Scene) -> None:
    said = [f"message {n}" for n in range(12)]
    for n, text in enumerate(said):
        scene.author.at = BOTH[n % 2]
        if n % 6 == 2:
            scene.server.arm("post.after_commit", server=scene.author.at)
        if n % 6 == 5:
            scene.server.arm("inbox.after_offer", server=scene.reader.at)
        body = {"text": text, "request_id": text}
        scene.author.call("POST", f"/channels/{scene.channel}/messages", body)
        scene.reader.take()
    wait_until(lambda: not scene.reader.take() and len(scene.reader.read) >= len(said), "all of them read")
    assert [text for _, _, text in scene.reader.read] == said
    scene.is_whole()
