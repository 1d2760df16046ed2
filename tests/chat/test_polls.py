"""A session's long poll: who waits is looked at again before anything is given to them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.server.test_streams import PATIENCE_SECONDS


@pytest.fixture
async def polling(place, app):
    """`await polling(reader)` → the token's id and the task of a poll that waits at this server."""
    polls: list[asyncio.Task[Any]] = []
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:

        async def start(reader):
            token, secret = await place.home.services.tokens.create(
                place.anna, kind="agent", role="member", account=reader.actor.handle
            )
            path = f"/api/v1/sessions/{reader.session.id}/inbox?claim_id={reader.session.claim_id}&wait={PATIENCE_SECONDS}"
            headers = {"Authorization": f"Bearer {secret}"}
            polls.append(asyncio.create_task(client.get(path, headers=headers, timeout=None)))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not place.home.room.waits.asleep:  # noqa: ASYNC110 - nobody is told when one begins to wait
                    await asyncio.sleep(0)
            return token.id, polls[-1]

        yield start
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)


async def said(place) -> None:
    """Let something be owed, and those who wait be called."""
    await place.post("for whoever reads")
    await place.drain()
    await place.home.room.waits.run_once()


async def test_one_who_waits_is_given_what_comes(place, polling):
    _, poll = await polling(await place.reader("one"))
    await said(place)
    answer = await asyncio.wait_for(poll, PATIENCE_SECONDS)
    assert [one["message"]["text"] for one in answer.json()["deliveries"]] == ["for whoever reads"]


async def test_a_token_that_is_revoked_while_it_waits_is_given_nothing_more(place, polling):
    reader = await place.reader("one")
    token, poll = await polling(reader)
    await place.home.services.tokens.revoke(place.tenant, token)
    await said(place)
    answer = await asyncio.wait_for(poll, PATIENCE_SECONDS)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    [owed] = await place.effects("deliver")
    assert (owed["state"], owed["claim_id"]) == ("pending", None)
