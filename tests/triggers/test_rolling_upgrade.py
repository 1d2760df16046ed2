"""A newer release beside an older one on one database: what the older does not know it leaves to the newer, and nothing is lost or twice."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from mainspring.rooms import Newer, ServerSpine
from mainspring.spine.drain import ENGINE_VERSION, Drain

from .conftest import House
from .webhooks.hook_server import hook_server

MOVED = {"kinds": ["card.moved"], "to_states": ["ready"]}


async def admin(house: House, sql: str, *args: Any) -> None:
    conn = await asyncpg.connect(**house.admin)
    try:
        await conn.execute(sql, *args)
    finally:
        await conn.close()


async def from_a_newer_release(house: House, column: str, what: str, value: Any) -> None:
    """A newer server has written something into every rule that this one knows nothing of."""
    await admin(
        house,
        f"update mainspring.rule_versions set {column} = {column} || jsonb_build_object($1::text, $2::text)",
        what,
        value,
    )


async def known_by_now(house: House, column: str, what: str) -> None:
    """This process is one of the newer release."""
    await admin(house, f"update mainspring.rule_versions set {column} = {column} - $1", what)


def of_version(engine: ServerSpine, version: int) -> Drain[Any]:
    """The same obligations, drained by a process of this engine version."""
    return Drain(engine.store, engine._obligations, engine_version=version, complete=engine._complete)


async def test_the_older_leaves_the_log_to_the_newer_and_carries_out_what_the_newer_owes(
    house: House, other: ServerSpine
) -> None:
    await house.rule(MOVED)
    await house.move(await house.card(), "ready")
    older = of_version(house.spine, ENGINE_VERSION - 1)
    assert (await older.run_once()).events == 0
    assert await house.keys() == []
    assert (await of_version(other, ENGINE_VERSION).run_once()).owed == 1
    assert (await older.run_once()).events == 0
    await house.spine.run_once()
    assert await house.outcomes() == ["launched echo"]
    assert len(await house.queued()) == 1


@pytest.mark.parametrize(
    ("column", "what", "value", "told"),
    [
        ("options", "while_waning", "skip", "the option while_waning"),
        ("terms", "moon", "full", "the term moon"),
    ],
)
async def test_what_is_owed_by_a_rule_of_a_newer_release_is_left_to_it_and_costs_nothing(
    house: House, column: str, what: str, value: str, told: str
) -> None:
    await house.rule(MOVED)
    await house.move(await house.card(), "ready")
    await house.spine.drain.run_once()
    await from_a_newer_release(house, column, what, value)
    for _ in range(20):  # more often than it has attempts
        await house.spine.run_once()
        await house.later(seconds=30)
    assert await house.launches() == [("pending", "deferred", f"left to a newer server: {told}")]
    assert await house.queued() == []
    await known_by_now(house, column, what)
    await house.spine.run_once()
    assert await house.outcomes() == ["launched echo"]
    assert len(await house.queued()) == 1


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ({"summon": {}}, "do: summon"),
        ({"launch": {"agent": "echo", "prompt": "p", "at": "noon"}}, "at of launch"),
    ],
)
async def test_an_act_of_a_newer_release_is_left_to_it(
    house: House, action: dict[str, Any], told: str
) -> None:
    await house.rule(MOVED)
    await house.move(await house.card(), "ready")
    await house.spine.drain.run_once()
    await admin(house, "update mainspring.rule_versions set action = $1::jsonb", json.dumps(action))
    await house.spine.run_once()
    assert await house.launches() == [("pending", "deferred", f"left to a newer server: {told}")]


async def edited_by_a_newer_release(house: House, name: str) -> None:
    """A newer server has edited the rule: the version in force says what this one does not know, the one that matched does not."""
    await house.rules.edit(house.ana, name, {"options": {"max_per_hour": 1, "max_event_age_seconds": 3600}})
    await admin(
        house,
        """update mainspring.rule_versions v set options = v.options || '{"moon": "full"}'
             from mainspring.rules r
            where r.name = $1 and v.tenant_id = r.tenant_id and v.rule_id = r.id and v.version = r.version""",
        name,
    )


@pytest.mark.parametrize("kind", ["launch", "promote", "webhook"])
async def test_a_pause_that_a_newer_release_would_tell_otherwise_is_left_to_it_and_costs_nothing(
    house: House, kind: str
) -> None:
    """This one knows the version that matched, and that it has fired too often; not the version that is paused now."""
    async with hook_server() as hook:
        do = {
            "launch": {"launch": {"agent": "echo", "prompt": "p"}},
            "promote": {"promote": {"agent": "echo"}},
            "webhook": {"webhook": {"url": hook.url()}},
        }
        body = {"name": "r", "when": MOVED, "do": do[kind], "options": {"max_per_hour": 1}}
        await house.rules.create(house.ana, body)
        for title in ("fires", "is one more"):
            await house.move(await house.card(title), "ready")
        await house.spine.drain.run_once()
        await edited_by_a_newer_release(house, "r")
        for _ in range(2):
            await house.spine.worker.run_once()
            await house.later(seconds=30)
        [one] = [row for row in await house.launches(kind) if row[0] == "pending"]
        assert one == ("pending", "deferred", "left to a newer server: the option moon")
        async with house.db.tenant(house.tenant) as scope:
            rows = await house.spine.store.effects(scope, house.tenant, kind=kind, limit=10)
            assert [row.attempts for row in rows] == [0, 0]
        await known_by_now(house, "options", "moon")
        await house.spine.worker.run_once()
        assert "held" in await house.outcomes(kind)


async def test_a_rule_of_a_newer_release_is_judged_by_nobody_who_does_not_know_it(house: House) -> None:
    """If its engine version was not raised: every event that it would have judged is a dead letter, and none is judged by half a rule."""
    await house.rule(MOVED)
    await from_a_newer_release(house, "terms", "moon", "full")
    card = await house.card()
    await house.spine.drain.run_once()
    await house.move(card, "ready")
    await house.spine.run_once()
    assert await house.keys() == []
    assert {state for state, _, _ in await house.launches("event")} == {"dead"}
    letters = len(await house.launches("event"))
    await house.spine.run_once()
    assert len(await house.launches("event")) == letters
    with pytest.raises(Newer, match="moon"):
        await house.rules.list(house.tenant)
