"""Channels, messages, the inbox and sessions from the command line, against a server on a real socket."""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvicorn

from mainspring.boards.model import BoardState, NewCard
from mainspring.cli import main
from tests.agents.conftest import Listening
from tests.cli.conftest import CLEAN, DEADLINE_SECONDS

Run = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
async def url(app, home) -> AsyncIterator[str]:
    """The address of a server whose streams are told what is committed; no other loop of it runs."""
    server = Listening(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    sock = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    telling = asyncio.create_task(tell(home.services.tails))
    await server.ready.wait()
    yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    telling.cancel()
    app.state.closing.set()
    server.should_exit = True
    await serving


async def tell(tails) -> None:
    """Read the log for its streams whenever something is committed."""
    called = asyncio.Event()
    poke, tails.poke = tails.poke, called.set
    try:
        while True:
            await called.wait()
            called.clear()
            while await tails.run_once():
                pass
    finally:
        tails.poke = poke


@pytest.fixture
async def cli(url, place, monkeypatch, capsys) -> Run:
    """`await cli("channel", "list")` → exit code, stdout, stderr; as anna, or as `who` with the role `role`."""
    secrets: dict[tuple[str, str], str] = {}
    monkeypatch.setenv("MAINSPRING_URL", url)

    async def run(
        *argv: str, who: str = "anna", role: str = "operator", stdin: str = ""
    ) -> tuple[int, str, str]:
        if (who, role) not in secrets:
            _, secrets[who, role] = await place.home.services.tokens.create(
                place.anna, kind="user", role=role, account=who
            )
        monkeypatch.setenv("MAINSPRING_TOKEN", secrets[who, role])
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code = await asyncio.to_thread(main, argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def rows(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


async def test_a_channels_life_from_the_command_line(cli, place):
    await place.agent("coder", subscribed=None)
    code, out, _ = await cli("channel", "create", "Ops", "--purpose", "What runs", "--visibility", "shared")
    assert (code, out) == (0, "#ops  [shared]  What runs\n")
    assert (await cli("channel", "create", "ops"))[0] == 5
    assert (await cli("channel", "create", "a b"))[0] == 1
    assert (await cli("channel", "create", "x", "--visibility", "hidden"))[0] == 2
    assert (await cli("channel", "create", "mine", role="viewer"))[0] == 4
    code, out, _ = await cli("channel", "list")
    assert (code, [line.split()[:4] for line in out.splitlines()[1:]]) == (
        0,
        [["general", "open", "members", "0"], ["ops", "shared", "members", "0"]],
    )
    assert (await cli("channel", "show", "ops", who="bob"))[0] == 3
    code, out, _ = await cli("channel", "join", "ops", "--account", "@bob")
    assert (code, out) == (0, "bob is in ops\n")
    assert (await cli("channel", "show", "#ops", who="bob"))[0] == 0
    code, out, _ = await cli("channel", "join", "ops", "--account", "coder")
    assert (code, out) == (0, "coder is in ops: every message is owed to it\n")
    code, out, _ = await cli("channel", "join", "ops", "--account", "coder", "--no-subscribe", "--json")
    assert (code, json.loads(out)["subscribed"]) == (0, False)
    code, out, _ = await cli("channel", "members", "ops", "--json")
    assert [(one["handle"], one["subscribed"]) for one in rows(out)] == [
        ("anna", True),
        ("coder", False),
        ("bob", True),
    ]
    for verb in ("join", "leave"):
        code, _, err = await cli("channel", verb, "ops", "--account", "nosuch")
        assert (code, "nobody called nosuch" in err) == (3, True)
    code, out, err = await cli("channel", "leave", "ops", who="bob")
    assert (code, out, err) == (0, "", "you: no member of ops any more\n")
    assert (await cli("channel", "history", "ops", who="bob"))[0] == 3
    code, _, err = await cli("channel", "leave", "ops", "--account", "coder")
    assert (code, err) == (0, "coder: no member of ops any more\n")
    code, out, _ = await cli("channel", "members", "ops", "--json")
    assert [one["handle"] for one in rows(out)] == ["anna"]


async def test_a_post_says_where_it_went_and_whom_it_is_owed_to(cli, place):
    code, out, err = await cli("post", "general", "nobody is here")
    assert (code, err) == (0, "owed to nobody: no agent subscribes here, and nobody is mentioned\n")
    assert out.split(maxsplit=1)[1] == "#general › general  seq 1\n"
    await place.agent("coder")
    await place.agent("qa", subscribed=None)
    await place.person("bob")
    code, out, err = await cli(
        "post", "#general", "@bob and you: look", "--topic", "Pumps", "--mention", "qa"
    )
    assert (code, out.split(maxsplit=1)[1]) == (0, "#general › Pumps  seq 2\n")
    assert err == "steers qa; delivered to coder; in the inbox of bob\n"
    message = await place.message(out.split()[0])
    await place.drain()
    assert await place.owed(message) == {"coder": "deliver", "qa": "steer"}


async def test_a_post_says_who_is_mentioned_and_not_given_it_and_which_name_is_nobodys(cli, place):
    await place.agent("scout", subscribed=None)
    assert (await cli("channel", "create", "secret", "--visibility", "shared"))[0] == 0
    code, _, err = await cli("post", "secret", "@scout psst")
    assert (code, err) == (0, "owed to nobody; not owed to scout: mentioned, and no member of the channel\n")
    code, _, err = await cli("post", "general", "@scuot and @scout, `@code`, @everyone and @anna: hm")
    assert (code, err.startswith("steers scout"), err.endswith("; nobody is called scuot\n")) == (
        0,
        True,
        True,
    )
    code, out, err = await cli("post", "general", "hi", "--mention", "scout", "--mention", "nosuch", "--json")
    assert (code, json.loads(out)["errors"]) == (
        1,
        [{"pointer": "/mentions/1", "detail": "there is nobody called nosuch"}],
    )


async def cutting(url: str, cuts: int) -> tuple[asyncio.Server, str]:
    """A link to a server that lets commands through, and breaks the first `cuts` before the answer; its address."""
    where = url.rpartition(":")
    left = [cuts]

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, ahead = await asyncio.open_connection("127.0.0.1", int(where[2]))
        asked = await reader.read(65536)
        ahead.write(asked)
        asking = asyncio.create_task(pipe(reader, ahead))
        first = await behind.read(65536)
        if asked.startswith(b"POST") and left[0]:
            left[0] -= 1
        else:
            writer.write(first)
            await pipe(behind, writer)
        asking.cancel()
        for end in (ahead, writer):
            end.close()

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65536):
        writer.write(chunk)
        await writer.drain()


@pytest.mark.slow
async def test_a_post_whose_answer_is_cut_off_is_sent_again_and_said_once(cli, url, place, monkeypatch):
    monkeypatch.setattr("mainspring.cli.post.PAUSES_SECONDS", (0.0, 0.0))
    server, link = await cutting(url, 2)
    monkeypatch.setenv("MAINSPRING_URL", link)
    async with server:
        code, out, _ = await cli("post", "general", "once", "--json")
        assert (code, json.loads(out)["channel_seq"]) == (0, 1)
    server, link = await cutting(url, 9)
    monkeypatch.setenv("MAINSPRING_URL", link)
    async with server:
        code, _, err = await cli("post", "general", "twice")
        assert (code, "it may have been done" in err) == (6, True)
        # any other command says so at once
        code, out, _ = await cli("channel", "create", "more", "--json")
        assert (code, json.loads(out)["code"]) == (6, "timeout")
        name = err.rsplit(maxsplit=1)[1]
    monkeypatch.setenv("MAINSPRING_URL", url)
    code, out, _ = await cli("post", "general", "twice", "--request-id", name, "--json")
    assert (code, json.loads(out)["channel_seq"]) == (0, 2)


async def test_receipts_say_how_far_a_message_has_come(cli, place):
    reader = await place.reader("coder")
    await place.agent("qa")
    _, out, _ = await cli("post", "general", "@coder look", "--json")
    message = json.loads(out)["id"]
    _, out, _ = await cli("message", "receipts", message, "--json")
    assert {one["handle"]: one["state"] for one in json.loads(out)["data"]} == {
        "coder": "stored",
        "qa": "stored",
    }
    await place.drain()
    await reader.read_all()
    code, out, _ = await cli("message", "receipts", message)
    assert (code, out.splitlines()[0].split()[:3]) == (0, ["revision", "1", "settled"])
    told = [line.split()[:3] for line in out.splitlines()[1:]]
    assert told == [
        ["TO", "HOW", "STATE"],
        ["coder", "steer", "acked"],
        ["qa", "deliver", "waiting_for_session"],
    ]
    assert "no session is live, and its wake is off" in out
    await reader.beat(turn=1)
    held = (await reader.post("hm", turn=1)).message
    code, out, _ = await cli("message", "receipts", str(held.id))
    assert (code, out.startswith("held since 20"), "coder is still writing" in out) == (0, True, True)
    assert (await cli("message", "receipts", str(place.tenant)))[0] == 3


async def test_a_post_is_read_from_stdin_and_sent_again_it_is_the_same_message(cli):
    sent = ("post", "general", "-", "--request-id", "r1", "--json")
    code, out, err = await cli(*sent, stdin="- one\n- two\n")
    assert (code, json.loads(out)["text"], err) == (0, "- one\n- two", "")
    _, again, _ = await cli(*sent, stdin="- one\n- two\n")
    assert json.loads(again)["id"] == json.loads(out)["id"]
    code, out, _ = await cli(*sent, stdin="- three")
    assert (code, json.loads(out)["code"]) == (1, "request_id_reused")
    for nothing in (("post", "general", " "), ("post", "general", "-"), ("post", "general")):
        code, out, err = await cli(*nothing)
        assert (code, out) == (2, ""), nothing
        assert err.startswith("mainspring: ")
    assert (await cli("post", "nowhere", "x"))[0] == 3
    assert (await cli("post", "general", "x", role="viewer"))[0] == 4


@pytest.mark.slow
async def test_a_history_is_read_from_the_top_and_says_what_is_edited_or_held(cli, place):
    author = await place.reader("coder")
    for n in range(3):
        await cli("post", "general", f"line {n}\nmore", "--topic", "Pumps" if n == 1 else "other")
    await author.beat(turn=1)
    held = (await author.post("still\x1b[2J thinking", turn=1)).message
    _, out, _ = await cli("channel", "history", "general", "--last", "1", "--json", "--topic", "PUMPS")
    [pumps] = rows(out)
    assert (await cli("message", "edit", pumps["id"], "line one"))[0] == 0
    code, out, _ = await cli("channel", "history", "general")
    posted = [line for line in out.splitlines() if not line.startswith(" ")]
    assert code == 0
    assert [line.split("  ")[0] for line in posted] == ["1", "2", "3", "4"]
    assert posted[1].endswith("  Pumps  anna: line one  (edited, revision 2)")
    assert posted[3].endswith(
        "  general  coder: still\ufffd[2J thinking  (held: its author is still writing)"
    )
    assert "anna: line 2\n    more\n" in out
    assert (
        rows((await cli("channel", "history", "general", "--last", "2", "--json"))[1])[0]["channel_seq"] == 3
    )
    assert [
        one["channel_seq"]
        for one in rows((await cli("channel", "history", "general", "--after", "2", "--json"))[1])
    ] == [3, 4]
    assert (
        rows((await cli("channel", "history", "general", "--topic", "other", "--after", "1", "--json"))[1])[
            0
        ]["channel_seq"]
        == 3
    )
    assert (
        rows((await cli("channel", "history", "general", "--topic", pumps["topic_id"], "--json"))[1])[0][
            "text"
        ]
        == "line one"
    )
    await cli("channel", "create", "elsewhere")
    for topic in ("nothing", pumps["topic_id"]):
        assert (await cli("channel", "history", "elsewhere", "--topic", topic))[0] == 3
    assert (await cli("channel", "history", "general", "--last", "-1"))[0] == 2
    code, out, _ = await cli("channel", "topics", "general")
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["general", "1"],
        ["other", "0"],
        ["Pumps", "0"],
    ]
    code, out, _ = await cli("message", "show", str(held.id))
    assert (code, "settled   held: its author is still writing" in out) == (0, True)


async def test_messages_behind_a_seq_come_page_by_page(cli):
    for n in range(3):
        await cli("post", "general", f"{n}", "--topic", "t")
    path, seen, after = "channels/general/messages?after_seq=0&limit=1&topic=t", [], ""
    while after is not None and len(seen) < 9:
        page = json.loads((await cli("api", "GET", path + after, "--json"))[1])
        seen += [one["text"] for one in page["data"]]
        after = None if page["next"] is None else f"&after={page['next']}"
    assert seen == ["0", "1", "2"]


@pytest.mark.slow
async def test_what_is_followed_is_printed_as_it_comes_and_again_when_it_is_edited(cli, url, place):
    await cli("channel", "create", "elsewhere")
    await cli("post", "general", "before", "--topic", "pumps")
    following = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mainspring", "channel", "history", "general", "-f", "--topic", "Pumps", "--json",
        stdout=asyncio.subprocess.PIPE,
        env={**CLEAN, "MAINSPRING_URL": url, "MAINSPRING_TOKEN": os.environ["MAINSPRING_TOKEN"]},
    )  # fmt: skip

    async def told():
        assert following.stdout is not None
        line = json.loads(await asyncio.wait_for(following.stdout.readline(), DEADLINE_SECONDS))
        held.append(line["held"])
        return line["text"], line["revision"]

    held: list[bool] = []
    try:
        assert await told() == ("before", 1)
        await cli("post", "elsewhere", "not here", "--topic", "pumps")
        await cli("post", "general", "not this", "--topic", "other")
        _, out, _ = await cli("post", "general", "frist", "--topic", "pumps", "--json")
        assert await told() == ("frist", 1)
        await cli("message", "edit", json.loads(out)["id"], "first")
        assert await told() == ("first", 2)
        await place.post("from the service", topic="pumps")
        assert await told() == ("from the service", 1)
        author = await place.reader("coder")
        await author.beat(turn=1)
        await author.post("so far", turn=1, topic="pumps")
        assert await told() == ("so far", 1)
        await author.settle(1)
        assert await told() == ("so far", 1)
        assert held == [False] * 4 + [True, False], "that it has settled is told, too"
    finally:
        following.terminate()
        await following.wait()


