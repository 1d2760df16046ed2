"""Calls are cut off at any moment, thousands of times: the pool stays whole, no transaction stays open, and keys still hold."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import asyncpg
import pytest

from mainspring import wiring
from mainspring.config import Settings
from mainspring.server.app import create_app
from tests.server.conftest import people

pytestmark = pytest.mark.slow

CALLS = 10_000
INCARNATION = "01890a5d-ac96-774b-bcce-b302099a8057"
AT_ONCE = 24
PATIENCE_SECONDS = 30.0
NOT_IDLE = """
select pid, state, wait_event_type, wait_event, query_start, left(query, 300) as query from pg_stat_activity
where datname = current_database() and usename = $1 and backend_type = 'client backend' and state <> 'idle'
"""


class Caller:
    """Sends requests by raw ASGI, and is gone at a random moment of most of them."""

    def __init__(self, app: Any, secret: str, dice: random.Random) -> None:
        self._app = app
        self._secret = secret
        self._dice = dice
        self.cut = 0
        self.answered: Counter[int] = Counter()

    async def call(self, method: str, path: str, body: Any = None, *, key: str | None = None) -> int | None:
        """Send a request to its end; return its status."""
        route, _, query = path.partition("?")
        headers = [
            (b"authorization", f"Bearer {self._secret}".encode()),
            (b"content-type", b"application/json"),
        ]
        headers += [] if key is None else [(b"idempotency-key", key.encode())]
        scope = {
            "type": "http", "method": method, "path": f"/api/v1/{route}", "raw_path": b"", "query_string": query.encode(),
            "http_version": "1.1", "scheme": "http", "server": ("test", 80), "client": ("x", 1), "root_path": "",
            "headers": headers,
        }  # fmt: skip
        said = [
            {
                "type": "http.request",
                "body": b"" if body is None else json.dumps(body).encode(),
                "more_body": False,
            }
        ]
        status: list[int] = []

        async def receive() -> dict[str, Any]:
            if said:
                return said.pop()
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])

        await self._app(scope, receive, send)
        return status[0] if status else None

    async def call_and_leave(self, *asked: Any, **more: Any) -> None:
        """Send a request, and cut it off after a random number of turns of the loop."""
        task = asyncio.create_task(self.call(*asked, **more))
        for _ in range(int(2 ** self._dice.uniform(0, 8))):
            if task.done():
                break
            await asyncio.sleep(0)
        task.cancel()
        try:
            self.answered[await task or 0] += 1
        except asyncio.CancelledError:
            self.cut += 1


class Storm:
    """Calls of all sorts, at random, each cut off; `keys` are those under which cards were asked for."""

    def __init__(self, caller: Caller, claimant: Caller, dice: random.Random) -> None:
        self._caller = caller
        self._claimant = claimant
        self._dice = dice
        self.keys: list[str] = []

    async def rage(self, calls: int) -> None:
        left = iter(range(calls))

        async def some() -> None:
            for _ in left:
                await self._one()

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    async def _one(self) -> None:
        dice, cut = self._dice, self._caller.call_and_leave
        card = f"cards/OPS-{dice.randint(1, 20)}"
        match dice.randrange(10):
            case 0:
                self.keys.append(f"k{len(self.keys)}")
                await cut("POST", "cards", {"board": "OPS", "title": self.keys[-1]}, key=self.keys[-1])
            case 1 | 2:
                await cut("POST", f"{card}/move", {"state": dice.choice(["todo", "doing"])})
            case 3:
                await cut("PATCH", card, {"title": str(dice.random())}, key=str(dice.random()))
            case 4:
                await cut("POST", f"{card}/labels", {"add": ["x"]})
            case 5:
                await cut("GET", "events/stream?after=0")
            case 6:
                slot = {"runner": "r", "incarnation": INCARNATION, "slot": 0}
                await self._claimant.call_and_leave("POST", "runner/claim?wait=5", slot)
            case 7:
                await cut("POST", "events", {"kind": "custom.x", "key": str(dice.randrange(500))})
            case _:
                await cut("GET", dice.choice([card, "cards", "events?last=5", "doctor"]))


@pytest.fixture
async def served(fresh_database) -> Any:
    database = await fresh_database("server")
    services = await wiring.build(Settings(database_url=database.url, pool_size=12))
    yield services, database
    await services.stop()


async def test_calls_that_are_cut_off_leave_the_pool_whole_and_nothing_open(served):
    services, database = served
    app = create_app(services)
    tenant, actors, tokens = await people(services)
    await services.agents.create(actors["operator"], handle="echo")
    _, runner = await services.tokens.create(actors["operator"], kind="runner", agents=["echo"])
    dice = random.Random(2_207)
    caller, claimant = Caller(app, tokens["operator"], dice), Caller(app, runner, dice)
    board = {"key": "OPS", "name": "x", "states": [{"name": "todo"}, {"name": "doing"}]}
    assert await caller.call("POST", "boards", board) == 201
    for n in range(20):
        assert await caller.call("POST", "cards", {"board": "OPS", "title": f"c{n}"}) == 201
    storm = Storm(caller, claimant, dice)
    await storm.rage(CALLS)

    cut = caller.cut + claimant.cut
    assert cut > CALLS // 3
    assert sum(caller.answered.values()) > CALLS // 20
    assert set(caller.answered) <= {200, 201, 202, 409}
    assert (app.state.load.working, app.state.load.waiting, services.tails.open) == (0, 0, 0)
    assert services.pool.get_size() - services.pool.get_idle_size() == 0
    watcher = await asyncpg.connect(**database.admin)
    try:
        until = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while open_ones := await watcher.fetch(NOT_IDLE, database.dsn["user"]):
            assert not any("idle in transaction" in row["state"] for row in open_ones), open_ones
            assert asyncio.get_running_loop().time() < until, open_ones
    finally:
        await watcher.close()
    # every connection of the pool works, at once
    answers = await asyncio.gather(*(caller.call("GET", "cards") for _ in range(12)))
    assert answers == [200] * 12
    # whatever became of the first request, its key is one card
    tried = storm.keys
    for start in range(0, len(tried), AT_ONCE):
        await asyncio.gather(
            *(
                caller.call("POST", "cards", {"board": "OPS", "title": key}, key=key)
                for key in tried[start : start + AT_ONCE]
            )
        )
    async with services.db.tenant(tenant) as scope:
        made = await scope.fetch("select title from mainspring.cards where title = any($1::text[])", tried)
        numbered = await scope.fetchrow("select count(*), max(seq) from mainspring.events")
    assert sorted(row["title"] for row in made) == sorted(tried)
    assert numbered["count"] == numbered["max"]
