"""References and subjects by themselves: what is refused on the way out and on the way in."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.fabric.errors import NotARef
from mainspring.fabric.memory import matches
from mainspring.fabric.refs import BYTES_MAX, EPOCH_MAX, SEQ_MAX, EventRef, received
from mainspring.fabric.subjects import Names, token
from mainspring.spine.errors import Misuse

TENANT = UUID(int=7)
NAMES = Names()
KINDS = st.from_regex(r"[a-z][a-z0-9_-]{0,20}(\.[a-z0-9_-]{1,20})?", fullmatch=True)
ROWS = st.text(max_size=200).filter(lambda text: not any(0xD800 <= ord(mark) < 0xE000 for mark in text))
REFS = st.builds(EventRef, tenant=st.uuids(), kind=KINDS, row_id=ROWS, seq=st.integers(1, SEQ_MAX))


@given(REFS)
def test_what_travels_arrives_and_is_small(ref: EventRef) -> None:
    data = ref.encode()
    assert len(data) <= BYTES_MAX
    assert received(NAMES, NAMES.events(ref.tenant, ref.kind), data) == ref


@given(REFS, REFS, st.integers(0, 3), st.integers(0, 3))
def test_no_two_references_share_a_message_id(a: EventRef, b: EventRef, epoch: int, other: int) -> None:
    assert (a.message_id(epoch) == b.message_id(other)) == ((a, epoch) == (b, other))


def test_parts_that_run_together_do_not_share_a_message_id() -> None:
    one = EventRef(tenant=TENANT, kind="a.b", row_id="c1", seq=2)
    two = EventRef(tenant=TENANT, kind="a.b", row_id="c", seq=12)
    assert one.message_id() != two.message_id()


@given(st.binary(max_size=400))
def test_whatever_comes_is_a_reference_or_refused(data: bytes) -> None:
    with suppress(NotARef):
        EventRef.decode(data)


GOOD = {"tenant": str(TENANT), "kind": "card.moved", "row_id": "x", "seq": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "none"}, {"tenant": None}, {"tenant": 7}, {"kind": "card.*"}, {"kind": ">"}, {"kind": "a.b.c"}, {"kind": ""},
        {"kind": "x" * 101}, {"row_id": "y" * 201}, {"row_id": None}, {"seq": 0}, {"seq": -1}, {"seq": 2**63}, {"seq": 1.5},
        {"seq": "1"}, {"seq": True}, {"more": 1},
    ],
)  # fmt: skip
def test_what_is_out_of_bounds_is_refused(change: dict[str, object]) -> None:
    import json

    EventRef.decode(json.dumps(GOOD).encode())
    with pytest.raises(NotARef):
        EventRef.decode(json.dumps(GOOD | change).encode())


@pytest.mark.parametrize("missing", sorted(GOOD))
def test_what_is_incomplete_is_refused(missing: str) -> None:
    import json

    with pytest.raises(NotARef):
        EventRef.decode(json.dumps({k: v for k, v in GOOD.items() if k != missing}).encode())


def test_a_reference_is_believed_on_its_own_subject_only() -> None:
    ref = EventRef(tenant=TENANT, kind="card.moved", row_id="x", seq=1)
    own = NAMES.events(TENANT, "card.moved")
    for subject in (
        NAMES.events(uuid4(), "card.moved"), NAMES.events(TENANT, "card.created"), own + ".x", own.upper(), "",
        Names("other").events(TENANT, "card.moved"),
    ):  # fmt: skip
        with pytest.raises(NotARef, match="mismatch"):
            received(NAMES, subject, ref.encode())


@pytest.mark.parametrize(
    "row", [{"seq": 0}, {"seq": 2**63}, {"kind": "a b"}, {"row_id": "x" * 201}, {"tenant": "t"}]
)
def test_a_reference_that_cannot_be_is_misuse(row: dict[str, object]) -> None:
    with pytest.raises(Misuse):
        EventRef(**{"tenant": TENANT, "kind": "card.moved", "row_id": "x", "seq": 1} | row)  # type: ignore[arg-type]


@pytest.mark.parametrize("epoch", [-1, EPOCH_MAX + 1])
def test_an_epoch_has_bounds(epoch: int) -> None:
    with pytest.raises(Misuse):
        EventRef(tenant=TENANT, kind="card.moved", row_id="x", seq=1).message_id(epoch)


@given(st.text(max_size=30))
def test_a_token_is_one_token(text: str) -> None:
    try:
        assert token(text) == text
    except Misuse:
        return
    assert text
    assert not set(text) & set(".*> \t\r\n\x00")


@pytest.mark.parametrize("root", ["", "A", "a.b", "*", ">", "a b", "1a", "x" * 33, "é", "a\n"])
def test_a_root_is_one_plain_word(root: str) -> None:
    with pytest.raises(Misuse):
        Names(root)


@given(REFS)
def test_the_streams_filter_takes_every_reference_and_nothing_that_is_parked_or_broadcast(
    ref: EventRef,
) -> None:
    assert matches(NAMES.all_events, NAMES.events(ref.tenant, ref.kind))
    assert matches(NAMES.events_of_kind(ref.kind), NAMES.events(ref.tenant, ref.kind))
    assert not matches(NAMES.all_events, NAMES.dlq_subject)
    assert not matches(NAMES.all_events, NAMES.broadcast(ref.tenant, "heads"))


def test_a_broadcast_is_told_by_its_tenant_or_not_at_all() -> None:
    assert NAMES.tenant_of(NAMES.broadcast(TENANT, "heads"), "heads") == TENANT
    for subject in (
        "mainspring.x.heads",
        f"mainspring.{TENANT}.live",
        f"other.{TENANT}.heads",
        f"mainspring.{TENANT}.heads.x",
        "",
    ):
        assert NAMES.tenant_of(subject, "heads") is None
