"""Commands on cards, on the real schema: what is written, what is appended, what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from mainspring.boards import reads, verbs
from mainspring.boards.model import BoardState, CardEdit, CardQuery, NewCard, snapshot
from mainspring.ids import new_id
from mainspring.rooms import Conflict, Invalid, NotFound, VersionConflict
from mainspring.spine.errors import Misuse
from mainspring.spine.events import Cause, Trust


async def test_every_statement_fits_the_migrated_schema(house):
    async with house.db.tenant(house.tenant) as scope:
        for name, text in reads.SQL.items():
            assert await scope.conn.prepare(text), name


# boards


async def test_a_board_is_found_by_id_or_key(house):
    assert await house.boards.get_board(house.tenant, "ops") == house.board
    assert await house.boards.get_board(house.tenant, str(house.board.id)) == house.board
    assert await house.boards.list_boards(house.tenant) == [house.board]
    assert await house.boards.list_boards(house.tenant, after=house.board.id) == []
    with pytest.raises(NotFound):
        await house.boards.get_board(house.tenant, "NOPE")


async def test_a_board_key_is_taken_once(house):
    with pytest.raises(Conflict):
        await house.boards.create_board(
            house.ana, key="ops", name="again", states=[BoardState(name="a")], reflect={}
        )


# cards


async def test_a_new_card_has_the_next_number_and_one_event(house):
    first = await house.card("one")
    second = await house.card(
        "two",
        body="b",
        state="Ready",
        labels=["B", "a"],
        agent="Echo",
        assignee="qa",
        priority=5,
        fields={"x": [1, None], "none": None},
    )
    assert (first.key, second.key) == ("OPS-1", "OPS-2")
    assert await house.boards.get_card(house.tenant, "ops-2") == replace(second, eligible_seq=2)
    assert second.fields == {"x": [1, None]}
    created = (await house.events())[-1]
    assert (created.kind, created.subject, created.actor_id) == (
        "card.created",
        str(second.id),
        house.ana.account_id,
    )
    assert created.data == {"card": snapshot(second), "actor": house.ana.snapshot()}


async def test_a_move_is_one_event_with_its_delta(house):
    card = await house.card(agent="echo")
    after = await house.boards.move_card(house.qa, "OPS-1", " READY ", expected_version=1)
    assert (after.state, after.version, after.state_version, after.eligible_version) == ("ready", 2, 2, 2)
    moved = (await house.events())[-1]
    assert moved.data == {
        "card": snapshot(after),
        "actor": house.qa.snapshot(),
        "from": "inbox",
        "to": "ready",
    }
    stored = await house.boards.get_card(house.tenant, str(card.id))
    assert stored == replace(after, eligible_seq=moved.seq)


async def test_a_move_to_the_same_state_appends_nothing(house):
    card = await house.card()
    head = await house.head()
    assert await house.boards.move_card(house.ana, "OPS-1", "inbox") == card
    assert await house.head() == head


async def test_an_eligible_card_edited_twice_keeps_its_eligibility(house):
    card = await house.card(agent="echo", state="ready")
    await house.boards.edit_card(house.ana, "OPS-1", CardEdit(title="typo fixed"))
    await house.boards.label_card(house.ana, "OPS-1", add=["x"])
    async with house.spine.open(house.tenant) as tx:
        assert await verbs.set_dispatched(tx, card.id, 1)
        assert not await verbs.set_dispatched(tx, card.id, 3)
    after = await house.boards.assign_card(house.ana, "OPS-1", assignee="qa")
    assert (after.version, after.eligible_version, after.eligible_seq, after.dispatched_version) == (
        4,
        1,
        1,
        1,
    )
    repinned = await house.boards.assign_card(house.ana, "OPS-1", agent="flaky")
    assert (repinned.eligible_version, repinned.dispatched_version) == (5, None)
    assert (
        await house.value("select eligible_seq from mainspring.cards where number = 1") == await house.head()
    )
    unpinned = await house.boards.assign_card(house.ana, "OPS-1", agent=None)
    assert unpinned.eligible_version is None
    assert await house.value("select eligible_seq from mainspring.cards where number = 1") is None


async def test_labels_on_and_off_are_one_change_and_two_events(house):
    await house.card(labels=["old", "stays"])
    after = await house.boards.label_card(house.ana, "OPS-1", add=["New", "stays"], remove=["old", "never"])
    assert (after.labels, after.version) == ({"new", "stays"}, 2)
    labeled, unlabeled = (await house.events())[-2:]
    assert (labeled.kind, labeled.data["added"]) == ("card.labeled", ["new"])
    assert (unlabeled.kind, unlabeled.data["removed"]) == ("card.unlabeled", ["old"])
    assert labeled.data["card"] == unlabeled.data["card"] == snapshot(after)
    assert await house.boards.get_card(house.tenant, "OPS-1") == after


async def test_an_edit_merges_fields_and_says_what_changed(house):
    await house.card(fields={"a": 1, "b": 2})
    after = await house.boards.edit_card(
        house.ana, "OPS-1", CardEdit(title="new", fields={"a": None, "fixed": True})
    )
    assert after.fields == {"b": 2, "fixed": True}
    updated = (await house.events())[-1]
    assert updated.kind == "card.updated"
    assert updated.data["changed"] == {
        "title": {"from": "t", "to": "new"},
        "fields": {"a": {"from": 1, "to": None}, "fixed": {"from": None, "to": True}},
    }


async def test_fields_that_come_to_too_much_together_are_refused(house):
    await house.card(fields={"a": "x" * 40_000})
    head = await house.head()
    with pytest.raises(Invalid):
        await house.boards.edit_card(house.ana, "OPS-1", CardEdit(fields={"b": "x" * 40_000}))
    assert await house.head() == head
    assert (await house.boards.get_card(house.tenant, "OPS-1")).version == 1


async def test_an_assignment_says_who(house):
    await house.card()
    after = await house.boards.assign_card(house.ana, "OPS-1", assignee="QA", agent="echo")
    assert (after.assignee.handle, after.agent.handle) == ("qa", "echo")
    assigned = (await house.events())[-1]
    assert assigned.data["changed"]["agent"] == {"from": None, "to": "echo"}
    assert assigned.data["changed"]["assignee_id"] == {"from": None, "to": str(house.qa.account_id)}
    assert (await house.boards.assign_card(house.ana, "OPS-1", assignee=None)).agent.handle == "echo"


async def test_a_deleted_card_is_not_found_any_more(house):
    card = await house.card(agent="echo", state="ready")
    await house.boards.delete_card(house.ana, "OPS-1")
    assert (await house.events())[-1].kind == "card.deleted"
    for refused in (
        house.boards.get_card(house.tenant, "OPS-1"),
        house.boards.move_card(house.ana, str(card.id), "doing"),
        house.boards.delete_card(house.ana, "OPS-1"),
    ):
        with pytest.raises(NotFound):
            await refused
    assert await house.boards.list_cards(house.tenant, CardQuery()) == []
    assert await house.value("select count(*) from mainspring.cards where eligible_version is not null") == 0
    assert (await house.card()).key == "OPS-2"


# refusals


async def test_a_stale_version_is_refused_with_what_it_is_now_and_who_changed_it(house):
    await house.card()
    await house.boards.move_card(house.qa, "OPS-1", "doing")
    head = await house.head()
    with pytest.raises(VersionConflict) as refused:
        await house.boards.move_card(house.ana, "OPS-1", "review", expected_version=1)
    current = refused.value.current
    assert (current["version"], current["state"], current["changed"]) == (2, "doing", "card.moved")
    assert current["changed_by"] == house.qa.snapshot()
    assert "by qa" in str(refused.value)
    assert await house.head() == head


@pytest.mark.parametrize("ref", ["OPS-99", "NOPE-1", "nonsense", "00000000-0000-0000-0000-000000000000"])
async def test_what_is_no_card_is_not_found(house, ref):
    with pytest.raises(NotFound):
        await house.boards.get_card(house.tenant, ref)
    with pytest.raises(NotFound):
        await house.boards.move_card(house.ana, ref, "doing")


async def test_names_that_mean_nothing_are_refused_by_field(house):
    await house.card()
    for call, pointer in (
        (house.boards.move_card(house.ana, "OPS-1", "nowhere"), "/state"),
        (house.boards.assign_card(house.ana, "OPS-1", agent="ana"), "/agent"),
        (house.boards.assign_card(house.ana, "OPS-1", assignee="nobody"), "/assignee"),
        (house.boards.create_card(house.ana, "NOPE", NewCard(title="t")), "/board"),
        (house.boards.list_cards(house.tenant, CardQuery(board="NOPE")), "/board"),
        (house.boards.list_cards(house.tenant, CardQuery(agent="nobody")), "/agent"),
    ):
        with pytest.raises(Invalid) as refused:
            await call
        assert [error.pointer for error in refused.value.errors] == [pointer]
    assert await house.head() == 1


async def test_another_tenants_card_does_not_exist(house):
    card = await house.card()
    other = new_id()
    await house.spine.create_tenant(other, "other")
    stranger = replace(house.ana, tenant_id=other)
    for ref in (str(card.id), card.key):
        with pytest.raises(NotFound):
            await house.boards.get_card(other, ref)
        with pytest.raises(NotFound):
            await house.boards.move_card(stranger, ref, "doing")
    assert await house.boards.list_boards(other) == []


# lists


async def test_cards_are_filtered_and_paged(house):
    await house.boards.create_board(
        house.ana, key="DEV", name="d", states=[BoardState(name="inbox")], reflect={}
    )
    one = await house.card("1", labels=["a", "b"], assignee="qa")
    two = await house.card("2", labels=["a"], state="doing", agent="echo")
    three = await house.boards.create_card(house.ana, "DEV", NewCard(title="3", labels=["a"], assignee="qa"))

    async def ids(**terms):
        return [card.id for card in await house.boards.list_cards(house.tenant, CardQuery(**terms))]

    assert await ids() == [one.id, two.id, three.id]
    assert await ids(limit=2) == [one.id, two.id]
    assert await ids(after=two.id) == [three.id]
    assert await ids(board="ops") == [one.id, two.id]
    assert await ids(board="OPS", state="Doing") == [two.id]
    assert await ids(board="OPS", after=one.id) == [two.id]
    assert await ids(labels=["A"]) == [one.id, two.id, three.id]
    assert await ids(labels=["a", "b"]) == [one.id]
    assert await ids(labels=["a"], board=str(house.board.id), after=one.id, limit=1) == [two.id]
    assert await ids(labels=["c"]) == []
    assert await ids(assignee="qa") == [one.id, three.id]
    assert await ids(agent="echo") == [two.id]
    assert await ids(state="nowhere") == []


# verbs for other rooms


async def test_taking_labels_is_all_or_nothing(house):
    card = await house.card(labels=["go", "now", "stays"])
    cause = Cause(seq=1, via=(new_id(),), depth=1, trust=Trust.AGENT)
    actor = replace(house.echo, cause=cause)
    async with house.spine.open(house.tenant) as tx:
        locked = await verbs.lock_card(tx, card.id)
        assert await verbs.take_labels(tx, locked, ["go", "missing"], actor) is None
        taken = await verbs.take_labels(tx, locked, ["GO", "now"], actor)
        assert taken.labels == {"stays"}
        assert await verbs.card_snapshot(tx, card.id) == snapshot(taken)
    unlabeled = (await house.events())[-1]
    assert unlabeled.data["removed"] == ["go", "now"]
    assert (unlabeled.cause_seq, unlabeled.via, unlabeled.depth) == (1, cause.via, 1)
    assert unlabeled.trust is Trust.AGENT
    async with house.spine.open(house.tenant) as tx:
        again = await verbs.lock_card(tx, card.id)
        assert await verbs.take_labels(tx, again, ["go"], actor) is None
        assert await verbs.lock_card(tx, new_id()) is None
        assert await verbs.card_snapshot(tx, new_id()) is None


async def test_a_card_that_was_not_locked_is_not_changed_from_its_old_version(house):
    stale = await house.card()
    await house.boards.edit_card(house.ana, "OPS-1", CardEdit(title="other"))
    with pytest.raises(Misuse):
        async with house.spine.open(house.tenant) as tx:
            await verbs.edit_card(tx, stale, CardEdit(title="lost update"), house.ana)
    assert (await house.boards.get_card(house.tenant, "OPS-1")).title == "other"


async def test_who_waited_for_a_card_sees_the_labels_that_were_set_meanwhile(house):
    card = await house.card(labels=["go"])
    held, waiting = asyncio.Event(), asyncio.Event()

    async def take() -> bool:
        async with house.spine.open(house.tenant) as tx:
            locked = await verbs.lock_card(tx, card.id)
            held.set()
            await waiting.wait()
            return await verbs.take_labels(tx, locked, ["go"], house.ana) is not None

    async def take_too() -> bool:
        await held.wait()
        async with house.spine.open(house.tenant) as tx:
            locked = await verbs.lock_card(tx, card.id)
            return await verbs.take_labels(tx, locked, ["go"], house.qa) is not None

    async def watch() -> None:
        await held.wait()
        async with house.db.tenant(house.tenant) as scope:
            while not await scope.fetchval(
                "select exists (select from pg_locks where not granted and locktype = 'transactionid')"
            ):
                pass
        waiting.set()

    first, second, _ = await asyncio.gather(take(), take_too(), watch())
    assert (first, second) == (True, False)
    assert await house.value("select version from mainspring.cards where id = $1", card.id) == 2


async def test_cards_made_at_once_have_numbers_without_hole_or_double(house):
    cards = await asyncio.gather(*(house.card(str(n)) for n in range(12)))
    assert sorted(card.number for card in cards) == list(range(1, 13))
