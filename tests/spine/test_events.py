"""The values of the log: kinds, trust, causes."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from itertools import permutations
from uuid import UUID

import pytest

from mainspring.spine.errors import Misuse
from mainspring.spine.events import NO_CAUSE, SUBJECT_LENGTH_MAX, Cause, Event, NewEvent, Trust, least_trusted

RULE, OTHER_RULE = UUID(int=1), UUID(int=2)


def an_event(**more: object) -> Event:
    values = {
        "tenant_id": UUID(int=9), "seq": 7, "id": UUID(int=70), "kind": "card.moved", "subject": "OPS-1", "actor_id": None,
        "data": {}, "cause_seq": None, "via": (), "depth": 0, "trust": Trust.MEMBER, "traceparent": None,
        "occurred_at": datetime(2030, 1, 1, tzinfo=UTC),
    }  # fmt: skip
    return Event(**(values | more))


@pytest.mark.parametrize(
    "kind", ["paid", "order.paid", "run.needs_input", "forge.pull-request", "a1.b2", "custom.9"]
)
def test_a_kind_is_one_or_two_lower_case_words(kind: str):
    assert NewEvent(kind).kind == kind


@pytest.mark.parametrize(
    "kind",
    ["", ".", "Order.paid", "order.", ".paid", "order.paid.twice", "order paid", "order.*", "order.>", "9lives", "-x", "order\n", "a.b\n", "é"],
)  # fmt: skip
def test_any_other_kind_is_misuse(kind: str):
    with pytest.raises(Misuse, match="kind"):
        NewEvent(kind)


def test_a_subject_has_a_longest_length():
    assert len(NewEvent("order.paid", subject="x" * SUBJECT_LENGTH_MAX).subject) == SUBJECT_LENGTH_MAX
    with pytest.raises(Misuse, match="subject"):
        NewEvent("order.paid", subject="x" * (SUBJECT_LENGTH_MAX + 1))


def test_an_event_by_itself_is_a_members_first_act():
    event = NewEvent("order.paid")
    assert (event.subject, event.data, event.actor_id, event.traceparent) == ("", {}, None, None)
    assert event.cause == NO_CAUSE == Cause(seq=None, via=(), depth=0, trust=Trust.MEMBER)


def test_giving_a_cause_leaves_the_original_alone():
    event, cause = NewEvent("order.paid", subject="42"), Cause(seq=3, depth=1, trust=Trust.FORGE)
    caused = event.caused_by(cause)
    assert caused.cause == cause
    assert caused.subject == "42"
    assert event.cause == NO_CAUSE


def test_values_do_not_change():
    with pytest.raises(FrozenInstanceError):
        NewEvent("order.paid").kind = "other"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        an_event().seq = 8  # type: ignore[misc]


def test_trust_is_ordered_from_stranger_to_member():
    assert sorted(Trust, key=lambda level: level.rank) == [
        Trust.STRANGER,
        Trust.FORGE,
        Trust.AGENT,
        Trust.MEMBER,
    ]


def test_the_least_trusted_of_several_wins_in_any_order():
    for levels in permutations([Trust.MEMBER, Trust.AGENT, Trust.FORGE]):
        assert least_trusted(*levels) is Trust.FORGE
    assert least_trusted(Trust.AGENT) is Trust.AGENT


def test_what_an_event_causes_is_one_deeper_and_no_more_trusted():
    cause = an_event(seq=7, depth=2, trust=Trust.AGENT).as_cause()
    assert cause == Cause(seq=7, via=(), depth=3, trust=Trust.AGENT)


def test_a_cause_remembers_each_rule_it_passed_through_once():
    cause = an_event(via=(RULE,)).as_cause(via=(OTHER_RULE, RULE))
    assert cause.via == (RULE, OTHER_RULE)
