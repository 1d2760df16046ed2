"""Operations: a decision on all that is described, step by step, carried on by whoever is there, stopped when told to."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest

from mainspring import faultpoints
from mainspring.cli.client import Client
from mainspring.cli.operation import finish
from mainspring.ids import new_id
from mainspring.migrations.deadlines import DEADLINES as PRODUCT
from mainspring.operators import letters
from mainspring.operators.model import STEP_LETTERS_MAX, Described, Replay
from mainspring.operators.operations import Stepper, step_of
from mainspring.spine.effects import Done, Effect, EffectKind, Failed, NewEffect, Outcome, Unknown
from mainspring.spine.executors import External
from mainspring.stores.postgres.deadlines import DEADLINES, age
from tests.server.conftest import World, people


@dataclass
class Mail:
    """An executor that fails as its effect's payload says, until that is mended."""

    mended: set[str] = field(default_factory=set)
    sent: list[str] = field(default_factory=list)

    async def __call__(self, effect: Effect) -> Outcome:
        why: str = effect.payload["why"]
        if why in self.mended:
            self.sent.append(effect.key)
            return Done()
        return Unknown(why) if why.startswith("Timeout") else Failed(f"{why} (attempt of {effect.key})")


@pytest.fixture(scope="module")
def executor(services) -> Mail:
    """How mails are done."""
    mail = Mail()
    services.spine.register_executor(
        External(EffectKind(name="mail", max_attempts=1, idempotent=False), mail)
    )
    return mail


@pytest.fixture
def mail(executor) -> Mail:
    """The same, broken anew."""
    executor.mended.clear()
    executor.sent.clear()
    return executor


async def dead(world: World, count: int, why: str = "no such address") -> None:
    """Let so many mails die of a cause."""
    async with world.services.spine.open(world.tenant) as tx:
        for _ in range(count):
            await tx.owe(NewEffect("mail", key=str(new_id()), payload={"why": why}))
    await world.settle()


async def begin(world: World, verb: str = "replay", **asked: Any) -> Any:
    """Begin an operation."""
    answer = await world.call("POST", f"desk/{verb}", json=asked)
    assert answer.status_code == 202, answer.text
    return answer.json()


async def now(world: World, operation: Any) -> Any:
    """How far an operation is."""
    return await world.get(f"operations/{operation['id']}")


async def later(admin: asyncpg.Connection, seconds: float) -> None:
    """Let time pass."""
    await age(admin, seconds, {**DEADLINES, **PRODUCT})


async def states(world: World) -> dict[str, int]:
    """How many mails there are in each state."""
    counted: dict[str, int] = {}
    async with world.services.db.tenant(world.tenant) as scope:
        rows = await scope.fetch(
            "select state, count(*) as n from mainspring.effects where tenant_id = $1 and kind = 'mail' group by state", world.tenant
        )  # fmt: skip
    counted.update({row["state"]: row["n"] for row in rows})
    return counted


@pytest.mark.slow
async def test_fifty_letters_of_three_causes_are_sorted_out_with_the_desk_alone(world, mail):
    for count, why in ((25, "no such address"), (15, "TimeoutError"), (10, "the box is full")):
        await dead(world, count, why)
    groups = (await world.get("desk", group_by="cause"))["data"]
    assert [(one["count"], one["cause"]) for one in groups] == [
        (25, "no such address (attempt of …)"), (15, "TimeoutError"), (10, "the box is full (attempt of …)"),
    ]  # fmt: skip
    gone, slow, full = (one["cause"] for one in groups)
    # what has gone for good is given up, for a reason
    await begin(world, "discard", cause=gone, reason="they have moved away")
    # what may have happened keeps its key; what surely has not gets a new one
    for cause, new_key in ((slow, False), (full, True)):
        planned = await world.post("desk/plan", {"cause": cause})
        assert {one["new_key"] for one in planned["eligible"]} == {new_key}
        assert planned["total"] == len(planned["eligible"])
        await begin(world, cause=cause)
    mail.mended |= {"TimeoutError", "the box is full"}
    await world.settle()
    assert (await world.get("desk"))["data"] == []
    assert await states(world) == {"discarded": 25, "done": 25}
    assert len(mail.sent) == len(set(mail.sent)) == 25
    found = (await world.get("operations"))["data"]
    assert [(one["verb"], one["state"], one["total"], one["done"]) for one in found] == [
        ("replay", "done", 10, 10), ("replay", "done", 15, 15), ("discard", "done", 25, 25),
    ]  # fmt: skip
    assert (await world.get("verify"))["ok"]


@pytest.mark.slow
async def test_many_letters_are_decided_on_step_by_step(world, mail):
    count = 2 * STEP_LETTERS_MAX + 1
    await dead(world, count)
    operation = await begin(world, all=True)
    assert operation["total"] == count
    mail.mended.add("no such address")
    await world.settle()
    assert await now(world, operation) | {"step": None} == await now(world, operation)
    assert (await now(world, operation))["done"] == count
    steps = (await world.get("effects", kind="operation"))["data"]
    assert [one["outcome"] for one in steps] == ["replay: 100 of 100", "replay: 100 of 100", "replay: 1 of 1"]
    assert len(mail.sent) == count