async def test_a_channel_is_changed_and_messages_pinned(cli):
    pinned = [json.loads((await cli("post", "general", f"rule {n}", "--json"))[1])["id"] for n in range(2)]
    for message in pinned:
        assert (await cli("channel", "pin", "general", message))[0] == 0
    assert (await cli("channel", "pin", "general", pinned[0]))[0] == 1, "it is there already"
    code, out, _ = await cli("channel", "unpin", "general", pinned[0], "--json")
    assert (code, [one["id"] for one in rows(out)]) == (0, [pinned[1]])
    assert [one["id"] for one in rows((await cli("channel", "pins", "general", "--json"))[1])] == [pinned[1]]
    code, out, _ = await cli("channel", "edit", "general", "--purpose", "All", "--posts", "owner")
    assert (code, out) == (0, "#general  [open]  its owner posts  All\n")
    assert (await cli("channel", "edit", "general"))[0] == 2
    assert (await cli("channel", "edit", "general", "--archive", who="bob", role="member"))[0] == 4
    code, out, _ = await cli("channel", "edit", "general", "--archive")
    assert (code, "All  archived 20" in out) == (0, True)
    assert (await cli("post", "general", "too late"))[0] == 5
    assert (await cli("channel", "edit", "general", "--no-archive"))[
        1
    ] == "#general  [open]  its owner posts  All\n"


