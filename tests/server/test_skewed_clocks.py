"""Two servers on one database, one with its clock an hour ahead and one an hour behind: everything goes by the database's.

libfaketime gives a process its own clock: that of the development environment (`make setup`), or the system's (`faketime`).
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainspring import wiring
from mainspring.config import Settings
from mainspring.ids import new_id
from tests.server.conftest import BOARD, DEADLINE_SECONDS, people

pytestmark = [pytest.mark.processes, pytest.mark.slow]

HOUR_SECONDS = 3_600
LEASE_SECONDS = 5
RULE = {
    "name": "go",
    "when": {"kinds": ["card.moved"], "boards": ["OPS"], "to_states": ["doing"], "labels_all": ["go"]},
    "do": {"launch": {"agent": "echo", "prompt": "work on {{card.title}}"}},
    "options": {"consume_label": True, "max_event_age_seconds": 600},
}


def with_clock(offset_seconds: int) -> dict[str, str] | None:
    """The environment in which a process's clock is off by so much; None when there is no libfaketime that works here."""
    found = importlib.util.find_spec("libfaketime")
    folders = [
        Path(one, "vendor/libfaketime/src") for one in (found and found.submodule_search_locations) or ()
    ]
    candidates = [folder / "libfaketime.so.1" for folder in folders]
    candidates += sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    for library in filter(Path.exists, candidates):
        env = {
            "LD_PRELOAD": str(library),
            "FAKETIME": f"{offset_seconds:+d}s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        asked = [sys.executable, "-c", "import time; print(time.time())"]
        said = subprocess.run(asked, env=os.environ | env, capture_output=True, text=True, check=False).stdout
        try:
            if abs(float(said) - time.time() - offset_seconds) < HOUR_SECONDS / 2:
                return env
        except ValueError:
            continue
    return None


@dataclass(slots=True)
class Server:
    """One of the two, as an operator and as a runner see it."""

    client: httpx.AsyncClient
    operator: str
    runner: str

    async def ask(
        self, method: str, path: str, body: Any = None, *, secret: str | None = None, **headers: str
    ) -> httpx.Response:
        sent = {"Authorization": f"Bearer {secret or self.operator}", **headers}
        return await self.client.request(method, f"/api/v1/{path}", json=body, headers=sent)

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        answer = await self.ask(method, path, body, **more)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    async def claim(self, incarnation: str, name: str = "laptop") -> Any:
        asked = {"runner": name, "incarnation": incarnation, "slot": 0}
        return (await self.call("POST", "runner/claim?wait=0", asked, secret=self.runner))["run"]

    async def tell(self, run: Any, verb: str, **said: Any) -> Any:
        claim = {"claim_id": run["claim_id"], **said}
        return await self.call("POST", f"runs/{run['id']}/{verb}", claim, secret=self.runner)


@dataclass(slots=True)
class Pair:
    """The server that is ahead, and the one that is behind."""

    ahead: Server
    behind: Server
    database: Any

    @property
    def both(self) -> tuple[Server, Server]:
        return self.ahead, self.behind

    async def until(self, holds: Any, what: str) -> None:
        """Ask until it holds."""
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not await holds():  # noqa: ASYNC110 - other processes' commits wake nobody here
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"never: {what}") from None

    async def queued_run(self) -> Any:
        """A card that is made by the one and moved by the other, and its run, claimed from the first."""
        card = await self.ahead.call("POST", "cards", {"board": "OPS", "title": "x", "labels": ["go"]})
        await self.behind.call("POST", f"cards/{card['key']}/move", {"state": "doing"})

        async def queued() -> bool:
            return bool((await self.ahead.call("GET", f"runs?card={card['key']}"))["data"])

        await self.until(queued, "the run of the card")
        return card


@pytest.fixture
async def pair(serve, fresh_database) -> AsyncIterator[Pair]:
    clocks = [with_clock(HOUR_SECONDS), with_clock(-HOUR_SECONDS)]
    if None in clocks:
        pytest.skip("no libfaketime works here: `pip install libfaketime`, or `apt-get install faketime`")
    database = await fresh_database("server")
    services = await wiring.build(Settings(database_url=database.url))
    _, actors, tokens = await people(services)
    await services.agents.create(actors["operator"], handle="echo", slots=4)
    _, secret = await services.tokens.create(actors["operator"], kind="runner", agents=["echo"])
    await services.stop()
    settings = {"MAINSPRING_RUN_LEASE_SECONDS": str(LEASE_SECONDS)}
    servers = [await serve(database.url, **settings, **(clock or {})) for clock in clocks]
    for server in servers:
        assert "ready at" in await server.ready()
    async with (
        httpx.AsyncClient(base_url=servers[0].url) as first,
        httpx.AsyncClient(base_url=servers[1].url) as other,
    ):
        one, two = (Server(client, tokens["operator"], secret) for client in (first, other))
        await one.call("POST", "boards", BOARD)
        await one.call("POST", "rules", RULE)
        yield Pair(one, two, database)