async def test_a_rate_is_kept(world, mail, admin):
    await dead(world, 5)
    operation = await begin(world, rate_per_second=2, all=True)
    for done in (2, 4, 5):
        await world.settle()
        assert (await now(world, operation))["done"] == done
        await world.settle()  # nothing more before its time
        assert (await now(world, operation))["done"] == done
        await later(admin, 1.0)
    assert (await now(world, operation))["state"] == "done"


async def test_a_slow_rate_decides_on_one_at_a_time(world, mail, admin):
    await dead(world, 2)
    operation = await begin(world, rate_per_second=0.1, all=True)
    await world.settle()
    await later(admin, 9.0)
    await world.settle()
    assert (await now(world, operation))["done"] == 1
    await later(admin, 1.0)
    await world.settle()
    assert (await now(world, operation))["done"] == 2


async def test_what_is_stopped_decides_nothing_more(world, mail, admin):
    await dead(world, 6)
    operation = await begin(world, rate_per_second=2, all=True, verb="discard", reason="tired")
    await world.settle()
    stopped = await world.post(f"operations/{operation['id']}/stop")
    assert (stopped["state"], stopped["done"], stopped["ended_by"]) == ("stopped", 2, "operator")
    await later(admin, 60.0)
    await world.settle()
    assert (await now(world, operation))["done"] == 2
    assert await states(world) == {"dead": 4, "discarded": 2}
    [*_, last] = (await world.get("effects", kind="operation"))["data"]
    assert last["outcome"] == "dropped(operation stopped)"
    again = await world.call("POST", f"operations/{operation['id']}/stop")
    assert (again.status_code, again.json()["code"]) == (409, "operation_ended")


async def test_a_step_that_dies_has_not_happened_and_is_done_again(world, mail, admin):
    await dead(world, 3)
    operation = await begin(world, all=True)
    faultpoints.arm("desk.after_replay:1:raise")
    try:
        await world.settle()
    finally:
        faultpoints.disarm()
    assert (await now(world, operation))["done"] == 0
    assert await states(world) == {"dead": 3}
    mail.mended.add("no such address")
    await later(admin, 60.0)
    await world.settle()
    assert (await now(world, operation))["done"] == 3
    assert len(mail.sent) == 3


async def test_letters_that_come_later_and_those_that_die_again_are_not_taken(world, mail, admin):
    await dead(world, 3)
    operation = await begin(world, rate_per_second=2, all=True)
    await world.settle()
    await dead(world, 1)  # and the first two are dead again
    assert await states(world) == {"dead": 4}
    await later(admin, 60.0)
    await world.settle()
    done = await now(world, operation)
    assert (done["state"], done["total"], done["done"], done["skipped"]) == ("done", 3, 3, 0)
    assert await states(world) == {"dead": 4}


async def test_two_operations_on_the_same_letters_decide_on_each_once(world, mail):
    await dead(world, 150)
    one = await begin(world, verb="discard", all=True, reason="one")
    other = await begin(world, verb="discard", kind="mail", reason="other")
    await world.settle()
    done = [await now(world, operation) for operation in (one, other)]
    assert [operation["state"] for operation in done] == ["done", "done"]
    assert sum(operation["done"] for operation in done) == 150
    assert await states(world) == {"discarded": 150}


async def test_steps_at_once_and_a_stop_do_not_deadlock(world, mail):
    await dead(world, 120)
    operations = [await begin(world, verb="discard", all=True, reason=f"{n}") for n in range(3)]
    await asyncio.gather(
        world.settle(),
        world.settle(),
        *(world.call("POST", f"operations/{one['id']}/stop") for one in operations),
    )
    await world.settle()
    done = [await now(world, operation) for operation in operations]
    assert {operation["state"] for operation in done} <= {"done", "stopped"}
    assert sum(operation["done"] for operation in done) == (await states(world)).get("discarded", 0)