async def test_a_topic_is_renamed_archived_and_brought_back(cli):
    said = json.loads((await cli("post", "general", "one", "--topic", "North / South", "--json"))[1])
    await cli("post", "general", "two", "--topic", "other")
    code, out, _ = await cli("channel", "topic", "#general", "north / south", "--rename", "Pumps")
    assert (code, out) == (0, "#general › Pumps\n")
    code, out, _ = await cli("channel", "topic", "general", said["topic_id"], "--archive", "--json")
    assert (code, json.loads(out)["name"], json.loads(out)["archived_at"] is None) == (0, "Pumps", False)
    assert [one["name"] for one in rows((await cli("channel", "topics", "general", "--json"))[1])] == [
        "other"
    ]
    code, out, _ = await cli("channel", "topic", "general", "pumps", "--no-archive")
    assert (code, out) == (0, "#general › Pumps\n")
    assert (await cli("channel", "topic", "general", "pumps", "--rename", "OTHER"))[0] == 5
    code, _, err = await cli("channel", "topic", "general", "nowhere", "--archive")
    assert (code, "no topic nowhere in general" in err) == (3, True)
    assert (await cli("channel", "topic", "general", "pumps"))[0] == 2


async def test_a_question_in_a_channel_is_listed_and_answered(cli, place):
    reader = await place.reader("coder")
    ask = {"type": "ask", "id": "q", "question": "Which region?", "options": ["eu", "us"]}
    await place.home.room.chat.post(
        reader.actor, "general", topic="deploy", blocks=[ask], mentions=[], request_id="r"
    )
    code, out, _ = await cli("ask", "list")
    assert (code, out.splitlines()[1].split()[1:5]) == (0, ["coder", "#general", "›", "deploy"])
    [listed] = rows((await cli("ask", "list", "--json"))[1])
    assert "where" not in listed
    code, out, _ = await cli("ask", "answer", listed["id"], "EU")
    assert (code, out.splitlines()[0], out.splitlines()[-1]) == (0, "Which region?", "answered  eu, by anna")
    assert "asked by  coder in #general › deploy, message " in out
    assert (await cli("ask", "answer", listed["id"], "us"))[0] == 5


