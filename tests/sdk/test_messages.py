"""Agents that are always on, against a real server: what they read is acked, what they answer is posted once, and they end in order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from mainspring.sdk import Message, Reply, Run, Runner, listening
from mainspring.sdk.liveness import Liveness
from mainspring.testing import DevServer, dev_server, wait_until
from tests.sdk.conftest import AtWork, no_thread_is_left

pytestmark = [pytest.mark.processes, pytest.mark.slow]

LEASE_SECONDS = 2
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[DevServer]:
    """One server for all of these tests; each has an agent and a channel of its own."""
    with dev_server(session_lease_seconds=LEASE_SECONDS) as running:
        yield running


@dataclass(frozen=True, slots=True)
class Room:
    """A channel with one person and one agent that is no subscriber."""

    server: DevServer
    agent: str
    channel: str
    spool: Path

    def runner(self, *, token: str | None = None, wait_seconds: int = 20) -> Runner:
        """A runner with the person's token, or another."""
        return Runner(
            url=self.server.url(),
            token=token or self.server.holder()["token"],
            spool=self.spool,
            wait_seconds=wait_seconds,
            grace_seconds=20,
        )

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return self.server.call(method, path, body)

    def post(self, text: str, topic: str = "general") -> dict[str, Any]:
        """Let the person say something."""
        posted: dict[str, Any] = self.call(
            "POST", f"/channels/{self.channel}/messages", {"text": text, "topic": topic}
        )
        return posted

    def ask(self, text: str, topic: str = "general") -> dict[str, Any]:
        """Let the person mention the agent."""
        return self.post(f"@{self.agent} {text}", topic)

    def said(self) -> list[str]:
        """What the agent has said here, in order."""
        return [message["text"] for message in self.messages()]

    def messages(self) -> list[dict[str, Any]]:
        """The agent's messages here, in order."""
        rows = self.call("GET", f"/channels/{self.channel}/messages?after_seq=0&limit=200")["data"]
        return [row for row in rows if row["author"] == self.agent]

    def sessions(self, state: str = "all") -> list[dict[str, Any]]:
        """The agent's sessions, oldest first."""
        rows = self.call("GET", f"/sessions?state={state}&limit=200")["data"]
        return [row for row in reversed(rows) if row["agent"] == self.agent]

    def deliveries(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows that a message owes."""
        rows = self.call("GET", "/effects?limit=200&kind=steer")["data"]
        rows += self.call("GET", "/effects?limit=200&kind=deliver")["data"]
        return [row for row in rows if row["key"].startswith(message["id"])]

    def refusal(self, message: dict[str, Any]) -> str:
        """Why its reader could not take the one delivery of a message, the last time."""
        [row] = self.deliveries(message)
        return str(self.call("GET", f"/effects/{row['id']}")["history"][-1]["error"])


@pytest.fixture
def room(server: DevServer, tmp_path: Path) -> Room:
    """A fresh agent in a fresh channel."""
    name = uuid.uuid4().hex[:8]
    room = Room(server, f"agent-{name}", f"room-{name}", tmp_path / "spool")
    room.call("POST", "/agents", {"handle": room.agent, "slots": 1})
    room.call("POST", "/channels", {"name": room.channel})
    room.call("POST", f"/channels/{room.channel}/members", {"account": room.agent, "subscribed": False})
    return room


async def until(holds: Callable[[], bool], what: str) -> None:
    """Wait in a thread, so that handlers go on."""
    await asyncio.to_thread(wait_until, holds, what)


async def test_a_mention_is_answered_in_its_topic_and_acked(room: Room) -> None:
    runner = room.runner()

    @runner.on_message(room.agent)
    async def helper(message: Message, reply: Reply) -> None:
        assert (message.author_kind, message.kind, message.topic) == ("human", "steer", "tea")
        await reply(f"you said: {message.text}")

    async with AtWork(runner):
        asked = room.ask("hello", topic="tea")
        await until(lambda: [row["state"] for row in room.deliveries(asked)] == ["done"], "an ack")
    [answer] = room.messages()
    assert (answer["text"], answer["topic"]) == (f"you said: @{room.agent} hello", "tea")
    assert answer["settled_by"] == "turn"
    [session] = room.sessions()
    assert (session["state"], session["turn"], session["settled_turn"]) == ("stopped", 1, 1)
    assert no_thread_is_left()


async def test_what_is_pinned_in_its_channels_is_at_the_handlers_hand(room: Room) -> None:
    pinned = room.post("be brief", topic="manners")
    room.call("PUT", f"/channels/{room.channel}/pins", {"messages": [pinned["id"]]})
    runner = room.runner()

    @runner.on_message(room.agent)
    async def helper(message: Message, reply: Reply) -> None:
        [pin] = [pin for pin in message.pins if pin.channel == message.channel]
        await reply(f"{pin.author} said in {pin.topic}: {pin.text}")

    async with AtWork(runner):
        room.ask("how?")
        await until(
            lambda: room.said() == ["admin said in manners: be brief"], "an answer that knows the pin"
        )


async def test_an_answer_descends_from_what_it_answers(room: Room) -> None:
    runner = room.runner()

    @runner.on_message(room.agent)
    async def helper(message: Message, reply: Reply) -> None:
        await reply("because you asked")

    async with AtWork(runner):
        asked = room.ask("why?")
        await until(lambda: len(room.said()) == 1, "an answer")
    [owed] = room.deliveries(asked)
    [answer] = room.messages()
    [posted] = room.call("GET", f"/events?kind=message.posted&subject={answer['id']}")["data"]
    assert (posted["cause_seq"], posted["depth"]) == (owed["event_seq"], 1)


async def test_what_a_handler_raises_at_is_refused_and_others_are_read(room: Room) -> None:
    runner, read = room.runner(), []

    @runner.on_message(room.agent)
    async def helper(message: Message, reply: Reply) -> None:
        read.append(message.text)
        if "bad" in message.text and len(read) < 3:
            await reply("let me see")
            raise ValueError("cannot read this")
        await reply(f"read {message.text}")

    async with AtWork(runner):
        bad = room.ask("bad")
        good = room.ask("good")
        await until(lambda: [row["state"] for row in room.deliveries(good)] == ["done"], "an ack")
        [refused] = room.deliveries(bad)
        assert (refused["state"], refused["attempts"]) == ("pending", 1)
        assert "ValueError: cannot read this" in room.refusal(bad)
        await due_now(room)
        await until(lambda: [row["state"] for row in room.deliveries(bad)] == ["done"], "an ack at last")
    assert [text.split()[-1] for text in read] == ["bad", "good", "bad"]
    # the handler that began again says it once, in its last words
    assert room.said() == [f"read @{room.agent} bad", f"read @{room.agent} good"]


async def test_a_handler_that_takes_too_long_is_stopped_and_its_message_refused(room: Room) -> None:
    runner = room.runner()

    @runner.on_message(room.agent, timeout_seconds=0.1)
    async def helper(message: Message, reply: Reply) -> None:
        await asyncio.Event().wait()

    async with AtWork(runner):
        asked = room.ask("take your time")
        await until(lambda: [row["attempts"] for row in room.deliveries(asked)] == [1], "a refusal")
    assert "timed out after 0.1 s" in room.refusal(asked)


async def test_what_is_owed_anew_before_it_was_read_is_read_once(room: Room) -> None:
    author = speaker(room)
    held = author.post("half a sen", mentions=[room.agent])
    author.displaced()
    await until(lambda: len(room.deliveries(held)) == 1, "the first revision owed")
    room.call("GET", "/whoami")
    author.edit(held, "half a sentence")
    await until(lambda: len(room.deliveries(held)) == 2, "the second revision owed")
    runner, read = room.runner(), []

    @runner.on_message(room.agent)
    async def helper(message: Message, reply: Reply) -> None:
        read.append((message.text, message.revision))

    async with AtWork(runner):
        await until(lambda: {row["state"] for row in room.deliveries(held)} == {"dropped", "done"}, "an ack")
    assert read == [("half a sentence", 2)]


async def test_a_reply_is_edited_while_it_grows_and_held_until_its_turn_ends(room: Room) -> None:
    runner, seen = room.runner(), []

    @runner.on_message(room.agent)
    async def helper(message: Message, reply: Reply) -> None:
        said = await reply("4")
        seen.append((room.messages()[0]["text"], room.messages()[0]["held"]))
        await said.edit("42")
        seen.append((room.messages()[0]["text"], room.messages()[0]["held"]))

    async with AtWork(runner):
        room.ask("six times seven?")
        await until(lambda: [row["held"] for row in room.messages()] == [False], "a settled answer")
    assert seen == [("4", True), ("42", True)]
    assert (room.messages()[0]["text"], room.messages()[0]["revision"]) == ("42", 2)


async def test_steers_that_come_meanwhile_are_read_by_the_handler_that_asks_for_them(room: Room) -> None:
    runner, calls = room.runner(), 0
    notes: list[str] = []

    @runner.on_message(room.agent)
    async def helper(message: Message, reply: Reply) -> None:
        nonlocal calls
        calls += 1
        second = room.ask("and faster")
        await until(lambda: len(room.deliveries(second)) == 1, "the steer owed")
        notes.extend([note.text async for note in message.steering()])
        notes.extend([note.text async for note in message.steering()])

    async with AtWork(runner):
        room.ask("write")
        await until(
            lambda: "ready" in {row["state"] for row in room.sessions() if row["settled_turn"]}, "a turn"
        )
    assert (calls, notes) == (1, [f"@{room.agent} and faster"])
    assert {row["state"] for row in owed_to(room)} == {"done"}


async def test_a_steer_that_nobody_asked_for_comes_before_what_waits(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "LOOK_SECONDS", 0.0)
    room.call("POST", f"/channels/{room.channel}/members", {"account": room.agent, "subscribed": True})
    for text in ("one", "two"):
        last = room.post(text)
    await until(lambda: len(room.deliveries(last)) == 1, "both owed")
    runner, read = room.runner(), []

    @runner.on_message(room.agent)
    async def helper(message: Message, reply: Reply) -> None:
        read.append(message.text.split()[-1])
        if message.text == "one":
            steer = room.ask("stop")
            await until(lambda: len(room.deliveries(steer)) == 1, "the steer owed")

    async with AtWork(runner):
        await until(lambda: len(read) == 3, "three messages read")
    assert read == ["one", "stop", "two"]


# When it ends, or somebody else does ----------------------------------------------------------------------------


async def test_a_drain_lets_the_message_in_hand_be_answered_and_ends_the_session(room: Room) -> None:
    runner, begun = room.runner(), asyncio.Event()

    @runner.on_message(room.agent)
    async def helper(message: Message, reply: Reply) -> None:
        begun.set()
        runner.drain(grace_seconds=20)
        await reply("done all the same")

    async with AtWork(runner):
        asked = room.ask("one more")
        await asyncio.wait_for(begun.wait(), 20)
    assert room.said() == ["done all the same"]
    assert [row["state"] for row in room.deliveries(asked)] == ["done"]
    assert [row["state"] for row in room.sessions()] == ["stopped"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_drain_without_grace_leaves_the_message_to_the_next_and_spends_nothing(room: Room) -> None:
    first, begun = room.runner(), asyncio.Event()

    @first.on_message(room.agent)
    async def hangs(message: Message, reply: Reply) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with AtWork(first):
        asked = room.ask("anybody?")
        await asyncio.wait_for(begun.wait(), 20)
        first.drain(grace_seconds=0)
    [left] = room.deliveries(asked)
    assert (left["state"], left["attempts"], left["crashes"]) == ("pending", 0, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    second = room.runner()

    @second.on_message(room.agent)
    async def helper(message: Message, reply: Reply) -> None:
        await reply("me")

    async with AtWork(second):
        await until(lambda: room.said() == ["me"], "an answer by the next")


async def test_a_displaced_agent_stops_and_takes_nothing_back(room: Room) -> None:
    runner, begun, cancelled = room.runner(), asyncio.Event(), asyncio.Event()

    @runner.on_message(room.agent)
    async def helper(message: Message, reply: Reply) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    serving = asyncio.create_task(runner.serve())
    asked = room.ask("whose?")
    await asyncio.wait_for(begun.wait(), 20)
    other = speaker(room, room.agent, takeover=True)
    await asyncio.wait_for(serving, 20)  # it ends by itself
    assert cancelled.is_set()
    assert [row["state"] for row in room.sessions()] == ["displaced", "ready"]
    assert [one["message"]["id"] for one in other.inbox()] == [asked["id"]]


async def test_another_session_is_begun_when_one_is_lost_and_nothing_is_read_twice(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, calls = room.runner(), 0
    monkeypatch.setattr(Liveness, "hold", lambda *_args, **_more: None)  # its heartbeats do not arrive

    @runner.on_message(room.agent)
    async def helper(message: Message, reply: Reply) -> None:
        nonlocal calls
        calls += 1
        await until(lambda: room.sessions()[0]["state"] == "lost", "a lost session")
        await reply("late, but here")

    async with AtWork(runner):
        asked = room.ask("are you there?")
        await until(lambda: [row["state"] for row in room.deliveries(asked)] == ["done"], "an ack")
    assert (calls, room.said()) == (1, ["late, but here"])
    assert [row["state"] for row in room.sessions()] == ["lost", "stopped"]


async def test_of_two_runners_one_reads_and_the_other_stands_by(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "STANDBY_SECONDS", 0.1)
    first, second = room.runner(), room.runner()

    @first.on_message(room.agent)
    async def one(message: Message, reply: Reply) -> None:
        await reply("the first")

    @second.on_message(room.agent)
    async def two(message: Message, reply: Reply) -> None:
        await reply("the second")

    async with AtWork(first):
        await until(lambda: len(room.sessions("live")) == 1, "a session")
        async with AtWork(second):
            room.ask("who?")
            await until(lambda: len(room.said()) == 1, "an answer")
            first.drain()
            await until(
                lambda: [row["state"] for row in room.sessions()] == ["stopped", "ready"], "the other"
            )
            room.ask("and now?")
            await until(lambda: len(room.said()) == 2, "another answer")
    assert room.said() == ["the first", "the second"]


POINTS = ("post.after_commit", "inbox.before_ack")


async def test_a_server_killed_anywhere_on_the_way_loses_and_doubles_nothing(room: Room) -> None:
    runner, armed = room.runner(), iter(POINTS)
    read: list[str] = []

    @runner.on_message(room.agent)
    async def helper(message: Message, reply: Reply) -> None:
        read.append(message.text.split()[-1])
        if (point := next(armed, None)) is not None:
            await asyncio.to_thread(room.server.arm, point)
        await reply(f"answer {read[-1]}")

    async with AtWork(runner):
        for n in range(len(POINTS)):
            victim = room.server.pid("server")
            asked = room.ask(str(n))
            await until(lambda victim=victim: room.server.pid("server") not in (victim, None), "a kill")
            await until(room.server.is_up, "the server back")
            await until(
                lambda asked=asked: [r["state"] for r in room.deliveries(asked)] == ["done"], "an ack"
            )
    numbers = [str(n) for n in range(len(POINTS))]
    assert read == numbers
    assert room.said() == [f"answer {n}" for n in numbers]


# Runs that speak, and are spoken to -------------------------------------------------------------------------------


def launch(room: Room) -> dict[str, Any]:
    """Pin a card to the agent where that dispatches it; return the card."""
    card: dict[str, Any] = room.call(
        "POST", "/cards", {"board": "DEMO", "title": "work", "agent": room.agent, "state": "ready"}
    )
    return card


def in_topic(room: Room, card: dict[str, Any]) -> list[str]:
    """What the agent has said in a card's topic, in order."""
    rows = room.call("GET", "/channels/demo/messages?after_seq=0&limit=200")["data"]
    return [row["text"] for row in rows if row["topic"] == card["key"] and row["author"] == room.agent]


async def test_what_a_run_posts_and_comments_is_said_once_for_its_key_in_the_last_words(room: Room) -> None:
    runner, tries = room.runner(), 0

    @runner.agent(room.agent)
    async def coder(run: Run) -> str:
        nonlocal tries
        tries += 1
        card = await run.card()
        await run.post(room.channel, f"try {tries}", key=f"{run.id}:hello", topic="news")
        said = await card.comment(f"try {tries}", key=f"{run.id}:summary")
        await said.edit(f"try {tries}, edited")
        if tries == 1:
            await run.retry(after_seconds=0)
        return "said"

    async with AtWork(runner):
        card = launch(room)
        await until(lambda: room.call("GET", f"/cards/{card['key']}")["state"] == "review", "a run done")
    assert [(row["text"], row["topic"], row["revision"]) for row in room.messages()] == [("try 2", "news", 2)]
    assert in_topic(room, card) == ["try 2, edited"]
    [posted] = room.call("GET", f"/events?kind=message.posted&subject={room.messages()[0]['id']}")["data"]
    assert posted["depth"] > 0  # it descends from what launched the run


async def test_a_run_reads_what_is_said_in_its_topic_meanwhile_and_nothing_else(room: Room) -> None:
    runner, notes, texts = room.runner(), list[str](), list[str]()
    elsewhere: list[dict[str, Any]] = []

    @runner.agent(room.agent)
    async def coder(run: Run) -> str:
        notes.extend([note.text async for note in run.steering()])
        assert notes == []
        assert run.card_key is not None
        elsewhere.append(room.ask("not for the run"))
        for text in ("first", "second"):
            said = room.call("POST", f"/cards/{run.card_key}/comments", {"text": f"@{room.agent} {text}"})
            await until(lambda said=said: len(room.deliveries(said)) == 1, "a steer owed")
        await asyncio.sleep(LEASE_SECONDS * 1.5)  # its session is kept between two readings
        async for note in run.steering():
            states = {row["key"][:36]: row["state"] for row in owed_to(room)}
            assert (states[note.id], [states[one] for one in notes]) == ("claimed", ["done"] * len(notes))
            notes.append(note.id)
            texts.append(note.text.split()[-1])
        return "read"

    async with AtWork(runner):
        card = launch(room)
        await until(lambda: room.call("GET", f"/cards/{card['key']}")["state"] == "review", "a run done")
    assert texts == ["first", "second"]
    states = {row["key"][:36]: row["state"] for row in owed_to(room)}
    assert [states[one] for one in notes] == ["done", "done"]
    assert states[elsewhere[0]["id"]] == "pending"
    [session] = room.sessions()
    assert (session["state"], session["reason"]) == ("stopped", "the run's handler has ended")
    assert session["run_id"] is not None


async def test_a_run_that_messages_have_woken_reads_them_unless_a_session_does(room: Room) -> None:
    room.call("PATCH", f"/agents/{room.agent}", {"wake": True})
    runner, read = room.runner(), list[str]()

    @runner.agent(room.agent)
    async def sleeper(run: Run) -> str:
        assert run.card_key is None
        if read:  # woken again by what this test leaves unread
            return "enough"
        first = speaker(room, room.agent)
        assert [note.text async for note in run.steering()] == []
        assert [row["id"] for row in room.sessions("live")] == [first.session["id"]]
        first.end()
        read.extend([note.text.split()[-1] async for note in run.steering()])
        other = speaker(room, room.agent, takeover=True)
        late = room.ask("late")
        await until(lambda: len(room.deliveries(late)) == 1, "a steer owed")
        read.extend([note.text async for note in run.steering()])  # displaced, and in nobody's way
        assert [one["message"]["id"] for one in other.inbox()] == [late["id"]]
        other.end()
        read.extend([note.text async for note in run.steering()])  # it takes nothing back
        return "read"

    async with AtWork(runner):
        room.ask("wake up")
        runs = f"/runs?agent={room.agent}"
        await until(lambda: "done" in [one["state"] for one in room.call("GET", runs)["data"]], "a woken run")
    assert read == ["up"]


@pytest.mark.parametrize("ending", ["it raises", "it begins again"])
async def test_what_a_run_had_in_hand_when_it_came_to_nothing_is_read_again(room: Room, ending: str) -> None:
    room.call("PATCH", f"/agents/{room.agent}", {"wake": True})
    runner, read = room.runner(), list[str]()

    @runner.agent(room.agent)
    async def sleeper(run: Run) -> str:
        async for note in run.steering():
            read.append(note.text.split()[-1])
            if read == ["deploy", "twice"]:
                if ending == "it raises":
                    raise ValueError("cannot")
                await run.retry(after_seconds=0)
        return "read"

    async with AtWork(runner):
        done, again = room.ask("deploy"), room.ask("twice")
        runs = f"/runs?agent={room.agent}"
        await until(lambda: "done" in [one["state"] for one in room.call("GET", runs)["data"]], "a run done")
    assert read == ["deploy", "twice", "twice"]
    [first], [second] = room.deliveries(done), room.deliveries(again)
    assert (first["state"], second["state"]) == ("done", "done")
    price = 1 if ending == "it raises" else 0
    assert (room.call("GET", f"/effects/{second['id']}")["crashes"]) == price


async def test_a_handler_that_reads_one_of_the_notes_that_came_again_goes_on_with_the_next(
    room: Room,
) -> None:
    """What was refused comes back while another is handled: the one that is taken is acked with that."""
    runner, read = room.runner(), list[str]()

    @runner.on_message(room.agent)
    async def helper(message: Message, reply: Reply) -> None:
        read.append(message.text.split()[-1])
        if len(read) <= 2:
            raise ValueError("not now")
        if len(read) == 3:
            await due_now(room)
            async for note in message.steering():
                read.append(f"note {note.text.split()[-1]}")
                break

    async with AtWork(runner):
        for word in ("first", "second", "third"):
            room.ask(word)
        await until(lambda: {row["state"] for row in owed_to(room)} == {"done"}, "all of them acked")
    assert read == ["first", "second", "third", "note first", "second"]


async def test_the_example_that_is_always_on_answers_and_ends_in_order(room: Room) -> None:
    example = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / "always_on.py"),
        env=os.environ
        | {"MAINSPRING_URL": room.server.url(), "MAINSPRING_TOKEN": room.server.holder()["token"]},
        stderr=asyncio.subprocess.DEVNULL,
    )
    helper = replace(room, agent="helper")
    try:
        await until(lambda: len(helper.sessions("live")) == 1, "its session")
        helper.ask("one two three")
        await until(lambda: [row["held"] for row in helper.messages()] == [False], "an answer")
    finally:
        example.send_signal(signal.SIGINT)
        code = await asyncio.wait_for(example.wait(), 20)
    assert helper.said() == ["admin, that was 3 words"]
    assert (code, helper.sessions()[-1]["state"]) == (0, "stopped")


