"""Who would wake: what is said before a move, and that the move then does just that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mainspring.rooms import Invalid, NotFound
from mainspring.spine.events import Cause, Trust
from mainspring.triggers.preview import Preview

from .conftest import House
from .test_limits import again

MOVED = {"kinds": ["card.moved"], "to_states": ["ready"]}


async def told(house: House, card: Any, to_state: str = "ready", **by: Any) -> Preview:
    return await house.preview.move(replace(house.ana, **by), card.key, to_state)


def wakes(preview: Preview) -> list[tuple[str, bool, str]]:
    return [(f"{one.do} {one.agent}: {one.because}", one.happens, one.then) for one in preview.wakes]


async def test_it_says_who_and_who_not_and_why_and_changes_nothing(house: House) -> None:
    await house.rule({"kinds": ["run.done"]}, name="another kind")
    await house.rule(MOVED, name="hit")
    await house.rule(MOVED | {"to_states": ["doing"]}, name="another move")
    await house.rule(MOVED | {"boards": ["OPS"]}, name="elsewhere")
    await house.rule(MOVED, name="off")
    await house.rules.disable(house.ana, "off")
    card = await house.card()
    before = len(await house.events())
    preview = await told(house, card, " Ready ")
    assert (preview.card, preview.from_state, preview.to_state, preview.moves) == (
        "WEB-1",
        "inbox",
        "ready",
        True,
    )
    assert wakes(preview) == [("launch echo: rule hit", True, "queued, and waits for a runner")]
    assert [(one.name, one.why_text) for one in preview.misses] == [  # the nearest first, whatever their age
        ("off", "not in force: disabled"),
        ("elsewhere", "boards: the card is on WEB, the rule asks for OPS"),
        ("another move", "to_states: it went to ready, the rule asks for doing"),
        ("another kind", "kinds: it is card.moved, the rule looks at run.done"),
    ]
    assert preview.dispatch == "the card would not be both pinned to an agent and in an eligible state"
    assert len(await house.events()) == before
    assert (await house.boards.get_card(house.tenant, card.key)).state == "inbox"
    await house.move(card, "ready")
    await house.spine.run_once()
    assert await house.outcomes() == ["launched echo"]


async def test_to_where_it_is_already_nothing_happens(house: House) -> None:
    await house.rule(MOVED)
    card = await house.card(state="ready")
    preview = await told(house, card)
    assert (preview.moves, preview.wakes, preview.misses, preview.dispatch) == (False, (), (), None)


async def test_a_pin_is_dispatched_and_waits_for_its_run(house: House) -> None:
    card = await house.card(board="OPS", agent="echo")
    assert wakes(await told(house, card)) == [
        ("launch echo: it is pinned", True, "queued, and waits for a runner")
    ]
    await house.move(card, "ready")
    await house.spine.run_once()
    await house.move(card, "inbox")
    assert wakes(await told(house, card)) == [
        ("launch echo: it is pinned", True, "waits: a run of echo on OPS-1 has not ended")
    ]


async def test_a_promotion_is_followed_to_the_launch_that_it_leads_to(house: House) -> None:
    await house.promotion(MOVED)
    card = await house.card(board="OPS")
    assert wakes(await told(house, card)) == [
        ("promote echo: rule p", True, "pins OPS-1 to echo"),
        ("launch echo: rule p pins it", True, "queued, and waits for a runner"),
    ]
    web = await house.card(board="WEB")
    assert wakes(await told(house, web)) == [("promote echo: rule p", True, "pins WEB-1 to echo")]
    pinned = await house.card(board="WEB", agent="flaky")
    assert wakes(await told(house, pinned)) == [
        ("promote echo: rule p", False, "dropped: pinned to flaky by hand")
    ]
    mine = await house.card(board="WEB", agent="echo")
    assert wakes(await told(house, mine)) == [
        ("promote echo: rule p", False, "dropped: pinned to echo already")
    ]


@pytest.mark.parametrize(
    ("options", "then"),
    [
        ({"cooldown_seconds": 60}, "dropped: cooldown_seconds: the rule fired on WEB-1 0 s ago, and rests 60 s"),
        ({"max_per_hour": 1}, "held, and the rule would be paused: max_per_hour: it fired once within the hour"),
        ({"while_running": "skip"}, "dropped: while_running: a run of echo on WEB-1 has not ended"),
        ({"while_running": "queue_one"}, "waits: a run of echo on WEB-1 has not ended"),
        ({}, "queued, and waits for a runner"),
    ],
)  # fmt: skip
async def test_it_knows_the_limits_and_the_move_comes_out_so(
    house: House, options: dict[str, Any], then: str
) -> None:
    await house.rule(MOVED, **options)
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    await house.move(card, "inbox")
    [(_, happens, said)] = wakes(await told(house, card))
    assert said.startswith(then)
    await house.move(card, "ready")
    await house.spine.run_once()
    state, outcome, error = (await house.launches())[1]
    match then.split(":")[0].split(",")[0]:
        case "dropped":
            assert (state, happens, f"dropped: {outcome}") == (
                "dropped",
                False,
                f"dropped: dropped({said[9:]})",
            )
        case "held":
            assert (outcome, happens) == ("held", False)
        case "waits":
            assert (outcome, happens, f"waits: {str(error).removeprefix('while_running: ')}") == (
                "deferred",
                True,
                said,
            )
        case _:
            assert (outcome, happens) == ("launched echo", True)


async def test_what_would_be_dead_or_held_is_said(house: House) -> None:
    await house.rule(MOVED, name="asks", prompt="{{card.fields.url}}")
    await house.rule(MOVED, name="paused")
    await house.rules.pause(house.ana, "paused", because="too loud")
    card = await house.card()
    assert wakes(await told(house, card)) == [
        (
            "launch echo: rule asks",
            False,
            "dead: the prompt names {{card.fields.url}}, and there is no such thing",
        ),
        ("launch echo: rule paused", False, "held: the rule is paused: too loud"),
    ]


async def test_of_two_rules_on_one_label_one_is_told_to_come_too_late(house: House) -> None:
    when = {"kinds": ["card.moved"], "labels_all": ["go"]}
    await house.rule(when, name="one", consume_label=True)
    await house.rule(when, name="two", consume_label=True)
    card = await house.card(labels=["go"])
    assert [(one.happens, one.then) for one in (await told(house, card)).wakes] == [
        (True, "queued, and waits for a runner"),
        (False, "dropped: another rule takes the label first"),
    ]


async def test_a_paused_agent_and_a_runner_that_is_there(house: House) -> None:
    await house.rule(MOVED)
    card = await house.card()
    async with house.db.tenant(house.tenant) as scope:
        await scope.execute(
            """insert into mainspring.runners (tenant_id, id, name, incarnation, agents)
               values ($1, gen_random_uuid(), 'w', gen_random_uuid(), array[$2::uuid])""",
            house.tenant,
            house.echo.account_id,
        )
    assert [one.then for one in (await told(house, card)).wakes] == ["launches echo"]
    body = {"launch": {"agent": "echo", "prompt": "go", "runner_labels": ["gpu"]}}
    await house.rules.create(house.ana, {"name": "labelled", "when": MOVED, "do": body})
    wakes = (await told(house, card)).wakes
    assert [one.then for one in wakes] == ["launches echo", "queued, and waits for a runner with gpu"]
    await house.rules.disable(house.ana, "labelled")
    async with house.db.tenant(house.tenant) as scope:
        await scope.execute("update mainspring.agents set paused = true where tenant_id = $1", house.tenant)
    assert [one.then for one in (await told(house, card)).wakes] == ["queued, and waits: echo is paused"]


async def test_it_is_asked_as_whoever_would_move_it(house: House) -> None:
    await house.rule(MOVED | {"actors": ["agents"]}, name="agents only")
    card = await house.card(board="OPS", agent="echo")
    assert [one.failed_term for one in (await told(house, card)).misses] == ["actors"]
    agent = {"account_id": house.echo.account_id, "kind": "agent", "handle": "echo"}
    assert len((await told(house, card, **agent)).wakes) == 2
    distrusted = await told(house, card, cause=Cause(seq=1, depth=1, trust=Trust.STRANGER), **agent)
    assert (distrusted.wakes, [one.failed_term for one in distrusted.misses]) == ((), ["min_trust"])
    assert distrusted.dispatch == "what makes you move it is not trusted far enough"
    deep = await told(house, card, cause=Cause(seq=1, depth=8), **agent)
    assert ([one.failed_term for one in deep.misses], deep.dispatch) == (
        ["depth"],
        "the chain of causes is too long",
    )


async def test_names_that_stand_for_nothing_are_refused(house: House) -> None:
    card = await house.card()
    with pytest.raises(Invalid) as caught:
        await told(house, card, "nowhere")
    assert "it has: inbox, ready, doing, shipped" in str(caught.value)
    with pytest.raises(NotFound):
        await house.preview.move(house.ana, "WEB-99", "ready")


async def test_the_hourly_ceiling_is_told(house: House) -> None:
    await house.rule(MOVED)
    card = await house.card()
    await house.move(card, "ready")
    await house.spine.run_once()
    await again(house, card)
    await house.move(card, "inbox")
    house.preview._per_hour_max = 1
    assert [one.then for one in (await told(house, card)).wakes] == [
        "waits: echo was launched once within the hour: its ceiling"
    ]
