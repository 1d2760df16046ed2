"""Cards as values: what a change makes of eligibility, versions and deltas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID

import pytest

from mainspring.boards import model
from mainspring.boards.model import (
    Account,
    Apply,
    Board,
    BoardState,
    Card,
    CardEdit,
    CardKey,
    Leave,
    MovedSince,
)
from mainspring.spine.events import NO_CAUSE, Cause

ECHO = Account(id=UUID(int=1), handle="echo")
FLAKY = Account(id=UUID(int=2), handle="flaky")
ANA = Account(id=UUID(int=3), handle="ana")
BOARD = Board(
    id=UUID(int=10),
    key="OPS",
    name="Operations",
    states=(
        BoardState(name="inbox"),
        BoardState(name="ready", eligible=True),
        BoardState(name="urgent", eligible=True),
        BoardState(name="doing"),
        BoardState(name="review"),
        BoardState(name="done", terminal=True),
    ),
    reflect={"running": "doing", "done": "review"},
)


def card(**more) -> Card:
    return model.created(
        Card(**{"id": UUID(int=20), "board": BOARD, "number": 12, "title": "t", "state": "inbox", **more})
    )


# eligibility


def test_a_card_born_pinned_in_an_eligible_state_is_eligible_from_its_first_version():
    assert card(state="ready", agent=ECHO).eligible_version == 1
    assert card(state="ready").eligible_version is None
    assert card(state="inbox", agent=ECHO).eligible_version is None


def test_a_move_into_an_eligible_state_makes_a_pinned_card_eligible():
    after = model.moved(card(agent=ECHO), "ready")
    assert (after.eligible_version, after.version) == (2, 2)
    assert model.became_eligible(after)


def test_a_pin_makes_a_card_in_an_eligible_state_eligible():
    after = model.assigned(card(state="ready"), agent=ECHO)
    assert after.eligible_version == after.version == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda c: model.edited(c, CardEdit(title="other", priority=3, fields={"a": 1})),
        lambda c: model.labeled(c, add=["x"]),
        lambda c: model.assigned(c, assignee=ANA),
        lambda c: model.moved(c, "urgent"),
    ],
    ids=["edit", "label", "assignee", "move between eligible states"],
)
def test_an_eligible_card_that_is_edited_is_not_dispatched_again(change):
    before = replace(card(state="ready", agent=ECHO), eligible_seq=7, dispatched_version=1)
    after = change(before)
    assert after.version == 2
    assert (after.eligible_version, after.eligible_seq, after.dispatched_version) == (1, 7, 1)
    assert not model.became_eligible(after)


def test_another_pin_makes_it_eligible_anew():
    before = replace(card(state="ready", agent=ECHO), eligible_seq=7, dispatched_version=1)
    after = model.assigned(before, agent=FLAKY)
    assert (after.eligible_version, after.eligible_seq, after.dispatched_version) == (2, None, None)
    assert model.became_eligible(after)


@pytest.mark.parametrize(
    "change",
    [lambda c: model.moved(c, "doing"), lambda c: model.assigned(c, agent=None), model.deleted],
    ids=["moved on", "unpinned", "deleted"],
)
def test_a_card_that_is_no_longer_eligible_forgets_that_it_was(change):
    before = replace(card(state="ready", agent=ECHO), eligible_seq=7, dispatched_version=1)
    after = change(before)
    assert (after.eligible_version, after.eligible_seq, after.dispatched_version) == (None, None, None)


def test_coming_back_to_an_eligible_state_is_a_new_eligibility():
    there = card(state="ready", agent=ECHO)
    back = model.moved(model.moved(there, "doing"), "ready")
    assert back.eligible_version == 3


# changes


def test_a_change_to_what_it_is_already_is_no_change():
    before = card(labels=frozenset({"a"}), agent=ECHO, assignee=ANA, fields={"n": 1})
    assert model.moved(before, "inbox") is before
    assert model.labeled(before, add=["a"], remove=["b"]) is before
    assert model.assigned(before, assignee=ANA, agent=ECHO) is before
    assert model.assigned(before) is before
    assert model.edited(before, CardEdit(title="t", fields={"n": 1, "gone": None})) is before


def test_moves_alone_raise_the_state_version():
    before = card()
    assert model.moved(before, "doing").state_version == 2
    assert model.labeled(before, add=["a"]).state_version == 1
    assert model.edited(before, CardEdit(title="x")).state_version == 1


def test_fields_are_merged_by_name_and_a_null_takes_one_away():
    after = model.edited(
        card(fields={"a": 1, "b": {"c": 2}}), CardEdit(fields={"a": None, "b": {"d": 3}, "e": []})
    )
    assert after.fields == {"b": {"d": 3}, "e": []}


def test_one_is_not_true_in_a_field():
    before = card(fields={"fixed": 1})
    after = model.edited(before, CardEdit(fields={"fixed": True}))
    assert after.version == 2
    assert model.changes(before, after) == {"fields": {"fixed": {"from": 1, "to": True}}}


def test_the_delta_names_what_changed_and_carries_no_body():
    before = card(body="long", agent=ECHO)
    after = model.edited(before, CardEdit(title="new", body="longer", priority=2))
    assert model.changes(before, after) == {
        "title": {"from": "t", "to": "new"},
        "priority": {"from": 0, "to": 2},
        "body": {"from_length": 4, "to_length": 6},
    }
    assert model.changes(before, model.assigned(before, agent=None)) == {
        "agent_id": {"from": str(ECHO.id), "to": None},
        "agent": {"from": "echo", "to": None},
    }


def test_the_snapshot_has_what_the_contract_names():
    assert model.snapshot(card(labels=frozenset({"b", "a"}), agent=ECHO, assignee=ANA)) == {
        "id": str(UUID(int=20)),
        "key": "OPS-12",
        "board_id": str(BOARD.id),
        "board": "OPS",
        "number": 12,
        "title": "t",
        "body": "",
        "state": "inbox",
        "labels": ["a", "b"],
        "agent_id": str(ECHO.id),
        "agent": "echo",
        "assignee_id": str(ANA.id),
        "priority": 0,
        "fields": {},
        "version": 1,
        "state_version": 1,
        "eligible_version": None,
    }


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("OPS-12", CardKey("OPS", 12)),
        (" ops-12 ", CardKey("OPS", 12)),
        (str(UUID(int=5)), UUID(int=5)),
        ("OPS-0", None),
        ("OPS-12345678901", None),
        ("OPS", None),
        ("", None),
        ("OPS-١٢", None),
    ],
)
def test_a_card_is_named_by_id_or_key(text, ref):
    assert model.parse_ref(text) == ref


# reflection


@dataclass(frozen=True)
class Run:
    state: str
    card_state_version: int | None = 1
    newest_of_card: bool = True
    id: UUID = ECHO.id
    card_id: UUID | None = BOARD.id
    agent_handle: str = "echo"
    cause: Cause = NO_CAUSE


def test_a_runs_state_moves_its_card_where_the_board_says():
    assert model.reflection(card(), Run("running")) == Apply("doing")
    assert model.reflection(card(), Run("done")) == Apply("review")


def test_a_run_moves_nothing_without_a_reason_to():
    assert model.reflection(card(), Run("failed")) == Leave("nothing to reflect for failed")
    assert model.reflection(card(), Run("done", newest_of_card=False)) == Leave("a newer run of the card")
    assert model.reflection(card(state="review"), Run("done")) == Leave("already review")


def test_a_later_move_of_somebody_else_wins_over_a_run():
    assert model.reflection(model.moved(card(), "inbox2"), Run("done")) == MovedSince()
    edited = model.labeled(model.edited(card(), CardEdit(title="x")), add=["y"])
    assert model.reflection(edited, Run("done")) == Apply("review")  # edits and labels are no moves