# What the tests do by hand --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Speaker:
    """A session of an agent, spoken by hand."""

    room: Room
    token: str
    session: dict[str, Any]

    @property
    def claim(self) -> dict[str, Any]:
        return {"id": self.session["id"], "claim_id": self.session["claim_id"]}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.room.server.http.request(
            method,
            f"{self.room.server.url()}/api/v1{path}",
            json=body,
            headers={"Authorization": f"Bearer {self.token}"},
        )
        assert answer.is_success, answer.text
        return answer.json()

    def post(self, text: str, **more: Any) -> dict[str, Any]:
        """Begin a turn and say something that is held in it."""
        beat = {"claim_id": self.session["claim_id"], "turn": 1}
        self.call("POST", f"/sessions/{self.session['id']}/heartbeat", beat)
        body = {"text": text, "session": self.claim, **more}
        posted: dict[str, Any] = self.call("POST", f"/channels/{self.room.channel}/messages", body)
        assert posted["held"]
        return posted

    def edit(self, message: dict[str, Any], text: str) -> None:
        self.call("PATCH", f"/messages/{message['id']}", {"text": text, "session": self.claim})

    def displaced(self) -> None:
        """Begin another session in the place of this one."""
        self.call("POST", "/sessions", {"takeover": True})

    def end(self) -> None:
        ending = {"claim_id": self.session["claim_id"], "state": "stopped"}
        self.call("POST", f"/sessions/{self.session['id']}/settle", ending)

    def inbox(self) -> list[dict[str, Any]]:
        path = f"/sessions/{self.session['id']}/inbox?wait=0&claim_id={self.session['claim_id']}"
        rows: list[dict[str, Any]] = self.call("GET", path)["deliveries"]
        return rows


