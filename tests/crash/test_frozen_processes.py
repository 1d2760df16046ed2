"""A process is really stopped (SIGSTOP) at each fault point, its locks in its hands: another goes on, and the thawed one doubles nothing.

Each has a tenant of its own, so that all are frozen side by side. The database itself ends what a frozen one holds after 5 s, as long as
anybody waits for a lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import asyncpg
import pytest

from mainspring import wiring
from mainspring.agents.model import Completion
from mainspring.agents.runners import ClaimRequest
from mainspring.agents.views import Work
from mainspring.boards.model import BoardState, NewCard
from mainspring.faultpoints import FaultPoint
from mainspring.ids import new_id
from mainspring.spine.errors import Transient
from mainspring.wiring import Services
from tests.crash import test_fabric_points, test_message_points, victims
from tests.crash.victims import Task, Victim
from tests.server.conftest import people

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PATIENCE_SECONDS = 90.0
STATES = [BoardState(name=name) for name in ("todo", "doing", "review", "stuck")]
RULE = {
    "name": "go",
    "when": {"kinds": ["card.moved"], "to_states": ["doing"], "labels_all": ["go"]},
    "do": {"launch": {"agent": "echo", "prompt": "{{card.key}}"}},
    "options": {"consume_label": True},
}
# what has happened before, and what is being done when the point is reached
ROADS: dict[FaultPoint, tuple[str, victims.Deed]] = {
    FaultPoint.DRAIN_AFTER_LOCK: ("moved", "drain"),
    FaultPoint.DRAIN_AFTER_INSERT: ("moved", "drain"),
    FaultPoint.DRAIN_BEFORE_COMMIT: ("moved", "drain"),
    FaultPoint.DRAIN_AFTER_COMMIT: ("moved", "drain"),
    FaultPoint.WORKER_AFTER_CLAIM: ("owed", "work"),
    FaultPoint.WORKER_AFTER_EXECUTE: ("owed", "work"),
    FaultPoint.WORKER_BEFORE_SETTLE: ("owed", "work"),
    FaultPoint.WORKER_AFTER_SETTLE: ("owed", "work"),
    FaultPoint.LAUNCH_AFTER_CONSUME: ("owed", "work"),
    FaultPoint.LAUNCH_AFTER_RUN: ("owed", "work"),
    FaultPoint.LAUNCH_BEFORE_COMMIT: ("owed", "work"),
    FaultPoint.RUNS_AFTER_CLAIM: ("queued", "claim"),
    FaultPoint.RUNS_BEFORE_COMPLETE: ("running", "complete"),
    FaultPoint.RUNS_AFTER_COMPLETE: ("running", "complete"),
    FaultPoint.DESK_AFTER_REPLAY: ("dead", "replay"),
    FaultPoint.APPEND_BEFORE_COMMIT: ("new", "move"),
    FaultPoint.APPEND_AFTER_COMMIT: ("new", "move"),
}
# A worker takes whatever is due. Each victim is to die over its own, and over no earlier one's: those are later for as long. What one of
# them has locked is nobody's to take, and is put off as soon as the database has let go of it.
LATER = """
update mainspring.effects
   set lease_until = lease_until + interval '1 hour', not_before = not_before + interval '1 hour'
 where ctid = any(array(select ctid from mainspring.effects
                         where state in ('pending', 'claimed') and coalesce(lease_until, not_before) < now() + interval '30 minutes'
                           and tenant_id <> $1 for update skip locked))
"""
NOW = """
with freed as (
    update mainspring.effects set lease_until = lease_until - interval '1 hour', not_before = not_before - interval '1 hour'
     where ctid = any(array(select ctid from mainspring.effects
                             where state in ('pending', 'claimed') and coalesce(lease_until, not_before) > now() + interval '30 minutes'
                               for update skip locked))
)
update mainspring.due_tenants set next_due = now(), bumps = bumps + 1
"""
OVER = """
select not exists (select from mainspring.effects where tenant_id = $1 and state in ('pending', 'claimed'))
   and not exists (select from mainspring.log_heads join mainspring.cursors using (tenant_id) where tenant_id = $1 and position < head)
   and exists (select from mainspring.cards where tenant_id = $1 and state = 'review')
