"""Rules as people write them: versions, the seqs they judge, and what is refused."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from mainspring.boards.model import BoardState
from mainspring.ids import new_id
from mainspring.rooms import Conflict, Invalid, NotFound, VersionConflict

from .conftest import House

MOVED = {"kinds": ["card.moved"], "to_states": ["ready"]}


async def spans(house: House, rule_id: Any) -> list[tuple[int, bool, int, int | None]]:
    async with house.db.tenant(house.tenant) as scope:
        rows = await scope.fetch(
            """select version, enabled, from_seq, until_seq from mainspring.rule_versions
               where tenant_id = $1 and rule_id = $2 order by version""",
            house.tenant,
            rule_id,
        )
    return [tuple(row) for row in rows]


async def rules_seq(house: House) -> int:
    async with house.db.tenant(house.tenant) as scope:
        seq: int = await scope.fetchval(
            "select rules_seq from mainspring.log_heads where tenant_id = $1", house.tenant
        )
        return seq


async def test_each_change_is_an_event_and_its_seq_bounds_the_versions(house: House) -> None:
    rule = await house.rule(MOVED)
    await house.card()  # another event between
    edited = (await house.rules.edit(house.ana, "r", {"when": MOVED | {"boards": ["web"]}})).rule
    off = await house.rules.disable(house.ana, " R ")
    on = await house.rules.enable(house.ana, str(rule.id))
    await house.rules.delete(house.ana, "r")

    assert [rule.version, edited.version, off.version, on.version] == [1, 2, 3, 4]
    changed = [event for event in await house.events() if event.kind == "rule.changed"]
    assert [event.data["change"] for event in changed] == [
        "created",
        "edited",
        "disabled",
        "enabled",
        "deleted",
    ]
    assert [event.data["rule"]["version"] for event in changed] == [1, 2, 3, 4, 5]
    assert {event.subject for event in changed} == {str(rule.id)}
    assert changed[0].data["actor"]["handle"] == "ana"
    seqs = [event.seq for event in changed]
    assert await spans(house, rule.id) == [
        (1, True, seqs[0], seqs[1]),
        (2, True, seqs[1], seqs[2]),
        (3, False, seqs[2], seqs[3]),
        (4, True, seqs[3], seqs[4]),
    ]
    assert [rule.from_seq, edited.from_seq, off.from_seq, on.from_seq] == seqs[:4]
    assert await rules_seq(house) == seqs[4]
    with pytest.raises(NotFound):
        await house.rules.show(house.tenant, "r")


async def test_nothing_to_change_makes_no_version(house: House) -> None:
    rule = await house.rule(MOVED)
    again = await house.rules.edit(house.ana, "r", {"when": MOVED, "name": " r "})
    assert again.rule == await house.rules.enable(house.ana, "r") == rule
    assert len(await spans(house, rule.id)) == 1


async def test_edit_replaces_a_part_as_a_whole_and_keeps_the_others(house: House) -> None:
    await house.rule(MOVED, recheck=True)
    edited = (await house.rules.edit(house.ana, "r", {"when": {"kinds": ["card.created"]}, "name": "s"})).rule
    assert edited.definition.as_json() == {
        "name": "s",
        "when": {"kinds": ["card.created"]},
        "do": {"launch": {"agent": "echo", "prompt": "{{card.title}}"}},
        "options": {"recheck": True},
    }
    assert (await house.rules.show(house.tenant, "S")) == edited


async def test_a_version_that_is_not_the_last_changes_nothing(house: House) -> None:
    rule = await house.rule(MOVED)
    await house.rules.disable(house.ana, "r", expected_version=1)
    for change in (
        house.rules.edit(house.ana, "r", {"name": "x"}, expected_version=1),
        house.rules.enable(house.ana, "r", expected_version=1),
        house.rules.delete(house.ana, "r", expected_version=3),
    ):
        with pytest.raises(VersionConflict) as caught:
            await change
        assert caught.value.current["version"] == 2
        assert caught.value.current["changed_by"] == "ana"
    assert len(await spans(house, rule.id)) == 2


async def test_two_edits_at_once_are_two_versions(house: House) -> None:
    rule = await house.rule(MOVED)
    await asyncio.gather(
        *(house.rules.edit(house.ana, "r", {"name": f"r{n}"}) for n in range(2)), return_exceptions=True
    )
    found = await spans(house, rule.id)
    # the second may have looked for the name that the first took away
    assert [version for version, *_ in found] in ([1, 2], [1, 2, 3])
    assert all(one[3] == other[2] for one, other in pairwise(found))


async def test_a_name_is_taken_whatever_its_case_and_free_again_once_deleted(house: House) -> None:
    await house.rule(MOVED, name="Ready")
    with pytest.raises(Conflict) as caught:
        await house.rule(MOVED, name="READY")
    assert caught.value.code == "rule_name_taken"
    await house.rule(MOVED, name="other")
    with pytest.raises(Conflict):
        await house.rules.edit(house.ana, "other", {"name": "ready"})
    await house.rules.delete(house.ana, "ready")
    await house.rule(MOVED, name="READY")


async def test_names_that_stand_for_nothing(house: House) -> None:
    with pytest.raises(Invalid):
        await house.rule({"boards": ["NONE"]})
    with pytest.raises(Invalid):
        await house.rule(MOVED, agent="ana")
    body = {"name": "r", "when": {"boards": ["WEB", "NONE"]}, "do": {"launch": {"agent": "echo"}}}
    written = (await house.rules.create(house.ana, body)).as_json()
    assert written["remarks"] == [{"pointer": "/when/boards", "detail": "there is no board NONE"}]
    assert await rules_seq(house) == written["from_seq"]


@pytest.mark.parametrize(
    ("when", "echoed"),
    [
        ({"to_states": ["doing", "done"], "boards": ["ECHO"]}, "doing"),
        ({"to_states": ["doing"]}, "doing"),
        ({"to_states": ["doing"], "boards": ["WEB"]}, None),
        ({"to_states": ["done"]}, None),
        ({"to_states": ["doing"], "actors": ["members"]}, None),
        ({"from_states": ["inbox"], "to_states": ["doing"]}, None),
    ],
)
async def test_a_rule_that_runs_themselves_would_fire_is_remarked_on(
    house: House, when: dict[str, Any], echoed: str | None
) -> None:
    states = [BoardState(name="inbox"), BoardState(name="doing"), BoardState(name="done")]
    await house.boards.create_board(
        house.ana, key="ECHO", name="Echo", states=states, reflect={"running": "doing"}
    )
    body = {"name": "r", "when": {"kinds": ["card.moved"], **when}, "do": {"launch": {"agent": "echo"}}}
    remarks = (await house.rules.create(house.ana, body)).as_json()["remarks"]
    expected = [] if echoed is None else [f"runs move their cards to {echoed}, and fire it, too"]
    assert [one["detail"].partition(":")[0] for one in remarks] == expected


async def test_pages_and_other_tenants(house: House) -> None:
    made = [await house.rule(MOVED, name=f"r{n}") for n in range(3)]
    first = await house.rules.list(house.tenant, limit=2)
    assert first == made[:2]
    assert await house.rules.list(house.tenant, after=first[-1].id, limit=2) == made[2:]
    other = new_id()
    await house.spine.create_tenant(other, "other")
    assert await house.rules.list(other) == []
    for ref in ("r0", str(made[0].id), "nul\0", "x" * 1_000):
        with pytest.raises(NotFound):
            await house.rules.show(other, ref)


async def test_what_is_refused_leaves_no_trace(house: House) -> None:
    before = len(await house.events())
    with pytest.raises(Invalid):
        await house.rule({"boards": []})
    with pytest.raises(NotFound):
        await house.rules.enable(house.ana, "none")
    assert len(await house.events()) == before
    assert await house.rules.list(house.tenant) == []
