"""The SDK and the server as a pair: a command whose answer is cut off behind its commit is sent again, and done once."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from mainspring.sdk import Client
from mainspring.sdk.card import card_from
from mainspring.sdk.execution import Agent
from mainspring.sdk.introduction import introduced


class Cuts(httpx.AsyncBaseTransport):
    """The way to the app, which loses the answer to each command once, after the app has given it; at most `left` times."""

    def __init__(self, app: Any) -> None:
        self.left = 100
        self._way = httpx.ASGITransport(app, raise_app_exceptions=False, client=("127.0.0.1", 5))
        self.seen: list[tuple[str, str, str | None]] = []
        self.replayed: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        key = request.headers.get("idempotency-key")
        sent = (request.method, request.url.path.removeprefix("/api/v1"), key)
        first = sent not in self.seen
        self.seen.append(sent)
        answer = await self._way.handle_async_request(request)
        await answer.aread()
        if first and key is not None and self.left > 0:
            self.left -= 1
            raise httpx.ReadError("cut")
        if answer.headers.get("idempotency-replayed"):
            self.replayed.append(sent[1])
        return answer


@pytest.fixture
async def cut(board):
    way = Cuts(board.app)
    async with httpx.AsyncClient(transport=way) as http:
        yield Client("http://test", board.tokens["operator"], http=http), way


async def test_a_card_whose_creation_was_not_answered_is_one_card(board, cut):
    client, way = cut
    made = await client.post("/cards", {"board": "OPS", "title": "one"})
    assert [card["key"] for card in (await board.get("cards"))["data"]] == [made["key"]]
    assert [e["kind"] for e in (await board.get("events", kind="card.*"))["data"]] == ["card.created"]
    assert way.replayed == ["/cards"]
    assert len({key for _, _, key in way.seen}) == 1


@pytest.mark.slow
async def test_a_move_and_an_edit_at_a_version_are_not_refused_for_what_they_did_themselves(board, cut):
    client, way = cut
    card = card_from(await client.post("/cards", {"board": "OPS", "title": "one"}), client)
    moved = await card.move("review", if_version=card.version)
    edited = await moved.edit(title="two", if_version=moved.version)
    assert (edited.state, edited.title, edited.version) == ("review", "two", card.version + 2)
    assert len(way.replayed) == 3


async def test_a_command_that_was_refused_is_refused_again(board, cut):
    client, _ = cut
    with pytest.raises(Exception, match="nowhere"):
        await client.post("/cards", {"board": "nowhere", "title": "one"})
    assert (await board.get("cards"))["data"] == []


async def test_a_runners_token_whose_secret_was_cut_off_is_revoked_and_another_made(board, cut):
    client, way = cut
    way.left = 1
    agents = [Agent("echo", 1, 60, lambda run: None)]
    async with introduced(client, agents) as runner:
        assert (await runner.get("/whoami"))["token_kind"] == "runner"
        made = [one for one in (await board.get("tokens"))["data"] if one["agents"] == ["echo"]]
        assert sorted(one["valid"] for one in made) == [False, True]
    made = [one for one in (await board.get("tokens"))["data"] if one["agents"] == ["echo"]]
    assert [one["valid"] for one in made] == [False, False]
