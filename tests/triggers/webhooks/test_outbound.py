"""Sending, to a real server: where it goes, where it never goes, and what is made of each way in which it can end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import pytest

from mainspring.triggers.webhooks import model, outbound
from mainspring.triggers.webhooks.model import (
    Answered,
    Message,
    NotAllowed,
    NotSent,
    Place,
    Reply,
    Unanswered,
)
from mainspring.triggers.webhooks.outbound import SAID_SHOWN_MAX, Outbound, Resolver
from tests.triggers.webhooks.hook_server import (
    HookServer,
    Writing,
    endless,
    flood,
    hang_up,
    hook_server,
    nonsense,
    plain,
    silence,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
STUCK = 20.0


@pytest.fixture
async def server() -> AsyncIterator[HookServer]:
    async with hook_server() as made:
        yield made


def message(url: str, body: bytes = b"{}") -> Message:
    place = model.place_of(url)
    assert isinstance(place, Place)
    return model.message_of(place, body, id_="msg_1", secret=SECRET, now=NOW)


async def post(url: str, *, allow_private: bool = True, body: bytes = b"{}", **how: object) -> Reply:
    sender = Outbound(allow_private=allow_private, **how)  # type: ignore[arg-type]
    async with asyncio.timeout(STUCK):
        return await sender.post(message(url, body), now=NOW)


def names(**known: Sequence[str]) -> Resolver:
    """A resolver that knows these names, and remembers nothing."""

    async def resolve(host: str, _port: int) -> Sequence[str]:
        if host.partition(".")[0] not in known:
            raise OSError("Name or service not known")
        return known[host.partition(".")[0]]

    return resolve


async def test_it_sends_what_was_signed(server: HookServer):
    assert await post(server.url(), body='{"ä":1}'.encode()) == Answered(status=204)
    [got] = server.received
    assert (got.line, got.body) == ("POST /hook?x=1 HTTP/1.1", '{"ä":1}'.encode())
    assert got.headers["host"] == f"127.0.0.1:{server.port}"
    assert got.headers["webhook-id"] == "msg_1"
    assert got.headers["content-type"] == "application/json"


async def test_it_goes_to_the_address_that_was_looked_at_under_the_name_that_was_asked_for(
    server: HookServer,
):
    answers = [["127.0.0.1"], ["192.0.2.1"]]

    async def turns(_host: str, _port: int) -> Sequence[str]:
        return answers.pop(0)

    assert await post(server.url("hooks.example.com"), resolve=turns) == Answered(status=204)
    assert server.received[0].headers["host"] == f"hooks.example.com:{server.port}"
    assert len(answers) == 1  # asked once: a second answer has no say


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "0x7f.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]"]
)
async def test_nothing_is_sent_to_a_private_address_however_it_is_written(server: HookServer, host: str):
    reply = await post(server.url(host), allow_private=False)
    assert isinstance(reply, NotAllowed)
    assert "webhook_allow_private" in reply.error
    assert server.received == []


@pytest.mark.parametrize(
    "found", [["10.0.0.7"], ["8.8.8.8", "127.0.0.1"], ["169.254.169.254"], ["fe80::1%eth0"], ["::1"]]
)
async def test_a_name_one_of_whose_addresses_is_private_is_refused(server: HookServer, found: list[str]):
    reply = await post(server.url("hooks.example.com"), allow_private=False, resolve=names(hooks=found))
    assert isinstance(reply, NotAllowed)
    assert server.received == []


async def test_a_redirect_is_refused(server: HookServer):
    server.answers = [plain(302, location=server.url(path="/elsewhere"))]
    assert await post(server.url()) == Answered(status=302)
    assert [got.line for got in server.received] == ["POST /hook?x=1 HTTP/1.1"]


async def test_no_proxy_is_asked(server: HookServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1/")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1/")
    assert await post(server.url()) == Answered(status=204)


async def test_a_name_that_means_nothing_may_mean_something_later():
    reply = await post("http://nowhere.example/", resolve=names())
    assert isinstance(reply, NotSent)
    assert "cannot be resolved" in reply.error


async def test_a_refused_connection_has_sent_nothing(server: HookServer):
    async with hook_server() as gone:
        url = gone.url()
    reply = await post(url)
    assert isinstance(reply, NotSent)
    assert "ConnectError" in reply.error


async def test_an_address_that_takes_no_connection_is_followed_by_the_next(server: HookServer):
    url = server.url("hooks.example.com")
    assert await post(url, resolve=names(hooks=["127.0.0.2", "127.0.0.1"])) == Answered(status=204)


@pytest.mark.parametrize("answer", [silence, hang_up, nonsense])
async def test_what_was_sent_and_not_answered_may_have_happened(server: HookServer, answer: Writing):
    server.answers = [answer]
    reply = await post(server.url(), timeout_seconds=0.3)
    assert isinstance(reply, Unanswered)
    assert len(server.received) == 1


async def test_a_name_that_is_looked_up_for_ever_has_sent_nothing():
    async def slow(_host: str, _port: int) -> Sequence[str]:
        return await asyncio.Event().wait() and []

    assert isinstance(await post("http://slow.example/", resolve=slow, timeout_seconds=0.05), NotSent)


async def test_what_it_says_with_a_refusal_is_kept_in_short(server: HookServer):
    server.answers = [plain(400, b"no\x00 such\n\tcard \xff" + b"x" * 5000)]
    reply = await post(server.url())
    assert isinstance(reply, Answered)
    assert reply.said.startswith("no such card \N{REPLACEMENT CHARACTER}x")
    assert len(reply.said) == SAID_SHOWN_MAX


@pytest.mark.parametrize("status", [200, 500])
async def test_a_slow_body_is_cut_off_and_the_status_counts(
    server: HookServer, status: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outbound, "SAID_SECONDS", 0.1)
    server.answers = [endless(status)]
    reply = await post(server.url())
    assert isinstance(reply, Answered)
    assert (reply.status, reply.said) == (status, "" if status == 200 else "beginning")


@pytest.mark.parametrize("status", [200, 500])
async def test_a_flood_is_not_read(server: HookServer, status: int):
    server.answers = [flood(status)]
    reply = await post(server.url())
    assert isinstance(reply, Answered)
    assert reply.status == status


async def test_retry_after_is_told(server: HookServer):
    server.answers = [plain(503, retry_after="120")]
    assert await post(server.url()) == Answered(status=503, retry_after_seconds=120.0)


async def test_a_header_without_end_is_no_answer(server: HookServer):
    async def write(to: asyncio.StreamWriter) -> None:
        to.write(b"HTTP/1.1 200 X\r\n")
        for n in range(100_000):
            to.write(f"x-{n}: {'y' * 100}\r\n".encode())
            await to.drain()

    server.answers = [write]
    assert isinstance(await post(server.url()), Unanswered)


@pytest.mark.slow
async def test_plain_text_where_tls_is_spoken_has_sent_nothing(server: HookServer):
    reply = await post(server.url().replace("http://", "https://"), timeout_seconds=0.5)
    assert isinstance(reply, NotSent)