def speaker(room: Room, agent: str | None = None, *, takeover: bool = False) -> Speaker:
    """Begin a session by hand, of a new agent unless one is named."""
    if agent is None:
        agent = f"author-{uuid.uuid4().hex[:8]}"
        room.call("POST", "/agents", {"handle": agent, "slots": 1})
    token = room.call("POST", "/tokens", {"kind": "runner", "agents": [agent]})["secret"]
    one = Speaker(room, token, {})
    one.session = one.call("POST", "/sessions", {"takeover": takeover})
    return one


def owed_to(room: Room) -> list[dict[str, Any]]:
    """All rows that were ever owed to the agent."""
    rows = [room.call("GET", f"/effects?limit=200&kind={kind}")["data"] for kind in ("steer", "deliver")]
    return [row for kind in rows for row in kind if row["key"].endswith(agent_id(room))]


def agent_id(room: Room) -> str:
    """The agent's id."""
    found: str = room.call("GET", f"/agents/{room.agent}")["id"]
    return found


async def due_now(room: Room) -> None:
    """Let the time pass that refused messages wait."""
    connection = await asyncpg.connect((room.server.state / "secrets" / "admin.url").read_text())
    try:
        await connection.execute(
            "update mainspring.effects set not_before = now() where family = 'offered' and state = 'pending'"
        )
    finally:
        await connection.close()