@pytest.mark.slow
async def test_a_mention_is_waited_for_and_read(cli, place):
    await place.person("bob")
    waiting = asyncio.create_task(
        cli("inbox", "wait", "--timeout-seconds", "30", "--json", who="bob", role="viewer")
    )
    while not place.home.services.tails.open:  # noqa: ASYNC110 - nobody is called when a stream begins
        await asyncio.sleep(0)
    mention = (await place.post("@bob look at this")).message
    code, out, _ = await waiting
    [item] = rows(out)
    assert (code, item["read"], item["message"]["id"]) == (0, False, str(mention.id))
    assert (await cli("inbox", "wait", who="bob"))[0] == 0
    code, out, _ = await cli("inbox", "list", who="bob")
    assert (code, out.splitlines()[1].split()[:3]) == (0, [item["id"], "general", "general"])
    assert (await cli("inbox", "ack", item["id"]))[0] == 3, "another's"
    code, out, _ = await cli("inbox", "ack", item["id"], who="bob")
    assert (code, out) == (0, "1 marked as read\n")
    assert (await cli("inbox", "list", who="bob"))[1:] == ("", "nothing\n")
    assert (await cli("inbox", "wait", "--timeout-seconds", "0.05", who="bob"))[::2] == (
        6,
        "mainspring: nothing came to your inbox within 0.05 s\n",
    )
    await place.post("@bob and again")
    code, out, _ = await cli("inbox", "ack", "--all", "--json", who="bob")
    assert (code, json.loads(out)) == (0, {"read": 1})
    code, out, _ = await cli("inbox", "list", "--all", "--json", who="bob")
    assert [one["read"] for one in rows(out)] == [True, True]
    for usage in (("inbox", "ack"), ("inbox", "ack", item["id"], "--all")):
        assert (await cli(*usage, who="bob"))[0] == 2


