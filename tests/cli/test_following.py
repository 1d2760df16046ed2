"""What is followed is told as it happens, once and in order; and it ends when it should."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from mainspring.cli.following import Message, _message, line_of
from tests.cli.conftest import CLEAN, DEADLINE_SECONDS

processes = [pytest.mark.processes, pytest.mark.slow]


async def start(cli, *argv):
    """Start a command that goes on."""
    env = {
        **CLEAN,
        "HOME": str(cli.home),
        "MAINSPRING_URL": cli.url,
        "MAINSPRING_TOKEN": cli.tokens["operator"],
    }
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mainspring", *argv,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=cli.home, env=env,
    )  # fmt: skip


async def line(process):
    return (await asyncio.wait_for(process.stdout.readline(), DEADLINE_SECONDS)).decode()


class TestAsProcesses:
    pytestmark = processes

    async def test_a_watched_card_is_told_until_it_is_where_it_was_awaited(self, furnished):
        key = (await furnished.ok("card", "create", "OPS", "watched", "--json")).json()["key"]
        watching = await start(furnished, "card", "watch", key, "--until", "doing", "--timeout-seconds", "60")
        assert key in await line(watching)
        await furnished.ok("card", "create", "OPS", "another")
        await furnished.ok("card", "label", key, "urgent")
        await furnished.ok("card", "move", key, "doing")
        out, err = await asyncio.wait_for(watching.communicate(), DEADLINE_SECONDS)
        labeled, moved = out.decode().splitlines()
        assert f"card.labeled  {key}  +urgent" in labeled
        assert f"card.moved  {key}  todo → doing  by operator" in moved
        assert (watching.returncode, err) == (0, b"")

    async def test_what_does_not_happen_in_time_is_a_timeout(self, furnished):
        key = (await furnished.ok("card", "create", "OPS", "quiet", "--json")).json()["key"]
        ran = await furnished("card", "watch", key, "--until", "done", "--timeout-seconds", "0.5")
        assert ran.code == 6
        assert (await furnished("card", "watch", "OPS-999")).code == 3

    async def test_a_tail_goes_on_behind_what_it_began_with(self, furnished):
        first = (await furnished.ok("event", "post", "tailed", "--subject", "a", "--json")).json()
        tailing = await start(furnished, "event", "tail", "-f", "--kind", "custom.tailed", "--json")
        assert json.loads(await line(tailing)) == first
        for subject in ("b", "c"):
            await furnished.ok("event", "post", "tailed", "--subject", subject)
        assert [json.loads(await line(tailing))["subject"] for _ in range(2)] == ["b", "c"]
        tailing.terminate()
        await tailing.communicate()
        again = await start(
            furnished,
            "event",
            "tail",
            "-f",
            "--after",
            str(first["seq"]),
            "--kind",
            "custom.tailed",
            "--json",
        )
        assert [json.loads(await line(again))["subject"] for _ in range(2)] == ["b", "c"]
        again.terminate()
        await again.communicate()

    async def test_an_event_is_posted_once_for_its_key(self, furnished):
        said = ("event", "post", "custom.once", "--key", "k1", "--data", "-", "--json")
        first = await furnished.ok(*said, stdin='{"a": 1}')
        assert (await furnished.ok(*said, stdin='{"a": 1}')).json() == first.json()
        other = await furnished(*said, stdin='{"a": 2}')
        assert (other.code, other.json()["code"]) == (1, "key_reused")
        assert (await furnished("event", "post", "x", "--data", "{")).code == 2


def test_messages_are_read_as_they_are_written():
    assert _message(["retry: 1500", "id: 7"]) == Message(seq=7, retry_seconds=1.5)
    assert _message(["id: 8", 'data: {"a": ": b"}']) == Message(seq=8, data={"a": ": b"})
    assert _message(["event: bye", 'data: {"reason": "closing"}']).name == "bye"
    assert _message([": ping"]) == Message()


def test_a_line_holds_what_one_wants_to_know_and_nothing_that_moves_the_cursor():
    event = {"seq": 3, "occurred_at": "now", "kind": "run.failed", "subject": "s", "data": {
        "run": {"agent": "echo", "error": "no\n\x1b[2Jluck"}, "card": {"key": "OPS-1"}, "actor": {"handle": "ana"}}}  # fmt: skip
    told = line_of(event)
    assert told.startswith("3  now  run.failed  OPS-1  echo  no ")
    assert told.endswith("by ana")
    assert "\x1b" not in told
    assert (
        line_of({"seq": 1, "occurred_at": "now", "kind": "custom.x", "subject": "web", "data": {}})
        == "1  now  custom.x  web"
    )
