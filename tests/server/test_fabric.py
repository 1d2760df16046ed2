"""A server and its fabric: what keeps it from starting, what does not, and what readiness says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainspring import wiring
from mainspring.config import Settings
from mainspring.embedded import EmbeddedNats
from mainspring.fabric.jetstream import JetStreamFabric
from mainspring.fabric.link import Address
from mainspring.fabric.settings import FabricSettings
from mainspring.fabric.subjects import Names
from mainspring.server.app import create_app
from mainspring.wiring import CannotStart, Services
from tests.server.conftest import free_port

pytestmark = pytest.mark.slow


@pytest.fixture
def named(
    database: Any, nats_server: EmbeddedNats, request: pytest.FixtureRequest
) -> Callable[..., Settings]:
    """Settings that name this process's NATS, under a root of the test's own."""

    def settings(**more: Any) -> Settings:
        root = f"s{abs(hash(request.node.nodeid)):x}"[:32]
        return Settings(
            **{
                "database_url": database.url,
                "nats_url": nats_server.url(),
                "nats_root": root,
                "pool_size": 4,
                **more,
            }
        )

    return settings


@asynccontextmanager
async def assembled(settings: Settings) -> AsyncIterator[Services]:
    services = await wiring.assemble(settings)
    try:
        yield services
    finally:
        await services.stop()


async def fabric_of(services: Services) -> dict[str, Any]:
    """What /readyz says; a fabric that is down must not make it unready."""
    transport = httpx.ASGITransport(create_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.get("/readyz?verbose")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["checks"]["fabric"]
    return found


async def until_state(services: Services, state: str) -> dict[str, Any]:
    end = time.monotonic() + 10
    while (found := await fabric_of(services))["state"] != state:
        assert time.monotonic() < end, found
        await asyncio.sleep(0.02)
    return found


async def test_readiness_names_the_fabric(named: Callable[..., Settings]) -> None:
    async with assembled(named()) as services:
        found = await fabric_of(services)
    assert found["state"] == "connected"
    assert found["server"].startswith("NATS 2.")


async def refused(settings: Settings) -> str:
    with pytest.raises(CannotStart) as error:
        async with assembled(settings):
            pass
    return str(error.value)


async def test_a_server_without_a_fabric_is_refused(named: Callable[..., Settings]) -> None:
    assert "MAINSPRING_NATS_URL" in await refused(named(nats_url=""))


async def test_a_fabric_that_refuses_us_keeps_a_server_from_starting_and_no_secret_is_told(
    named: Callable[..., Settings], nats_server: EmbeddedNats, tmp_path: Path
) -> None:
    said = await refused(named(nats_url=f"nats://hunter2@127.0.0.1:{nats_server.port}"))
    assert "refuses us" in said
    assert "hunter2" not in said
    assert "there is no file" in await refused(named(nats_creds=tmp_path / "creds"))


async def test_streams_that_do_not_fit_keep_a_server_from_starting(
    named: Callable[..., Settings], nats_server: EmbeddedNats
) -> None:
    settings = named()
    other = FabricSettings(names=Names(settings.nats_root), max_age_seconds=7200.0)
    fabric = await JetStreamFabric.open(Address(url=nats_server.url()), other)
    await fabric.close()
    assert "another configuration" in await refused(settings)
    assert "replicas > 1 not supported" in await refused(named(nats_root="replicated", nats_replicas=3))


async def test_an_unreachable_fabric_is_gone_without_said_and_taken_up_when_it_comes(
    named: Callable[..., Settings], tmp_path: Path
) -> None:
    server = EmbeddedNats(tmp_path / "state")
    with server:
        url = server.url()
    async with assembled(named(nats_url=url, nats_wait_seconds=0.1)) as services:
        found = await fabric_of(services)
        assert found["state"] == "waiting"
        assert found["reason"]
        with server:
            await until_state(services, "connected")
        await until_state(services, "broken")


async def test_no_nats_at_all_is_no_reason_to_hang(named: Callable[..., Settings]) -> None:
    async with (
        asyncio.timeout(10),
        assembled(named(nats_url=f"nats://127.0.0.1:{free_port()}", nats_wait_seconds=0.1)) as services,
    ):
        assert (await fabric_of(services))["state"] == "waiting"