async def test_messages_are_found_shown_and_edited_by_their_author(cli, place):
    await cli("channel", "create", "elsewhere")
    _, out, _ = await cli("post", "general", "The pump is broken", "--json")
    first = json.loads(out)["id"]
    await cli("post", "elsewhere", "Which pump?")
    code, out, _ = await cli("message", "search", "PUMP", "--json")
    assert (code, [one["text"] for one in rows(out)]) == (0, ["Which pump?", "The pump is broken"])
    _, out, _ = await cli("message", "search", "pump", "broken")
    assert out.splitlines()[1].split()[0] == first
    _, out, _ = await cli("message", "search", "pump", "--channel", "elsewhere", "--json")
    assert [one["text"] for one in rows(out)] == ["Which pump?"]
    assert (await cli("message", "search"))[0] == 2
    assert (await cli("message", "edit", first, "mine", who="bob"))[0] == 4
    code, out, _ = await cli("message", "edit", first, "-", stdin="The pump runs\n")
    assert (code, out.rstrip().endswith("anna: The pump runs  (edited, revision 2)")) == (0, True)
    assert (await cli("message", "edit", first, "again", "--if-revision", "1"))[0] == 5
    code, out, _ = await cli("message", "show", first)
    assert (code, out.splitlines()[0]) == (0, "The pump runs")
    assert "where     #general › general, seq 1" in out
    assert (await cli("message", "show", str(place.tenant)))[0] == 3


