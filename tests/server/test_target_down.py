"""What people and machines are told while a target is down."""

from __future__ import annotations

from prometheus_client import generate_latest

from mainspring import telemetry
from mainspring.spine.breaker import Breaker
from mainspring.spine.effects import NewEffect, Owed
from mainspring.spine.ports import BreakerChange

DOWN = Breaker(failures=5, trips=1)


async def owed(world, target="hooks.example.com:443"):
    async with world.services.spine.open(world.tenant) as tx:
        owed = await tx.owe(NewEffect("parcel", key="1", target=target))
    assert isinstance(owed, Owed)
    return owed.id


async def found_down(world, *, seconds, target="hooks.example.com:443"):
    store, key = world.services.spine.store, (world.tenant, target)
    change = BreakerChange(target=key, breaker=DOWN, open_seconds=seconds, error="answered 503")
    async with store.system("test") as tx:
        await store.lock_breakers(tx, [key])
        await store.write_breakers(tx, [change])


async def standing(world, effect):
    [told] = (await world.get("explain", ref=str(effect)))["effects"]
    return told["standing"]


async def test_explain_says_for_which_target_an_effect_waits_and_until_when(board):
    effect = await owed(board)
    await found_down(board, seconds=60)
    told = await standing(board, effect)
    assert told.startswith("waiting: target hooks.example.com:443 is down until ")
    assert told.endswith(": answered 503")


async def test_when_its_time_is_up_it_says_that_it_is_being_tried(board):
    effect = await owed(board)
    await found_down(board, seconds=0)
    assert await standing(board, effect) == (
        "waiting: target hooks.example.com:443 was down, and is being tried again: answered 503"
    )


async def test_what_waits_for_another_target_says_nothing_of_it(board):
    effect = await owed(board, target="other.example.com:443")
    await found_down(board, seconds=60)
    assert await standing(board, effect) == "owed, waiting for a worker"


async def test_what_waits_for_a_target_that_is_down_is_nobodys_fault(board, admin):
    await board.services.spine.run_once()
    await owed(board)
    await found_down(board, seconds=3600)
    await admin.execute(
        "update mainspring.effects set not_before = not_before - interval '1 hour' where state = 'pending'"
    )
    findings = {one["check"]: one["state"] for one in (await board.get("doctor"))["findings"]}
    assert (findings["effects"], findings["targets"]) == ("ok", "warning")
    assert (await board.get("verify"))["warnings"] == 0


async def test_a_scrape_tells_how_many_targets_are_down_and_not_which(board):
    await board.services.measure()
    before = told()
    target = f"{board.tenant}.example.com:443"
    await found_down(board, seconds=60, target=target)
    await board.services.measure()
    assert told() == before + 1
    assert target not in generate_latest(telemetry.REGISTRY).decode()
    store, key = board.services.spine.store, (board.tenant, target)
    async with store.system("test") as tx:
        await store.lock_breakers(tx, [key])
        await store.write_breakers(tx, [BreakerChange(target=key, breaker=Breaker(), open_seconds=0)])
    await board.services.measure()
    assert told() == before


def told():
    [family] = telemetry.breaker_open.collect()
    [sample] = family.samples
    return sample.value
