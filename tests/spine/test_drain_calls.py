"""A commit here says whose log has grown, and that one alone is looked at; whatever nobody said is found by the tick."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.spine.drain import EVENTS_A_TENANT_MAX, EVENTS_MAX
from mainspring.spine.engine import Spine
from mainspring.spine.errors import Transient
from mainspring.spine.events import Event, NewEvent
from mainspring.spine.ports import NotOwed
from tests.conformance.hands import Hands


@pytest.fixture
async def spine(hands: Hands) -> Spine[Any]:
    """An engine that has looked everywhere, and found nothing."""
    made: Spine[Any] = Spine(hands.store)
    made.owes(name="nothing")(lambda _: NotOwed("never"))
    await made.run_once()
    return made


async def append(spine: Spine[Any], tenant: Any, events: int = 1) -> None:
    async with spine.open(tenant) as tx:
        for _ in range(events):
            tx.append(NewEvent("order.paid", subject="42"))


async def drained(spine: Spine[Any]) -> int:
    return (await spine.drain.run_once()).events


async def test_a_commit_has_its_own_tenant_drained_and_the_tick_finds_the_others(
    hands: Hands, spine: Spine[Any]
):
    tenant, other = await hands.tenant(), await hands.tenant()
    await hands.append(other, "order.paid")  # by a process that has died since
    await append(spine, tenant, events=3)
    assert await drained(spine) == 3
    assert await drained(spine) == 0
    assert [cursor.tenant_id for cursor in await hands.lagging()] == [other]
    await append(spine, tenant)
    await spine.recovery.run_once()
    assert await drained(spine) == 2  # a busy process looks at the others, too
    assert await hands.lagging() == []


async def test_a_tenant_that_was_just_drained_is_looked_at_once_more(hands: Hands, spine: Spine[Any]):
    # another process appended meanwhile, and its own drain passed the tenant over, since it was locked here
    tenant = await hands.tenant()
    await append(spine, tenant)
    assert await drained(spine) == 1
    await hands.append(tenant, "order.paid")
    assert await drained(spine) == 1


async def test_a_round_that_failed_has_all_looked_at(hands: Hands, spine: Spine[Any]):
    tenant, other = await hands.tenant(), await hands.tenant()
    troubles = [Transient("the link broke")]

    @spine.owes(name="troubled")
    def troubled(_: Event) -> NotOwed:
        if troubles:
            raise troubles.pop()
        return NotOwed("never")

    await hands.append(other, "order.paid")
    await append(spine, tenant)
    with pytest.raises(Transient):
        await spine.drain.run_once()
    await append(spine, await hands.tenant())
    assert await drained(spine) == 3


async def test_more_events_than_a_round_takes_are_drained_by_the_rounds_after_it(
    hands: Hands, spine: Spine[Any]
):
    for tenant in [await hands.tenant() for _ in range(4)]:
        await append(spine, tenant, events=EVENTS_A_TENANT_MAX)
    total = 0
    while events := await drained(spine):
        total += events
    assert total == 4 * EVENTS_A_TENANT_MAX > EVENTS_MAX


async def test_a_tenant_that_cannot_be_drained_is_not_looked_at_again_for_others(
    hands: Hands, spine: Spine[Any]
):
    broken, tenant = await hands.tenant(), await hands.tenant()
    await append(spine, broken, events=2)
    await hands.subject.lose_event(broken, 1)
    await append(spine, tenant)
    assert await drained(spine) == 1
    assert spine.drain._called == {tenant}