"""
STAGES = ("new", "moved", "owed", "queued", "running", "dead")


@dataclass(slots=True)
class Scene:
    """A tenant with one card on its way, and the process that was frozen over it."""

    services: Services
    task: Task
    victim: Victim | None = None

    async def value(self, sql: str, *args: Any) -> Any:
        tenant = self.task.by.tenant_id
        async with self.services.db.tenant(tenant) as scope:
            return await scope.fetchval(sql, tenant, *args)

    async def brought_to(self, stage: str) -> None:
        """Bring the card so far that the fault point comes next."""
        for one in STAGES[1 : STAGES.index(stage) + 1]:
            await self._step(one)

    async def _step(self, stage: str) -> None:
        match stage:
            case "moved":
                await self.do("move")
            case "owed":
                await self.do("drain")
            case "queued":
                await self.do("work")
            case "running":
                work = await self.claimed()
                self.task = replace(self.task, run=work.run.id, claim_id=work.run.claim_id)
                await self.heartbeat(work)
            case "dead":
                await self.complete("failed")

    async def do(self, deed: victims.Deed) -> None:
        await victims.do(self.services, replace(self.task, deed=deed))

    async def claimed(self) -> Work:
        work = (await self.services.runners.claim(self.task.claim, wait_seconds=PATIENCE_SECONDS)).work
        assert work is not None, [row for row in (await self.rows())["effects"] if row["state"] != "done"]
        return work

    async def heartbeat(self, work: Work) -> None:
        tenant = self.task.by.tenant_id
        await self.services.runners.heartbeat(tenant, work.run.id, work.run.claim_id, agents=self.task.agents)

    async def complete(self, outcome: Any = "done") -> None:
        tenant, task = self.task.by.tenant_id, self.task
        assert task.run is not None
        assert task.claim_id is not None
        await self.services.runners.complete(
            tenant, task.run, task.claim_id, Completion(outcome=outcome), agents=task.agents
        )

    async def carried_on(self) -> None:
        """What everybody else does meanwhile: their commands are carried out, and the card comes to its end."""
        deed = self.task.deed
        if deed in ("move", "complete", "replay"):  # as a client does whose answer did not come
            try:
                await self.do(deed)
            except (
                Transient
            ):  # it began to wait in the very moment in which the other was frozen: once more, and no more
                await self.do(deed)
        if deed != "complete":
            work = await self.claimed()
            self.task = replace(self.task, run=work.run.id, claim_id=work.run.claim_id)
            await self.heartbeat(work)
            await self.complete()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await self.value(OVER):  # noqa: ASYNC110 - another process's commit wakes nobody here
                await asyncio.sleep(0.1)

    async def rows(self) -> dict[str, Any]:
        """All that a command or a loop may write: twice is seen."""
        tenant = self.task.by.tenant_id
        async with self.services.db.tenant(tenant) as scope:
            tables = ("events", "effects", "effect_attempts", "runs", "run_attempts", "cards", "card_labels")
            return {
                table: [
                    dict(row.items())
                    for row in await scope.fetch(
                        f"select * from mainspring.{table} t where tenant_id = $1 order by t::text", tenant
                    )
                ]
                for table in tables
            }


@pytest.fixture(scope="module")
async def database(databases) -> AsyncIterator[Any]:
    """A database of its own: the loops run in it."""
    made = await databases.create("server")
    yield made
    await databases.drop(made)


@pytest.fixture
async def services(database) -> AsyncIterator[Services]:
    """The process that lives."""
    built = await wiring.build(victims.settings(database.url))
    yield built
    await built.stop()


async def scene(services: Services, deed: victims.Deed) -> Scene:
    tenant, actors, _ = await people(services)
    operator = actors["operator"]
    await services.boards.create_board(
        operator, key="OPS", name="Operations", states=STATES, reflect={"done": "review", "failed": "stuck"}
    )
    agent = (await services.agents.create(operator, handle="echo")).agent.id
    await services.rules.create(operator, RULE)
    card = await services.boards.create_card(operator, "OPS", NewCard(title="a card", labels=("go",)))
    _, secret = await services.tokens.create(operator, kind="runner", agents=["echo"])
    holder = await services.tokens.authenticate(secret)
    assert holder is not None
    claim = ClaimRequest(
        tenant_id=tenant,
        token_id=holder.token_id,
        runner="laptop",
        incarnation=new_id(),
        agents=frozenset(),
        slots=(0,),
    )
    task = Task(deed=deed, by=operator, card=card.key, claim=claim, agents=frozenset({agent}))
    while (await services.spine.drain.run_once()).events:
        pass
    return Scene(services, task)


def test_every_fault_point_is_on_a_road() -> None:
    assert set(ROADS) | set(test_message_points.ROADS) | test_fabric_points.POINTS == set(FaultPoint)


async def test_a_process_frozen_at_any_fault_point_holds_up_nobody_and_thawed_it_doubles_nothing(
    services: Services, database: Any
) -> None:
    admin = await asyncpg.connect(**database.admin)
    with victims.victims(database.url) as place:
        scenes: dict[FaultPoint, Scene] = {}
        for point, (stage, deed) in ROADS.items():
            scenes[point] = here = await scene(services, deed)
            await admin.execute(LATER, here.task.by.tenant_id)
            await here.brought_to(stage)
            await admin.execute(LATER, here.task.by.tenant_id)
            here.victim = await place.freeze(point, here.task)
        await admin.execute(NOW)
        await services.start()
        carrying = {point: asyncio.create_task(here.carried_on()) for point, here in scenes.items()}
        await asyncio.wait(carrying.values())
        assert {point: task.exception() for point, task in carrying.items() if task.exception()} == {}

        before = {point: await here.rows() for point, here in scenes.items()}
        said = {point: await here.victim.go_on() for point, here in scenes.items() if here.victim}
        for point, here in scenes.items():
            assert await here.rows() == before[point], f"{point} wrote when it was thawed: {said[point]}"
            assert [run["state"] for run in before[point]["runs"]] == ["done"]
            assert before[point]["card_labels"] == []
            found = await services.verify.verify(here.task.by.tenant_id)
            assert found.ok, [check for check in found.checks if not check.ok]
