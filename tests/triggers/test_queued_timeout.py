"""A run that no runner takes in the time that its rule gives is lost, and its place is free."""

from __future__ import annotations

import pytest

from mainspring.agents.model import RunPolicy
from mainspring.agents.service import AgentService
from mainspring.agents.silence import Silence

from .conftest import House
from .test_limits import again

MOVED = {"kinds": ["card.moved"], "to_states": ["ready"]}


@pytest.fixture
def silence(house: House) -> Silence:
    return Silence(house.spine, house.db, house.runs, RunPolicy())


async def states(house: House) -> list[tuple[str, str | None]]:
    return [(run["state"], run["outcome"]) for run in await house.queued()]


async def test_a_run_that_nobody_takes_is_lost_and_the_next_may_be_launched(
    house: House, silence: Silence
) -> None:
    await house.rule(MOVED, while_running="skip", queued_timeout_seconds=60)
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    await house.later(seconds=59)
    assert await silence.expire_runs() == 0
    await house.later(seconds=2)
    assert await silence.expire_runs() == 1
    assert await states(house) == [("lost", "no runner")]
    lost = await house.last("run.lost")
    assert lost.data["run"]["error"] == "no runner took it in the time that its rule gives"
    await again(house, card)
    await house.spine.run_once()
    assert (await house.outcomes())[-1] == "launched echo"


async def test_without_one_a_run_waits_for_ever(house: House, silence: Silence) -> None:
    await house.rule(MOVED)
    await house.move(await house.card(), "ready")
    await house.spine.run_once()
    await house.later(days=365)
    assert await silence.expire_runs() == 0


async def test_a_paused_agents_runs_wait_and_their_time_begins_when_it_is_resumed(
    house: House, silence: Silence
) -> None:
    agents = AgentService(house.db, RunPolicy(), poke=lambda: None)
    await house.rule(MOVED, queued_timeout_seconds=60)
    await agents.pause(house.ana, "echo")
    await house.move(await house.card(), "ready")
    await house.spine.run_once()
    await house.later(seconds=600)
    assert await silence.expire_runs() == 0
    await agents.resume(house.ana, "echo")
    await house.later(seconds=30)
    assert await silence.expire_runs() == 0
    await house.later(seconds=31)
    assert await silence.expire_runs() == 1


async def test_a_lost_run_that_is_replayed_has_its_time_again_and_takes_nobodys_place(
    house: House, silence: Silence
) -> None:
    await house.rule(MOVED, while_running="skip", queued_timeout_seconds=60)
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    await house.later(seconds=61)
    await silence.expire_runs()
    await again(house, card)
    await house.spine.run_once()
    [dead, _] = await house.queued()
    async with house.spine.open(house.tenant) as tx:
        assert await house.runs.replay_runs(tx, [dead["id"]], house.ana) == [dead["id"]]
    assert [state for state, _ in await states(house)] == ["queued", "queued"]
    await house.later(seconds=59)
    assert await silence.expire_runs() == 0
    await house.later(seconds=2)
    assert await silence.expire_runs() == 2


async def test_a_run_that_was_taken_back_waits_as_long_again(house: House, silence: Silence) -> None:
    await house.rule(MOVED, queued_timeout_seconds=60)
    await house.move(await house.card(), "ready")
    await house.spine.run_once()
    async with house.db.tenant(house.tenant) as scope:
        await scope.execute(
            """update mainspring.runs set state = 'claimed', claim_id = id, queued_until = null,
                   lease_until = clock_timestamp() - interval '1 s' where tenant_id = $1""",
            house.tenant,
        )
    assert await silence.expire_runs() == 1  # back to the queue
    await house.later(seconds=50)
    assert await silence.expire_runs() == 0
    await house.later(seconds=20)
    assert await silence.expire_runs() == 1
    assert [state for state, _ in await states(house)] == ["lost"]