async def doctors_clock(server: Server) -> str:
    found = (await server.call("GET", "doctor"))["findings"]
    return next(str(one) for one in found if one["check"] == "clock")


async def test_with_clocks_two_hours_apart_nothing_is_stolen_starts_early_or_ends_early(pair: Pair) -> None:
    for server, word in ((pair.ahead, "ahead of"), (pair.behind, "behind")):
        assert word in await doctors_clock(server)

    # a claim that is renewed now by the one, now by the other, while a claim beside it is left alone until it is taken back
    for _ in range(2):
        await pair.queued_run()
    lives, abandoned = str(new_id()), str(new_id())
    run = await pair.ahead.claim(lives)
    left = await pair.behind.claim(abandoned, name="gone")
    await pair.behind.tell(run, "heartbeat")
    await pair.ahead.tell(left, "heartbeat")
    turn, beats = [pair.ahead, pair.behind], [time.monotonic()]

    async def taken_back() -> bool:
        turn.reverse()
        beats.append(time.monotonic())
        beat = await turn[0].tell(run, "heartbeat")
        assert beat["attempt"] == 1
        return (await turn[0].call("GET", f"runs/{left['id']}"))["state"] == "queued"

    await pair.until(taken_back, "the end of the lease that nobody renewed")
    told = (await pair.ahead.call("GET", f"events?subject={run['id']}"))["data"]
    if max(later - earlier for earlier, later in pairwise(beats)) > LEASE_SECONDS / 2:
        pytest.skip("this machine was too busy for a runner to be heard of in time")
    kinds = sorted(event["kind"] for event in told)
    assert kinds == ["run.queued", "run.started"], "it was taken back, and resumed"

    # what is to wait for ten minutes waits, whoever is asked
    await pair.behind.tell(run, "complete", outcome="retry", error="not now", after_seconds=600)
    for server in pair.both:
        taken = await server.claim(str(new_id()), name="eager")
        assert taken is None or taken["id"] != run["id"]

    # a question with ten minutes to be answered is open still, and its answer counts
    await pair.queued_run()
    asking = await pair.ahead.claim(str(new_id()), name="asker")
    await pair.behind.tell(asking, "heartbeat")
    asked = {"request_id": str(new_id()), "question": "Go on?", "timeout_seconds": 600}
    ask = await pair.ahead.tell(asking, "ask", **asked)
    await pair.behind.tell(asking, "heartbeat", asks=[ask["id"]])
    answered = await pair.behind.call("POST", f"asks/{ask['id']}/answer", {"answer": "yes"})
    assert answered["answer"] == "yes"
    await pair.ahead.tell(asking, "complete", outcome="done")

    # tokens and keys are good for as long as they say
    for one, other in (pair.both, pair.both[::-1]):
        made = await one.call(
            "POST", "tokens", {"kind": "user", "account": "ben", "role": "viewer", "expires_in_seconds": 600}
        )
        for server in pair.both:
            assert (await server.ask("GET", "whoami", secret=made["secret"])).status_code == 200
        expires = datetime.fromisoformat(made["token"]["expires_at"])
        assert abs(expires - datetime.now(UTC) - timedelta(seconds=600)) < timedelta(seconds=HOUR_SECONDS / 2)
        key = {"Idempotency-Key": str(new_id())}
        body = {"board": "OPS", "title": "once"}
        first = await one.ask("POST", "cards", body, **key)
        again = await other.ask("POST", "cards", body, **key)
        assert again.headers["Idempotency-Replayed"] == "true"
        assert again.json() == first.json()

    # no launch was taken over, put off or dropped for its age, and all is owed and done once
    for server in pair.both:
        launches = (await server.call("GET", "effects?kind=launch"))["data"]
        assert [(one["state"], one["attempts"], one["crashes"]) for one in launches] == [("done", 0, 0)] * 3
        verified = await server.call("GET", "verify")
        assert verified["ok"], verified
