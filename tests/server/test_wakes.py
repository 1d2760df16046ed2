"""Two servers and what they tell each other: with a tick of a minute, whatever happens at once was told. Lost, doubled, forged, nothing is amiss."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from mainspring import wiring
from mainspring.agents.runners import ClaimRequest
from mainspring.boards.model import BoardState, NewCard
from mainspring.config import Settings
from mainspring.embedded import EmbeddedNats
from mainspring.fabric.refs import SEQ_MAX, EventRef
from mainspring.ids import new_id
from mainspring.rooms import Actor
from mainspring.wiring import Services
from tests.server.conftest import RULE, people

pytestmark = pytest.mark.slow

# nothing that is awaited here may be what a tick has found
TICK_SECONDS = 60.0
PATIENCE_SECONDS = 20.0
STATES = [BoardState(name=name) for name in ("todo", "doing", "review")]


@pytest.fixture
async def database(fresh_database: Any) -> Any:
    return await fresh_database("server")


@pytest.fixture
async def instance(
    database: Any, nats_server: EmbeddedNats
) -> AsyncIterator[Callable[..., Awaitable[Services]]]:
    """`await instance()` → one more server on the same database and NATS, not started."""
    made: list[Services] = []
    root = f"w{uuid4().hex[:16]}"

    async def one() -> Services:
        settings = Settings(
            database_url=database.url,
            nats_url=nats_server.url(),
            nats_root=root,
            pool_size=5,
            floor_tick_seconds=TICK_SECONDS,
            lease_seconds_transactional=2 * TICK_SECONDS,
            lease_seconds_external=2 * TICK_SECONDS,
        )
        made.append(await wiring.assemble(settings))
        return made[-1]

    yield one
    for services in made:
        await services.stop()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not await holds():
        assert time.monotonic() < end, "nobody was woken"
        await asyncio.sleep(0.01)


async def settled(services: Services) -> None:
    """Started, and through with what a start looks at by itself."""
    await services.start()

    async def idle() -> bool:
        return all(
            loop.succeeded_seconds_ago is not None or loop.name == "renew" for loop in services.spine.health
        )

    await until(idle)
    await asyncio.sleep(0.7)  # the hooks of the beginning run within half a second


async def furnished(services: Services) -> Actor:
    _, actors, _ = await people(services)
    operator = actors["operator"]
    await services.boards.create_board(operator, key="OPS", name="Operations", states=STATES, reflect={})
    await services.agents.create(operator, handle="echo")
    await services.rules.create(operator, RULE)
    while (await services.spine.drain.run_once()).events:
        pass
    return operator


async def runs(services: Services, tenant: UUID) -> int:
    async with services.db.tenant(tenant) as scope:
        return int(await scope.fetchval("select count(*) from mainspring.runs"))


async def test_what_one_server_commits_and_does_not_drain_another_drains_at_once(
    instance: Callable[..., Awaitable[Services]],
) -> None:
    silent, other = await instance(), await instance()
    operator = await furnished(silent)
    await settled(other)
    card = await silent.boards.create_card(operator, "OPS", NewCard(title="a card"))
    await silent.boards.move_card(operator, card.key, "doing")
    assert silent.relay is not None
    await silent.relay.run_once()

    async def launched() -> bool:
        return await runs(other, operator.tenant_id) == 1

    await until(launched)


async def test_a_runner_that_waits_at_one_server_is_woken_by_a_commit_at_another(
    instance: Callable[..., Awaitable[Services]],
) -> None:
    here, there = await instance(), await instance()
    operator = await furnished(here)
    _, secret = await here.tokens.create(operator, kind="runner", agents=["echo"])
    holder = await here.tokens.authenticate(secret)
    assert holder is not None
    await settled(here)
    await settled(there)
    claim = ClaimRequest(
        tenant_id=operator.tenant_id, token_id=holder.token_id, runner="laptop", incarnation=new_id(),
        agents=frozenset(), slots=(0,),
    )  # fmt: skip
    waiting = asyncio.create_task(there.runners.claim(claim, wait_seconds=PATIENCE_SECONDS))
    polls = there.runners._polls

    async def asleep() -> bool:
        return polls.asleep == 1

    await until(asleep)
    card = await here.boards.create_card(operator, "OPS", NewCard(title="a card"))
    await here.boards.move_card(operator, card.key, "doing")
    found = await waiting
    assert found.work is not None


async def test_a_stream_at_one_server_tells_at_once_what_is_committed_at_another(
    instance: Callable[..., Awaitable[Services]],
) -> None:
    here, there = await instance(), await instance()
    operator = await furnished(here)
    await settled(there)
    seen: list[UUID] = []
    there.tails.heard = lambda tenant, kinds=(): seen.append(tenant)  # type: ignore[method-assign]
    there.spine.on_commit(there.tails.heard)
    await here.boards.create_card(operator, "OPS", NewCard(title="a card"))
    assert here.relay is not None
    await here.relay.run_once()

    async def told() -> bool:
        return operator.tenant_id in seen

    await until(told)


async def test_references_that_are_forged_doubled_or_foreign_neither_lose_nor_double_work(
    instance: Callable[..., Awaitable[Services]],
) -> None:
    here, there = await instance(), await instance()
    operator = await furnished(here)
    await settled(here)
    await settled(there)
    assert here.fabric is not None
    card = await here.boards.create_card(operator, "OPS", NewCard(title="a card"))
    forged = [
        *(
            EventRef(tenant=operator.tenant_id, kind="card.moved", row_id="none", seq=seq)
            for seq in (1, 2, SEQ_MAX)
        ),
        *(EventRef(tenant=uuid4(), kind="card.moved", row_id="none", seq=1) for _ in range(20)),
    ]
    await asyncio.gather(*(here.fabric.publish(ref, epoch=epoch) for ref in forged for epoch in range(3)))
    await here.boards.move_card(operator, card.key, "doing")
    await asyncio.gather(*(here.fabric.publish(ref, epoch=epoch) for ref in forged for epoch in range(3, 6)))

    async def launched() -> bool:
        return await runs(there, operator.tenant_id) == 1

    await until(launched)
    await asyncio.sleep(0.2)
    assert await runs(there, operator.tenant_id) == 1
    found = await here.verify.verify(operator.tenant_id)
    assert found.ok, [check for check in found.checks if not check.ok]
    assert not await here.fabric.parked()


async def test_a_commit_does_not_notice_that_nats_is_dead_and_what_it_missed_is_found_when_it_is_back(
    instance: Callable[..., Awaitable[Services]], nats_server: EmbeddedNats
) -> None:
    silent, other = await instance(), await instance()
    operator = await furnished(silent)
    await settled(other)
    assert silent.relay is not None
    os.kill(nats_server.pid, signal.SIGKILL)

    async def dead() -> bool:
        return nats_server.poll() is not None

    await until(dead)
    try:
        async with asyncio.timeout(5):
            card = await silent.boards.create_card(operator, "OPS", NewCard(title="a card"))
            await silent.boards.move_card(operator, card.key, "doing")
            await silent.relay.run_once()
        assert await runs(other, operator.tenant_id) == 0
    finally:
        nats_server.start()

    async def launched() -> bool:
        return await runs(other, operator.tenant_id) == 1

    await until(launched)


async def test_a_stop_tells_the_others_what_was_committed_last(
    instance: Callable[..., Awaitable[Services]],
) -> None:
    silent, other = await instance(), await instance()
    operator = await furnished(silent)
    await settled(other)
    card = await silent.boards.create_card(operator, "OPS", NewCard(title="a card"))
    await silent.boards.move_card(operator, card.key, "doing")
    await silent.stop()

    async def launched() -> bool:
        return await runs(other, operator.tenant_id) == 1

    await until(launched)