async def test_an_operation_whose_step_is_dead_says_so_and_is_carried_on_by_a_replay(
    world, mail, admin, monkeypatch
):
    await dead(world, 2)
    operation = await begin(world, kind="mail")

    async def broken(*_: Any) -> Outcome:
        return Failed("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(Stepper, "__call__", broken)
        await world.settle()
    stuck = await now(world, operation)
    assert (stuck["state"], stuck["error"]) == ("stuck", "a defect")
    await world.post("desk/replay", {"ids": [stuck["step"]]})
    await world.settle()
    assert (await now(world, operation))["state"] == "done"
    assert (await world.get("verify"))["ok"]


async def test_what_others_have_decided_on_before_it_was_met_is_theirs(world, mail, admin, capsys):
    """And whoever reads of a finished operation is told why it has not decided on all that was meant."""
    await dead(world, 4)
    operation = await begin(world, all=True, rate_per_second=1, verb="discard", reason="tired")
    await world.settle()
    [newest, *_] = (await world.get("desk"))["data"]
    await world.post("desk/discard", {"ids": [newest["id"]], "reason": "mine"})
    finish(Client("http://nobody", ""), await now(world, operation), wait=False, as_json=False)
    for _ in range(3):
        await later(admin, 60.0)
        await world.settle()
    done = await now(world, operation)
    assert (done["state"], done["total"], done["done"], done["skipped"]) == ("done", 4, 3, 0)
    finish(Client("http://nobody", ""), done, wait=False, as_json=False)
    under_way, over = capsys.readouterr().out.splitlines()
    assert under_way.startswith("discarded 1 of 4; ")
    assert over.startswith("discarded 3 of 4, left alone 1: somebody else had decided; ")


async def test_a_step_that_was_done_already_is_dropped(world, mail):
    await dead(world, 1)
    operation = await begin(world, all=True)
    await world.settle()
    async with world.services.spine.open(world.tenant) as tx:
        again = step_of(operation["id"], 7)
        await tx.owe(again)
        await tx.owe(step_of(new_id(), 0))
    await world.settle()
    outcomes = [one["outcome"] for one in (await world.get("effects", kind="operation"))["data"]]
    assert outcomes[1:] == ["dropped(operation done)", "dropped(operation gone)"]


async def test_a_cause_is_found_among_more_letters_than_one_look_goes_through(world, mail, monkeypatch):
    monkeypatch.setattr(letters, "LOOKED_MAX", 7)
    for _ in range(3):
        await dead(world, 9, "common")
        await dead(world, 1, "rare")
    planned = await world.post("desk/plan", {"cause": "rare (attempt of …)"})
    assert (len(planned["eligible"]), planned["total"]) == (3, 3)
    operation = await begin(world, cause="rare (attempt of …)", new_key=True)
    mail.mended.add("rare")
    await world.settle()
    assert (await now(world, operation))["done"] == 3
    assert await states(world) == {"dead": 27, "done": 3}


async def test_too_many_different_texts_are_said_not_to_be_counted(world, mail, monkeypatch):
    monkeypatch.setattr(letters, "HEAPS_MAX", 2)
    await dead(world, 4)
    page = await world.get("desk", group_by="cause")
    assert (sum(one["count"] for one in page["data"]), page["uncounted"]) == (2, 2)
    operation = await begin(world, cause=page["data"][0]["cause"])
    assert operation["total"] is None
    await world.settle()
    assert (await now(world, operation))["done"] == 4


async def test_another_tenants_operation_is_not_there(world, mail, services, app):
    await dead(world, 1)
    operation = await begin(world, all=True)
    tenant, actors, tokens = await people(services)
    other = World(
        tenant=tenant, services=services, app=app, actors=actors, tokens=tokens, client=world.client
    )
    assert (await other.call("GET", f"operations/{operation['id']}")).status_code == 404
    assert (await other.call("POST", f"operations/{operation['id']}/stop")).status_code == 404
    assert (await other.get("operations"))["data"] == []
    assert (await world.call("POST", f"operations/{operation['id']}/stop", "member")).status_code == 403


async def test_letters_are_exported_whole_a_line_each(world, mail, monkeypatch):
    monkeypatch.setattr("mainspring.operators.desk.EXPORTED_AT_ONCE", 2)
    await dead(world, 3)
    await dead(world, 2, "TimeoutError")
    answer = await world.call("GET", "desk/export")
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert len({one["id"] for one in lines}) == 5
    assert {one["payload"]["why"] for one in lines} == {"no such address", "TimeoutError"}
    assert [one["history"][0]["outcome"] for one in lines] == [one["outcome"] for one in lines]
    slow = await world.call("GET", "desk/export", params={"cause": "TimeoutError", "kind": "mail"})
    assert len(slow.text.splitlines()) == 2
    assert (await world.call("GET", "desk/export", params={"kind": "run"})).text == ""


async def test_a_decision_costs_as_many_statements_for_many_letters_as_for_few(world, mail, services):
    from mainspring import telemetry

    def sent() -> float:
        return telemetry.statements.labels("command")._value.get()

    counted = []
    for count in (2, 20):
        await dead(world, count)
        ids = [one["id"] for one in (await world.get("desk"))["data"]]
        before = sent()
        await world.services.desk.decide(world.actors["operator"], [*map(type(world.tenant), ids)], Replay())
        counted.append(sent() - before)
        await world.settle()
        await world.services.operations.start(world.actors["operator"], Described(), Replay())
    assert counted[0] == counted[1]


@pytest.mark.parametrize(
    "body",
    [
        {"all": True, "rate_per_second": 0},
        {"all": True, "rate_per_second": 1e9},
        {"ids": [str(new_id())], "rate_per_second": 5},
        {"all": False},
    ],
)
async def test_what_makes_no_sense_begins_nothing(world, body):
    assert (await world.call("POST", "desk/replay", json=body)).status_code == 422
    assert (await world.get("operations"))["data"] == []
