"""What came over the fabric and nobody could take: its tenant's operators see it, have it told again, or give it up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
import nats
import pytest

from mainspring.boards.model import NewCard
from mainspring.embedded import EmbeddedNats
from mainspring.fabric.jetstream import ORIGINAL_SUBJECT, PARK_REASON
from mainspring.fabric.refs import EventRef
from mainspring.fabric.subjects import Names
from mainspring.rooms import Actor
from mainspring.server.app import create_app
from mainspring.wiring import Services
from tests.server.conftest import people
from tests.server.test_wakes import database, furnished, instance, runs, settled, until

__all__ = ["database", "instance"]  # fixtures

pytestmark = pytest.mark.slow

Instance = Callable[..., Awaitable[Services]]


@dataclass(frozen=True, slots=True)
class Desk:
    """A server with a fabric, its desk over HTTP, and two tenants' operators."""

    services: Services
    server: EmbeddedNats
    client: httpx.AsyncClient
    operator: Actor
    tokens: dict[str, str]

    @property
    def names(self) -> Names:
        return Names(self.services.settings.nats_root)

    async def park(self, subject: str, data: bytes) -> None:
        """Lay something there, as whoever could not take it does."""
        client = await nats.connect(self.server.url())
        headers = {ORIGINAL_SUBJECT: subject, PARK_REASON: "exhausted: ValueError: no"}
        await client.jetstream().publish(
            self.names.dlq_subject, data, stream=self.names.dlq_stream, headers=headers
        )
        await client.close()

    async def park_ref(self, tenant: UUID, seq: int = 1) -> None:
        ref = EventRef(tenant=tenant, kind="card.moved", row_id="x", seq=seq)
        await self.park(self.names.events(tenant, "card.moved"), ref.encode())

    async def call(self, method: str, path: str = "", *, by: str = "operator") -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.tokens[by]}"}
        return await self.client.request(method, f"/api/v1/desk/parked{path}", headers=headers)

    async def listed(self, by: str = "operator") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.call("GET", by=by)).json()["data"]
        return found


@pytest.fixture
async def desk(instance: Instance, nats_server: EmbeddedNats) -> AsyncIterator[Desk]:
    services = await instance()
    operator = await furnished(services)
    _, theirs, others = await people(services)
    tokens = {"stranger": others["operator"]}
    _, tokens["operator"] = await services.tokens.create(operator, kind="user", role="operator")
    assert theirs["operator"].tenant_id != operator.tenant_id
    transport = httpx.ASGITransport(create_app(services), raise_app_exceptions=False, client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield Desk(services, nats_server, client, operator, tokens)


async def test_what_is_parked_is_its_tenants_to_see_and_nobody_elses(desk: Desk) -> None:
    tenant = desk.operator.tenant_id
    await desk.park_ref(tenant)
    await desk.park(f"{desk.names.root}.nobody.events.card.moved", b"{}")
    [one] = await desk.listed()
    assert one["subject"] == desk.names.events(tenant, "card.moved")
    assert one["reason"].startswith("exhausted")
    assert await desk.listed("stranger") == []
    for method, path in (("POST", f"/{one['seq']}/replay"), ("DELETE", f"/{one['seq']}")):
        assert (await desk.call(method, path, by="stranger")).status_code == 404
    assert await desk.listed() == [one]


async def test_what_is_replayed_is_told_again_and_lies_there_no_more(desk: Desk, instance: Instance) -> None:
    """The floor tick is a minute away: whoever launches has heard of it."""
    tenant = desk.operator.tenant_id
    listening = await instance()
    await settled(listening)
    card = await desk.services.boards.create_card(desk.operator, "OPS", NewCard(title="a card"))
    await desk.services.boards.move_card(desk.operator, card.key, "doing")
    async with desk.services.db.tenant(tenant) as scope:
        head = await scope.fetchval("select head from mainspring.log_heads where tenant_id = $1", tenant)
    await desk.park_ref(tenant, head)
    [one] = await desk.listed()
    assert (await desk.call("POST", f"/{one['seq']}/replay")).json() == one

    async def launched() -> bool:
        return await runs(listening, tenant) == 1

    await until(launched)
    assert await desk.listed() == []
    assert (await desk.call("POST", f"/{one['seq']}/replay")).status_code == 404


async def test_what_is_no_reference_is_not_told_again_and_can_be_given_up(desk: Desk) -> None:
    await desk.park(desk.names.events(desk.operator.tenant_id, "card.moved"), b"\xffnonsense")
    [one] = await desk.listed()
    refused = await desk.call("POST", f"/{one['seq']}/replay")
    assert (refused.status_code, refused.json()["code"]) == (409, "parked_malformed")
    assert (await desk.call("DELETE", f"/{one['seq']}")).json() == one
    assert await desk.listed() == []


async def test_without_a_fabric_that_answers_it_is_said_and_nothing_is_lost(desk: Desk) -> None:
    await desk.park_ref(desk.operator.tenant_id)
    fabric = desk.services.fabric
    assert fabric is not None
    await fabric.close()
    answer = await desk.call("GET")
    assert answer.status_code == 503, answer.text
    assert answer.json()["retryable"]
