"""A process is killed, and one frozen, at each fault point of the fabric: what it was about to tell, take or put away is neither lost nor doubled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Literal
from uuid import uuid4

import pytest

from mainspring import wiring
from mainspring.agents.runners import ClaimRequest
from mainspring.boards.model import BoardState, NewCard
from mainspring.embedded import EmbeddedNats
from mainspring.fabric.refs import EventRef
from mainspring.faultpoints import FaultPoint
from mainspring.ids import new_id
from mainspring.rooms import Actor
from mainspring.wiring import Services
from tests.crash import victims
from tests.crash.victims import Task
from tests.server.conftest import RULE, people

pytestmark = [pytest.mark.processes, pytest.mark.slow]

POINTS: Final = {
    FaultPoint.RELAY_BEFORE_PUBLISH,
    FaultPoint.RELAY_AFTER_PUBLISH,
    FaultPoint.LISTENER_BEFORE_ACK,
    FaultPoint.DLQ_AFTER_PUBLISH,
}
PATIENCE_SECONDS: Final = 60.0


@pytest.fixture
async def database(fresh_database: Any) -> Any:
    return await fresh_database("server")


@pytest.fixture
def nats_settings(nats_server: EmbeddedNats) -> dict[str, str]:
    return {"nats_url": nats_server.url(), "nats_root": f"c{uuid4().hex[:16]}"}


@pytest.fixture
async def services(database: Any, nats_settings: dict[str, str]) -> AsyncIterator[Services]:
    """The process that lives; it is started when the other has met its fate."""
    built = await wiring.assemble(victims.settings(database.url, **nats_settings))
    yield built
    await built.stop()


async def task_of(services: Services, deed: victims.Deed) -> Task:
    tenant, actors, _ = await people(services)
    operator: Actor = actors["operator"]
    await services.boards.create_board(
        operator,
        key="OPS",
        name="Operations",
        states=[BoardState(name=one) for one in ("todo", "doing", "review")],
        reflect={},
    )
    await services.agents.create(operator, handle="echo")
    await services.rules.create(operator, RULE)
    card = await services.boards.create_card(operator, "OPS", NewCard(title="a card"))
    while (await services.spine.drain.run_once()).events:
        pass
    claim = ClaimRequest(
        tenant_id=tenant, token_id=new_id(), runner="x", incarnation=new_id(), agents=frozenset(), slots=(0,)
    )
    return Task(deed=deed, by=operator, card=card.key, claim=claim, agents=frozenset())


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not await holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def launched_once(services: Services, task: Task) -> None:
    tenant = task.by.tenant_id

    async def runs() -> int:
        async with services.db.tenant(tenant) as scope:
            return int(await scope.fetchval("select count(*) from mainspring.runs"))

    async def launched() -> bool:
        return await runs() > 0

    await until(launched)
    assert await runs() == 1
    found = await services.verify.verify(tenant)
    assert found.ok, [check for check in found.checks if not check.ok]


@pytest.mark.parametrize("fate", ["kill", "freeze"])
@pytest.mark.parametrize("point", [FaultPoint.RELAY_BEFORE_PUBLISH, FaultPoint.RELAY_AFTER_PUBLISH], ids=str)
async def test_what_was_not_told_or_told_by_nobody_any_more_is_done_once(
    services: Services,
    database: Any,
    nats_settings: dict[str, str],
    point: FaultPoint,
    fate: Literal["kill", "freeze"],
) -> None:
    with victims.victims(database.url, **nats_settings) as place:
        task = await task_of(services, "tell")
        victim = await getattr(place, fate)(point, task)
        await services.start()
        await launched_once(services, task)
        if fate == "freeze":
            assert await victim.go_on() == "done"
            await launched_once(services, task)


@pytest.mark.parametrize("fate", ["kill", "freeze"])
async def test_what_was_taken_and_neither_done_nor_acknowledged_is_done_once(
    services: Services, database: Any, nats_settings: dict[str, str], fate: Literal["kill", "freeze"]
) -> None:
    assert services.fabric is not None
    with victims.victims(database.url, **nats_settings) as place:
        task = await task_of(services, "listen")
        meeting = asyncio.create_task(getattr(place, fate)(FaultPoint.LISTENER_BEFORE_ACK, task))
        moved = await services.boards.move_card(task.by, task.card, "doing")
        assert moved is not None
        seqs = iter(range(1, 10_000))
        while not meeting.done():  # it listens as soon as it can: what is published before that is for nobody
            ref = EventRef(tenant=task.by.tenant_id, kind="card.moved", row_id=str(next(seqs)), seq=1)
            await services.fabric.publish(ref)
            await asyncio.sleep(0.05)
        await meeting
        await services.start()
        await launched_once(services, task)


@pytest.mark.parametrize("fate", ["kill", "freeze"])
async def test_what_was_parked_and_not_let_go_is_parked_once(
    services: Services, database: Any, nats_settings: dict[str, str], fate: Literal["kill", "freeze"]
) -> None:
    assert services.fabric is not None
    with victims.victims(database.url, **nats_settings) as place:
        task = await task_of(services, "listen")
        meeting = asyncio.create_task(getattr(place, fate)(FaultPoint.DLQ_AFTER_PUBLISH, task))
        js = services.fabric._link.jetstream  # type: ignore[attr-defined]
        root = nats_settings["nats_root"]
        sent = 0
        while not meeting.done():
            sent += 1
            await js.publish(f"{root}.{task.by.tenant_id}.events.card.moved", f"broken {sent}".encode())
            await asyncio.sleep(0.05)
        await meeting
        parked = await services.fabric.parked(limit=1000)
        assert len(parked) == 1
        # as if the ack wait were over: it is handed out again to the one that lives, and is the same
        await services.fabric.park(
            parked[0].subject, parked[0].data, await place_of(js, root, parked[0].data), "malformed: again"
        )  # type: ignore[attr-defined]
        assert [one.data for one in await services.fabric.parked(limit=1000)].count(parked[0].data) == 1


async def place_of(js: Any, root: str, data: bytes) -> int:
    stream = f"{root.upper()}_EVENTS"
    last = (await js.stream_info(stream)).state.last_seq
    for seq in range(1, last + 1):
        if (await js.get_msg(stream, seq)).data == data:
            return seq
    raise AssertionError("it is in the stream")