async def test_sessions_are_listed(cli, place):
    assert (await cli("session", "list"))[1:] == ("", "nothing\n")
    reader = await place.reader("coder")
    await reader.beat(turn=2)
    code, out, _ = await cli("session", "list")
    assert (code, out.splitlines()[1].split()[1:5]) == (0, ["coder", "-", "working", "2"])
    await reader.end()
    assert (await cli("session", "list"))[1] == ""
    code, out, _ = await cli("session", "list", "--all", "--json")
    assert [(one["state"], one["reason"]) for one in rows(out)] == [("stopped", "the test says so")]


async def test_a_card_is_commented_on_in_its_topic(cli, place):
    boards = place.home.services.boards
    await boards.create_board(
        place.anna, key="OPS", name="Operations", states=[BoardState(name="todo")], reflect={}
    )
    await boards.create_card(place.anna, "OPS", NewCard(title="Mend the pump"))
    code, out, err = await cli("card", "comment", "ops-1", "@bob it leaks", "--request-id", "r1")
    assert (code, out.split(maxsplit=1)[1]) == (0, "#ops › OPS-1  seq 1\n")
    assert err.startswith("owed to nobody")
    code, again, _ = await cli("card", "comment", "OPS-1", "-", "--request-id", "r1", stdin="@bob it leaks\n")
    assert (code, again) == (0, out)
    code, out, _ = await cli("channel", "history", "ops", "--topic", "ops-1", "--json")
    assert [one["text"] for one in rows(out)] == ["@bob it leaks"]
    assert (await cli("card", "comment", "OPS-9", "x"))[0] == 3


async def test_an_agent_is_woken_or_not(cli, place):
    code, out, _ = await cli("agent", "create", "sleeper", "--wake", "--json")
    assert (code, json.loads(out)["wake"]) == (0, True)
    await place.home.room.chat.join(place.anna, "general", "sleeper", subscribed=True)
    await place.post("wake up")
    await place.drain()
    await place.home.room.nets.run_once()
    assert [row["recipient"] for row in await place.effects("wake")] == ["sleeper"]
    code, out, _ = await cli("agent", "edit", "sleeper", "--no-wake", "--json")
    told = json.loads(out)
    assert (code, told["wake"], told["version"], told["slots"]) == (0, False, 2, 1)
    code, out, _ = await cli("agent", "edit", "sleeper", "--wake")
    assert (code, "woken by messages" in out) == (0, True)
    _, out, _ = await cli("audit", "list", "--json")
    assert [one["verb"] for one in rows(out)][:3] == ["agent.update", "agent.update", "agent.create"]
