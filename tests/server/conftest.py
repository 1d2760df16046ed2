"""The whole server on a real database, in this process: a tenant of its own for each test, with a person for each role."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest
from fastapi import FastAPI

from mainspring import wiring
from mainspring.agents.tokens import NewToken, add_account, mint
from mainspring.config import Settings
from mainspring.ids import new_id
from mainspring.rooms import Actor
from mainspring.server.app import create_app
from mainspring.wiring import Services

DEADLINE_SECONDS = 30.0
BOARD = {
    "key": "OPS",
    "name": "Operations",
    "states": [
        {"name": "todo"},
        {"name": "doing"},
        {"name": "review"},
        {"name": "done", "terminal": True},
    ],
    "reflect": {"done": "review"},
}
RULE = {
    "name": "doing to echo",
    "when": {"kinds": ["card.moved"], "boards": ["OPS"], "to_states": ["doing"]},
    "do": {"launch": {"agent": "echo", "prompt": "work on {{card.title}}"}},
}


@pytest.fixture(scope="session")
async def database(databases) -> AsyncIterator[Any]:
    """One migrated database for all tests of the server."""
    made = await databases.create("server")
    yield made
    await databases.drop(made)


@pytest.fixture
async def admin(database) -> AsyncIterator[asyncpg.Connection]:
    """A superuser's connection, for tests that break rows or move time."""
    conn = await asyncpg.connect(**database.admin)
    yield conn
    await conn.close()


@pytest.fixture(scope="session")
async def services(database) -> AsyncIterator[Services]:
    """Everything joined, nothing started: tests run the engine by `spine.run_once`."""
    settings = Settings(database_url=database.url, dev_mode=True, pool_size=8)
    built = await wiring.build(settings)
    yield built
    await built.stop()


@pytest.fixture(scope="session")
def app(services) -> FastAPI:
    """The application of those services."""
    return create_app(services)


@dataclass(slots=True)
class World:
    """One tenant as its people see it."""

    tenant: UUID
    services: Services
    app: FastAPI
    actors: Mapping[str, Actor]
    tokens: dict[str, str]
    client: httpx.AsyncClient = field(repr=False)

    def headers(self, who: str = "operator") -> dict[str, str]:
        """The headers of somebody's requests."""
        return {"Authorization": f"Bearer {self.tokens[who]}"}

    async def call(self, method: str, path: str, who: str = "operator", **more: Any) -> httpx.Response:
        """Send a request as somebody; a path without a leading slash stands under the API."""
        url = path if path.startswith("/") else f"/api/v1/{path}"
        headers = {**self.headers(who), **more.pop("headers", {})}
        return await self.client.request(method, url, headers=headers, **more)

    async def get(self, path: str, who: str = "operator", **query: Any) -> Any:
        """Return what is there; the request must succeed."""
        answer = await self.call("GET", path, who, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, body: Any = None, who: str = "operator") -> Any:
        """Return the answer to a command; it must succeed."""
        answer = await self.call("POST", path, who, json=body if body is not None else {})
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    async def runner(self, *agents: str) -> Runner:
        """Return a runner of these agents."""
        made = await self.post("tokens", {"kind": "runner", "agents": list(agents)})
        return Runner(self, made["secret"])

    async def settle(self) -> None:
        """Drain and execute until nothing is due."""
        await self.services.spine.run_once()


def free_port() -> int:
    """Return a port that nobody listens on now; each process is given another one by the system."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def people(services: Services) -> tuple[UUID, dict[str, Actor], dict[str, str]]:
    """Make a tenant with somebody of each role; return it, them and their secrets."""
    tenant = new_id()
    await services.spine.create_tenant(tenant, "Test")
    actors, tokens = {}, {}
    async with services.db.tenant(tenant) as scope:
        for role in ("operator", "member", "viewer"):
            account = await add_account(scope, tenant, "human", role, role.title())
            assert account is not None
            actors[role] = Actor(tenant_id=tenant, account_id=account.id, kind="human", handle=role)
            new = NewToken(account_id=account.id, kind="user", role=role)
            _, tokens[role] = await mint(scope, tenant, new)
    return tenant, actors, tokens


@dataclass(slots=True)
class Runner:
    """A runner with one slot, over HTTP."""

    world: World
    secret: str
    incarnation: str = field(default_factory=lambda: str(new_id()))

    async def post(self, path: str, body: Any) -> Any:
        """Send one message of the runner protocol; it must be accepted."""
        headers = {"Authorization": f"Bearer {self.secret}"}
        answer = await self.world.client.post(f"/api/v1/{path}", headers=headers, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def claim(self) -> Any:
        """Claim the next run; None when there is none."""
        asked = {"runner": "laptop", "incarnation": self.incarnation, "slot": 0}
        return (await self.post("runner/claim?wait=0", asked))["run"]

    async def work(self, outcome: str, **said: Any) -> Any:
        """Claim the next run and complete it so."""
        run = await self.claim()
        await self.post(f"runs/{run['id']}/heartbeat", {"claim_id": run["claim_id"]})
        return await self.post(
            f"runs/{run['id']}/complete", {"claim_id": run["claim_id"], "outcome": outcome, **said}
        )


@pytest.fixture
async def world(services, app) -> AsyncIterator[World]:
    """A fresh tenant with an operator, a member and a viewer."""
    tenant, actors, tokens = await people(services)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield World(tenant=tenant, services=services, app=app, actors=actors, tokens=tokens, client=client)


@pytest.fixture
async def board(world) -> World:
    """The same, with a board, an agent and a rule that launches it."""
    await world.post("boards", BOARD)
    await world.services.agents.create(world.actors["operator"], handle="echo")
    await world.services.rules.create(world.actors["operator"], RULE)
    return world


@dataclass(slots=True)
class Process:
    """One server process and where it answers."""

    process: asyncio.subprocess.Process
    url: str
    said: list[str] = field(default_factory=list)

    async def ready(self) -> str:
        """Wait for the one line that says so."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), DEADLINE_SECONDS)
        return line.decode()

    async def ended(self) -> tuple[int, str]:
        """Wait for its end; return its code and what it said on stderr."""
        _, err = await asyncio.wait_for(self.process.communicate(), DEADLINE_SECONDS)
        return self.process.returncode or 0, err.decode()


@pytest.fixture
async def serve(fresh_database: Any, nats_environment: Any) -> AsyncIterator[Callable]:
    """`await serve(database_url)` → a starting server; all are ended afterwards, before their databases are taken back."""
    started: list[Process] = []

    async def start(database_url: str, port: int | None = None, **env: str) -> Process:
        port = port or free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mainspring", "server", "run",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**kept, **nats_environment(database_url), "MAINSPRING_DATABASE_URL": database_url, "MAINSPRING_PORT": str(port), **env},
        )  # fmt: skip
        started.append(Process(process, f"http://127.0.0.1:{port}"))
        return started[-1]

    yield start
    for one in started:
        if one.process.returncode is None:
            one.process.kill()
            await one.process.communicate()
