"""What waits for others outside does not take every slot: what is done in our own database goes on."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.ids import new_id
from mainspring.spine.effects import Done, Effect, NewEffect
from mainspring.spine.engine import Spine, SpineSettings
from mainspring.stores.memory import MemoryStore


class House:
    """An engine of few slots, whose external effects hang until they are let go."""

    def __init__(self, *, slots: int, inside: bool = True, tick_seconds: float = 0.05) -> None:
        self.spine = Spine(MemoryStore(), SpineSettings(slots=slots, tick_seconds=tick_seconds))
        self.let_go = asyncio.Event()
        self.hanging = 0
        self.done = asyncio.Event()
        self.spine.effect("slow")(self._slow)
        if inside:
            self.spine.transactional_effect("quick")(self._quick)

    async def _slow(self, _effect: Effect) -> Done:
        self.hanging += 1
        await self.let_go.wait()
        return Done()

    async def _quick(self, _effect: Effect, _tx: object) -> Done:
        self.done.set()
        return Done()

    async def owe(self, kind: str, n: int = 1) -> None:
        tenant = new_id()
        await self.spine.create_tenant(tenant, kind)
        async with self.spine.open(tenant) as tx:
            for k in range(n):
                await tx.owe(NewEffect(kind, key=str(k)))

    async def until(self, hanging: int) -> None:
        async with asyncio.timeout(10):
            while self.hanging < hanging:  # noqa: ASYNC110 - an executor tells nobody that it has begun
                await asyncio.sleep(0)

    async def until_crowded(self, hanging: int) -> None:
        """Wait until no more that is external is claimed, and a look for what is not rests, or has found nothing."""
        await self.until(hanging)
        async with asyncio.timeout(10):
            while not (self.spine.worker._crowded and self.spine.worker._reserve_rests_until):  # noqa: ASYNC110
                await asyncio.sleep(0)


@pytest.mark.parametrize("slots", [2, 8])
async def test_while_external_effects_hang_what_is_done_in_the_database_goes_on(slots):
    house = House(slots=slots)
    await house.owe("slow", 3 * slots)
    async with house.spine.running():
        most = max(1, slots * 3 // 4)
        await house.until(most)
        await house.owe("quick")
        await asyncio.wait_for(house.done.wait(), 10)
        assert house.hanging == most
        house.let_go.set()
        await house.until(3 * slots)


async def test_where_all_effects_are_external_they_have_every_slot():
    house = House(slots=8, inside=False)
    await house.owe("slow", 20)
    async with house.spine.running():
        await house.until(8)
        house.let_go.set()
        await house.until(20)


async def test_slots_that_are_kept_for_others_are_given_back_one_by_one():
    """No tick comes by meanwhile: each that ends makes room for the next."""
    house = House(slots=4, tick_seconds=1_000)
    await house.owe("slow", 40)
    async with house.spine.running():
        await house.until_crowded(3)
        house.let_go.set()
        await house.until(40)


async def test_what_is_owed_while_a_look_rests_is_looked_for_when_it_has():
    """It is called for once, and no tick comes by: whoever is told that it is too soon has to come back."""
    house = House(slots=4, tick_seconds=1_000)
    await house.owe("slow", 8)
    house.spine.worker._reserve_rests_until = asyncio.get_running_loop().time() + 0.3
    async with house.spine.running():
        await house.until_crowded(3)
        await house.owe("quick")
        await asyncio.wait_for(house.done.wait(), 10)
        assert house.hanging == 3
        house.let_go.set()
