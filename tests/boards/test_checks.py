"""What boards and cards refuse, and that the answer names the field."""

from __future__ import annotations

import math
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.boards import checks
from mainspring.boards.model import Board, BoardState, CardEdit, NewCard
from mainspring.rooms import Invalid

STATES = (BoardState(name=" Ready ", eligible=True), BoardState(name="Done", terminal=True))
BOARD = Board(
    id=UUID(int=1), key="OPS", name="Ops", states=(BoardState(name="ready"), BoardState(name="done"))
)


def pointers(refused) -> list[str]:
    return [error.pointer for error in refused.value.errors]


def test_a_board_is_stored_folded():
    new = checks.new_board(" ops ", " Operations ", STATES, {"Done": "DONE"})
    assert (new.key, new.name) == ("OPS", "Operations")
    assert [state.name for state in new.states] == ["ready", "done"]
    assert new.reflect == {"done": "done"}


def test_everything_wrong_with_a_board_is_said_at_once():
    with pytest.raises(Invalid) as refused:
        checks.new_board(
            "1X",
            "",
            [BoardState(name="a", eligible=True, terminal=True), BoardState(name="A"), BoardState(name="")],
            {"sleeping": "a", "done": "z"},
        )
    assert pointers(refused) == [
        "/key", "/name", "/states/0", "/states/1/name", "/states/2/name", "/reflect/sleeping", "/reflect/done",
    ]  # fmt: skip


def test_a_board_has_a_state():
    with pytest.raises(Invalid) as refused:
        checks.new_board("A", "a", [], {})
    assert pointers(refused) == ["/states"]


def test_a_card_starts_in_the_first_state_and_its_labels_are_folded():
    new = checks.new_card(BOARD, NewCard(title=" Fix it ", labels=[" Bug", "bug", "P1"]))
    assert (new.title, new.state, new.labels) == ("Fix it", "ready", frozenset({"bug", "p1"}))


@pytest.mark.parametrize(
    ("new", "pointer"),
    [
        (NewCard(title=" "), "/title"),
        (NewCard(title="x" * 201), "/title"),
        (NewCard(title="two\nlines"), "/title"),
        (NewCard(title="a\0b"), "/title"),
        (NewCard(title="a\ud800b"), "/title"),
        (NewCard(title="t", body="x" * (256 * 1024 + 1)), "/body"),
        (NewCard(title="t", body="é" * (128 * 1024 + 1)), "/body"),
        (NewCard(title="t", body="\0"), "/body"),
        (NewCard(title="t", body="\udfff"), "/body"),
        (NewCard(title="t", labels=["x" * 65]), "/labels/0"),
        (NewCard(title="t", labels=["ok", ""]), "/labels/1"),
        (NewCard(title="t", labels=[f"l{n}" for n in range(65)]), "/labels"),
        (NewCard(title="t", priority=1001), "/priority"),
        (NewCard(title="t", state="nowhere"), "/state"),
        (NewCard(title="t", fields={"a": "x" * 65536}), "/fields"),
        (NewCard(title="t", fields={"a": math.nan}), "/fields/a"),
        (NewCard(title="t", fields={"a": 1e300}), "/fields/a"),
        (NewCard(title="t", fields={"a": 2**63}), "/fields/a"),
        (NewCard(title="t", fields={"a": 10**400}), "/fields/a"),
        (NewCard(title="t", fields={"a": [{"b": "\0"}]}), "/fields/a/0/b"),
        (NewCard(title="t", fields={"a": {"x/y": {"\0": 1}}}), "/fields/a/x~1y/\0"),
        (NewCard(title="t", fields={"": 1}), "/fields/"),
    ],
)  # fmt: skip
def test_a_card_that_cannot_be_stored_is_refused_by_field(new, pointer):
    with pytest.raises(Invalid) as refused:
        checks.new_card(BOARD, new)
    assert pointers(refused) == [pointer]


def nested(depth: int):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


def test_fields_nest_only_so_deep():
    checks.new_card(BOARD, NewCard(title="t", fields={"a": nested(15)}))
    with pytest.raises(Invalid):
        checks.new_card(BOARD, NewCard(title="t", fields={"a": nested(16)}))
    with pytest.raises(Invalid):
        checks.new_card(BOARD, NewCard(title="t", fields={"a": nested(900)}))


def test_limits_themselves_are_allowed():
    checks.new_card(
        BOARD,
        NewCard(
            title="x" * 200,
            body="x" * (256 * 1024),
            labels=[f"{n:064}" for n in range(64)],
            priority=-1000,
            fields={"n": 2**63 - 1, "f": 1e18, "s": "\U0001f600", "z": None},
        ),
    )


def test_an_edit_leaves_what_it_does_not_name():
    assert checks.card_edit(CardEdit(body=" as it is ")) == CardEdit(body=" as it is ")
    with pytest.raises(Invalid) as refused:
        checks.card_edit(CardEdit(title="", priority=9999))
    assert pointers(refused) == ["/title", "/priority"]


def test_labels_are_counted_over_the_whole_card():
    has = frozenset(f"l{n}" for n in range(64))
    assert checks.label_change(has, ["new"], ["L0"]) == ({"new"}, {"l0"})
    assert checks.label_change(has, ["l3"], []) == ({"l3"}, set())
    with pytest.raises(Invalid) as refused:
        checks.label_change(has, ["new"], [])
    assert pointers(refused) == ["/add"]
    with pytest.raises(Invalid) as refused:
        checks.label_change(frozenset(), ["a"], [" A"])
    assert pointers(refused) == ["/remove"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_any_json_is_taken_or_refused_and_never_breaks_the_check(fields):
    errors = []
    try:
        taken = checks.new_card(BOARD, NewCard(title="t", fields=fields)).fields
    except Invalid as refused:
        errors = refused.errors
    else:
        assert taken == fields
    assert all(error.pointer.startswith("/fields") for error in errors)
