"""The pure parts of the drain: what follows a cursor without a hole, how much one round owes, where cursors go."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from mainspring.spine.drain import contiguous, moves
from mainspring.spine.effects import NewEffect
from mainspring.spine.engine import Spine
from mainspring.spine.errors import Misuse
from mainspring.spine.events import Event, Trust
from mainspring.spine.judging import OWED_MAX, looks_at, owed_by, within_limit
from mainspring.spine.ports import Cursor, NotOwed, Owes
from mainspring.stores.memory import MemoryStore

ONE, TWO = UUID(int=1), UUID(int=2)


def event(tenant: UUID, seq: int, kind: str = "order.paid") -> Event:
    return Event(
        tenant_id=tenant, seq=seq, id=UUID(int=seq), kind=kind, subject="", actor_id=None, data={}, cause_seq=None,
        via=(), depth=0, trust=Trust.MEMBER, traceparent=None, occurred_at=datetime(2030, 1, 1, tzinfo=UTC),
    )  # fmt: skip


def cursor(tenant: UUID, position: int, head: int = 100) -> Cursor:
    return Cursor(tenant_id=tenant, position=position, head=head)


def owes(number: int) -> list[tuple[UUID, NewEffect]]:
    return [(ONE, NewEffect("mail", key=f"{n}")) for n in range(number)]


def test_what_an_event_owes_is_known_by_its_event_whether_or_not_the_judge_says_so():
    obligation = type("Named", (), {"name": "receipts"})()
    said, unsaid = NewEffect("mail", key="1", event_seq=3), NewEffect("mail", key="2")
    owed = owed_by(obligation, event(ONE, 7), Owes(said, unsaid))
    assert [(one.key, one.event_seq) for one in owed] == [("1", 3), ("2", 7)]


def test_what_nobody_would_carry_out_is_not_owed():
    obligation = type("Named", (), {"name": "receipts"})()
    with pytest.raises(Misuse, match="offered"):
        owed_by(obligation, event(ONE, 7), Owes(NewEffect("mail", key="1", family="offered")))


def test_events_that_follow_their_cursor_are_kept():
    read = [event(ONE, 4), event(ONE, 5), event(TWO, 1)]
    assert contiguous([cursor(ONE, 3), cursor(TWO, 0)], read) == read


def test_a_hole_stops_its_own_tenant_only():
    read = [event(ONE, 1), event(ONE, 3), event(ONE, 4), event(TWO, 1), event(TWO, 2)]
    kept = contiguous([cursor(ONE, 0), cursor(TWO, 0)], read)
    assert [(e.tenant_id, e.seq) for e in kept] == [(ONE, 1), (TWO, 1), (TWO, 2)]


def test_a_hole_right_behind_the_cursor_stops_the_tenant_where_it_stands():
    kept = contiguous([cursor(ONE, 0), cursor(TWO, 0)], [event(ONE, 2), event(TWO, 1)])
    assert moves([cursor(ONE, 0), cursor(TWO, 0)], kept) == [(cursor(TWO, 0), 1)]


def test_an_event_is_never_taken_twice():
    assert contiguous([cursor(ONE, 3)], [event(ONE, 3)]) == []


def test_a_round_stops_at_its_limit_between_two_events():
    events = list(enumerate(event(ONE, n) for n in range(1, 5)))
    judged = {0: owes(OWED_MAX // 2), 1: owes(OWED_MAX // 2), 2: owes(1)}
    assert within_limit(events, [judged]) == events[:2]
    assert within_limit(events, [{0: owes(OWED_MAX // 2)}, judged]) == events[:1]
    assert within_limit(events, [{3: owes(OWED_MAX)}]) == events


def test_one_event_alone_may_owe_more_than_a_round():
    events = [(0, event(ONE, 1)), (1, event(ONE, 2))]
    assert within_limit(events, [{0: owes(OWED_MAX + 1), 1: owes(1)}]) == events[:1]


def test_a_cursor_goes_to_the_last_event_that_was_taken():
    cursors = [cursor(ONE, 3), cursor(TWO, 0)]
    assert moves(cursors, [event(ONE, 4), event(ONE, 5)]) == [(cursors[0], 5)]
    assert moves(cursors, []) == []


def test_an_obligation_looks_at_its_kinds_or_at_all():
    spine = Spine(MemoryStore())
    spine.owes("order.paid")(judge)
    spine.owes(name="all")(judge)
    some, every = spine._obligations
    assert looks_at(some, event(ONE, 1, "order.paid"))
    assert not looks_at(some, event(ONE, 1, "order.sent"))
    assert looks_at(every, event(ONE, 1, "order.sent"))


def judge(_: Event) -> NotOwed:
    return NotOwed("never")
