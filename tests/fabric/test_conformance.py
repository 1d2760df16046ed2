"""What every fabric promises. One suite, over the one in memory and over a real NATS."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from uuid import UUID, uuid4

import pytest

from mainspring.fabric.errors import Unreachable
from mainspring.fabric.port import EventFabric
from mainspring.fabric.refs import EventRef
from mainspring.spine.errors import Misuse, Transient
from tests.fabric.conftest import Make
from tests.fabric.subjects import Subject

TENANT, OTHER = UUID(int=1), UUID(int=2)


def ref(seq: int = 1, *, tenant: UUID = TENANT, kind: str = "card.moved", row_id: str = "row") -> EventRef:
    return EventRef(tenant=tenant, kind=kind, row_id=row_id, seq=seq)


async def until(holds: Callable[[], bool], *, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.005)


class Took:
    """A callback that keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[list[EventRef]] = []
        self.wrong: Callable[[Sequence[EventRef]], Exception | None] = lambda _refs: None
        self.go = asyncio.Event()
        self.go.set()
        self.inside = 0
        self.most_inside = 0
        self.done: list[EventRef] = []

    async def __call__(self, refs: Sequence[EventRef]) -> None:
        self.calls.append(list(refs))
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        try:
            await self.go.wait()
            if (error := self.wrong(refs)) is not None:
                raise error
            self.done += refs
        finally:
            self.inside -= 1

    @property
    def seqs(self) -> list[int]:
        return [one.seq for call in self.calls for one in call]


async def shared(subject: Subject, fabric: EventFabric, took: Took, **more: object) -> Took:
    await fabric.subscribe(subject.settings.names.all_events, took, **more)
    return took


async def some(fabric: EventFabric, *refs: EventRef) -> None:
    await asyncio.gather(*(fabric.publish(one) for one in refs))


async def test_each_reference_goes_to_exactly_one_of_those_who_share_a_subject(subject: Subject) -> None:
    instances = [await subject.instance() for _ in range(3)]
    tooks = [await shared(subject, one, Took()) for one in instances]
    await some(instances[0], *(ref(seq) for seq in range(1, 61)))
    await until(lambda: sum(len(took.seqs) for took in tooks) >= 60)
    assert sorted(seq for took in tooks for seq in took.seqs) == list(range(1, 61))


async def test_a_kind_brings_that_kind_of_every_tenant(subject: Subject) -> None:
    fabric = await subject.instance()
    took = Took()
    await fabric.subscribe_kind("card.moved", took)
    await fabric.publish(ref(1, kind="card.created"))
    await fabric.publish(ref(2))
    await fabric.publish(ref(3, tenant=OTHER))
    await until(lambda: len(took.seqs) == 2)
    assert [(one.tenant, one.seq) for call in took.calls for one in call] == [(TENANT, 2), (OTHER, 3)]


async def test_a_second_copy_is_the_first_one_and_a_new_epoch_is_none(subject: Subject) -> None:
    fabric = await subject.instance()
    took = await shared(subject, fabric, Took())
    await fabric.publish(ref(1))
    await fabric.publish(ref(1))
    await fabric.publish(ref(1), epoch=1)
    await fabric.publish(ref(2))
    await until(lambda: 2 in took.seqs)
    assert Counter(took.seqs) == {1: 2, 2: 1}


async def test_calls_of_one_subscription_never_overlap_and_take_all_that_has_come(subject: Subject) -> None:
    fabric = await subject.instance()
    took = await shared(subject, fabric, Took())
    took.go.clear()
    await fabric.publish(ref(1))
    await until(lambda: took.inside == 1)
    await some(fabric, *(ref(seq) for seq in range(2, 42)))
    await asyncio.sleep(0.1)  # time enough for a second call, if there were one
    assert len(took.calls) == 1
    took.go.set()
    await until(lambda: len(took.seqs) == 41)
    assert took.most_inside == 1
    assert len(took.calls) <= 3


@pytest.mark.slow
async def test_a_slow_healthy_callback_gets_nothing_twice_and_nothing_is_parked(subject: Subject) -> None:
    fabric, other = await subject.instance(), await subject.instance()
    took = await shared(subject, fabric, Took())
    took.go.clear()
    await some(fabric, *(ref(seq) for seq in range(1, 11)))
    await until(lambda: took.inside == 1)
    elsewhere = await shared(subject, other, Took())
    await some(fabric, *(ref(seq) for seq in range(11, 31)))  # some of these wait here, behind the call
    await asyncio.sleep(2.5 * subject.settings.ack_wait_seconds)
    took.go.set()
    await until(lambda: len(took.done) + len(elsewhere.done) >= 30)
    assert sorted(took.seqs + elsewhere.seqs) == list(range(1, 31))
    assert not await fabric.parked()


async def test_what_fails_comes_again_after_growing_delays_and_is_parked_in_the_end(subject: Subject) -> None:
    fabric = await subject.instance()
    took = Took()
    took.wrong = lambda _refs: ValueError("it is broken\nin here")
    asked: list[EventRef] = []

    async def passed(one: EventRef) -> bool:
        asked.append(one)
        return False

    await shared(subject, fabric, took, passed=passed)
    await fabric.publish(ref(7))
    await _parked(fabric)
    assert took.seqs == [7] * subject.settings.deliver_max
    assert asked == [ref(7)]
    [parked] = await fabric.parked()
    assert parked.subject == subject.settings.names.events(TENANT, "card.moved")
    assert parked.reason == "exhausted: ValueError: it is broken in here"
    assert EventRef.decode(parked.data) == ref(7)


async def test_what_the_drain_is_past_is_not_parked(subject: Subject) -> None:
    fabric = await subject.instance()
    took = Took()
    took.wrong = lambda refs: ValueError("broken") if refs[0].seq == 1 else None

    async def passed(_one: EventRef) -> bool:
        return True

    await shared(subject, fabric, took, passed=passed)
    await fabric.publish(ref(1))
    await until(lambda: took.seqs.count(1) == subject.settings.deliver_max)
    await fabric.publish(ref(2))
    await until(lambda: 2 in took.seqs)
    assert not await fabric.parked()


async def test_while_nobody_can_say_what_is_drained_nothing_is_parked_and_none_are_fetched(
    subject: Subject,
) -> None:
    """A database that is restored under another name is no fault of what came meanwhile."""
    fabric = await subject.instance()
    took = Took()
    took.wrong = lambda _refs: ValueError("no such database")
    gone = True

    async def passed(_one: EventRef) -> bool:
        if gone:
            raise LookupError("no such database")
        return True

    await shared(subject, fabric, took, passed=passed)
    await fabric.publish(ref(1))
    await until(lambda: fabric.health.holding)
    assert not await fabric.parked()
    gone, took.wrong = False, lambda _refs: None
    await fabric.publish(ref(2))
    await until(lambda: 2 in took.seqs)
    assert took.seqs.count(1) == subject.settings.deliver_max
    assert not await fabric.parked()


async def test_what_fails_for_one_tenant_sends_nothing_of_another_back(subject: Subject) -> None:
    fabric = await subject.instance()
    took = await shared(subject, fabric, Took())
    took.wrong = lambda refs: ValueError("not that one") if OTHER in {one.tenant for one in refs} else None
    took.go.clear()
    await fabric.publish(ref(1))
    await until(lambda: took.inside == 1)
    await some(fabric, ref(2), ref(3, tenant=OTHER), ref(4))
    await asyncio.sleep(0.1)
    took.go.set()
    await _parked(fabric)
    assert sorted(one.seq for one in took.done) == [1, 2, 4]
    assert [EventRef.decode(one.data).seq for one in await fabric.parked()] == [3]


@pytest.mark.slow
async def test_while_the_store_is_down_here_nothing_is_spent_and_others_go_on(subject: Subject) -> None:
    fabric, other = await subject.instance(), await subject.instance()
    took = Took()
    took.wrong = lambda _refs: Transient("the store is down")
    await shared(subject, fabric, took)
    await some(fabric, *(ref(seq) for seq in range(1, 6)))
    await until(lambda: fabric.health.holding)
    elsewhere = await shared(subject, other, Took())
    await asyncio.sleep(2 * subject.settings.ack_wait_seconds)
    await some(other, *(ref(seq) for seq in range(101, 121)))
    await until(lambda: len(elsewhere.seqs) >= 20)
    assert sorted(elsewhere.seqs) == list(
        range(101, 121)
    )  # it has not got what is kept, and all of what is new
    assert fabric.health.holding
    took.wrong = lambda _refs: None
    await until(lambda: len(took.done) >= 5)
    assert sorted(one.seq for one in took.done) == [1, 2, 3, 4, 5]
    await until(lambda: not fabric.health.holding)
    await asyncio.sleep(2 * subject.settings.ack_wait_seconds)
    assert len(elsewhere.seqs) == 20
    assert not await fabric.parked()


FORGED = [
    ("mismatch", "events", EventRef(tenant=OTHER, kind="card.moved", row_id="x", seq=1).encode()),
    ("mismatch", "events", EventRef(tenant=TENANT, kind="card.created", row_id="x", seq=1).encode()),
    ("malformed", "events", b"\xff\x00 not json"),
    (
        "malformed",
        "events",
        b'{"tenant":"00000000-0000-0000-0000-000000000001","kind":"card.moved","row_id":"x","seq":0}',
    ),
    ("malformed", "events", b"[" * 3000),
    ("malformed", "events", b"x" * 20_000),
]


async def test_what_is_forged_or_broken_is_parked_and_shown_to_no_callback(subject: Subject) -> None:
    fabric = await subject.instance()
    took = await shared(subject, fabric, Took())
    on = subject.settings.names.events(TENANT, "card.moved")
    for _, _, data in FORGED:
        await subject.put(on, data)
    await fabric.publish(ref(9))
    await _parked(fabric, count=len(FORGED))
    await until(lambda: bool(took.seqs))
    assert took.seqs == [9]
    parked = await fabric.parked()
    assert [one.reason.partition(":")[0] for one in parked] == [why for why, _, _ in FORGED]
    assert [one.data for one in parked] == [data for _, _, data in FORGED]
    assert {one.subject for one in parked} == {on}


@pytest.mark.slow
async def test_what_a_frozen_instance_had_goes_to_another(subject: Subject) -> None:
    frozen, other = await subject.instance(), await subject.instance()
    took = await shared(subject, frozen, Took())
    took.go.clear()
    await some(frozen, *(ref(seq) for seq in range(1, 6)))
    await until(lambda: took.inside == 1)
    await subject.freeze(frozen)
    elsewhere = await shared(subject, other, Took())
    await until(lambda: len(set(elsewhere.seqs)) == 5)
    assert not await other.parked()


@pytest.mark.slow
async def test_what_nobody_ever_answers_is_parked_unless_the_drain_is_past_it(make: Make) -> None:
    subject = make(
        deliver_max=2
    )  # a shorter ack wait runs out on a busy machine while what came is still being frozen
    watcher = await subject.instance()

    async def passed(one: EventRef) -> bool:
        return one.seq == 2

    for _ in range(2):
        doomed = await subject.instance()
        took = await shared(subject, doomed, Took(), passed=passed)
        took.go.clear()
        if _ == 0:
            await some(doomed, ref(1), ref(2))
        await until(lambda took=took: len(took.seqs) == 2)
        await subject.freeze(doomed)
    await shared(subject, watcher, Took(), passed=passed)
    await _parked(watcher)
    await asyncio.sleep(0.2)
    assert [EventRef.decode(one.data).seq for one in await watcher.parked()] == [1]


@pytest.mark.slow
async def test_an_outage_is_said_and_ends_with_the_hooks(subject: Subject) -> None:
    fabric = await subject.instance()
    took = await shared(subject, fabric, Took())
    await fabric.publish(ref(1))
    await until(lambda: took.seqs == [1])
    called: list[str] = []

    def broken() -> None:
        raise RuntimeError("a hook that fails")

    await asyncio.sleep(0.1)  # those of the beginning have run
    for hook in (broken, lambda: called.append("one"), lambda: called.append("two")):
        fabric.on_reconnect(hook)

    async def meanwhile() -> None:
        await until(lambda: fabric.health.state == "broken")
        with pytest.raises(Unreachable):
            await fabric.publish(ref(2))
        with pytest.raises(Unreachable):
            await fabric.broadcast(TENANT, "heads", b"{}")

    await subject.outage(meanwhile)
    await until(lambda: {"one", "two"} <= set(called))
    assert fabric.health.state == "connected"
    assert fabric.health.outages == 1
    await fabric.publish(ref(3))
    await until(lambda: 3 in took.seqs)


async def test_closing_finishes_the_call_and_hands_the_rest_back_at_once(make: Make) -> None:
    subject = make(ack_wait_seconds=60.0)
    fabric, other = await subject.instance(), await subject.instance()
    took = await shared(subject, fabric, Took())
    took.go.clear()
    await fabric.publish(ref(1))
    await until(lambda: took.inside == 1)
    await some(fabric, ref(2), ref(3))
    await asyncio.sleep(0.1)
    closing = asyncio.create_task(fabric.close())
    elsewhere = await shared(subject, other, Took())
    await asyncio.sleep(0.05)
    took.go.set()
    await closing
    assert [one.seq for one in took.done] == [1]
    await until(lambda: sorted(elsewhere.seqs) == [2, 3])
    assert fabric.health.state == "closed"
    with pytest.raises(Unreachable):
        await fabric.publish(ref(4))
    with pytest.raises(Unreachable):
        await fabric.subscribe(subject.settings.names.all_events, took)
    await fabric.close()


async def test_closing_outlasts_no_callback_that_hangs(make: Make) -> None:
    subject = make(close_seconds=0.1)
    fabric, other = await subject.instance(), await subject.instance()
    took = await shared(subject, fabric, Took())
    took.go.clear()
    await fabric.publish(ref(1))
    await until(lambda: took.inside == 1)
    async with asyncio.timeout(5):
        await fabric.close()
    elsewhere = await shared(subject, other, Took())
    await until(lambda: elsewhere.seqs == [1])


async def test_a_callback_that_cancels_itself_ends_no_subscription(subject: Subject) -> None:
    fabric = await subject.instance()
    seen: list[int] = []

    async def cancels(refs: Sequence[EventRef]) -> None:
        seen.extend(one.seq for one in refs)
        if seen == [1]:
            raise asyncio.CancelledError

    await fabric.subscribe(subject.settings.names.all_events, cancels)
    await fabric.publish(ref(1))
    await until(lambda: seen.count(1) == 2)


async def test_a_broadcast_is_heard_by_everybody_and_nobody_elses(subject: Subject) -> None:
    here, there = await subject.instance(), await subject.instance()
    heard: list[tuple[str, UUID, bytes]] = []
    await here.listen("heads", lambda tenant, data: heard.append(("here", tenant, data)))
    await there.listen("heads", lambda tenant, data: heard.append(("there", tenant, data)))
    await there.listen("live", lambda tenant, data: heard.append(("live", tenant, data)))
    await asyncio.sleep(0.05)
    await here.broadcast(TENANT, "heads", b"1")
    await here.broadcast(OTHER, "heads", b"2")
    await here.broadcast(TENANT, "live", b"3")  # behind them: whatever strays to its topic has come by then
    await until(lambda: ("live", TENANT, b"3") in heard and len(heard) >= 5)
    assert sorted(heard) == [
        ("here", TENANT, b"1"), ("here", OTHER, b"2"), ("live", TENANT, b"3"), ("there", TENANT, b"1"), ("there", OTHER, b"2"),
    ]  # fmt: skip


HOSTILE = [
    "",
    ".",
    "*",
    ">",
    "card.*",
    "card.>",
    "a b",
    "card.moved.now",
    "card\nmoved",
    "card.\x00",
    "Card",
    "é",
    "x" * 500,
]


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_kind_is_refused(make: Make, kind: str) -> None:
    fabric = await make().instance()
    with pytest.raises(Misuse):
        await fabric.subscribe_kind(kind, Took())


async def test_no_filter_reaches_beyond_references(subject: Subject) -> None:
    fabric = await subject.instance()
    root = subject.settings.names.root
    for bad in (">", "*", f"{root}.>", f"{root}.*.heads", f"{root}.*.*.>", f"*.{TENANT}.events.>", f"{root}.x.events.>",
                f"{root}.{TENANT}.events", f"{root}.{TENANT}.events.*", f"{root}.{TENANT}.events.a.b.c", "other.*.events.>"):  # fmt: skip
        with pytest.raises(Misuse):
            await fabric.subscribe(bad, Took())
    for bad in ("events", "dlq", "", "a.b", "*", ">", "a b"):
        with pytest.raises(Misuse):
            await fabric.broadcast(TENANT, bad, b"")
        with pytest.raises(Misuse):
            await fabric.listen(bad, lambda _tenant, _data: None)
    with pytest.raises(Misuse):
        await fabric.broadcast(f"{TENANT}.events", "heads", b"")  # type: ignore[arg-type]


async def test_what_is_parked_is_taken_away_once_and_may_be_sent_again(subject: Subject) -> None:
    fabric = await subject.instance()
    took = await shared(subject, fabric, Took())
    took.wrong = lambda _refs: ValueError("broken")
    await fabric.publish(ref(1))
    await _parked(fabric)
    took.wrong = lambda _refs: None
    [parked] = await fabric.parked()
    assert await fabric.parked(after=parked.seq) == []
    assert await fabric.unpark(parked.seq) == parked
    assert await fabric.unpark(parked.seq) is None
    assert await fabric.parked() == []
    await fabric.publish(EventRef.decode(parked.data), epoch=1)
    await until(lambda: len(took.done) == 1)


async def test_nothing_runs_on_when_a_fabric_is_closed(subject: Subject) -> None:
    before = asyncio.all_tasks()
    fabric = await subject.instance()
    await shared(subject, fabric, Took())
    await fabric.publish(ref(1, row_id=str(uuid4())))
    await fabric.close()
    await asyncio.sleep(0.01)
    assert {task.get_name() for task in asyncio.all_tasks() - before} == set()


async def _parked(fabric: EventFabric, *, count: int = 1) -> None:
    end = time.monotonic() + 10
    while len(await fabric.parked()) < count:
        assert time.monotonic() < end, "nothing was parked"
        await asyncio.sleep(0.01)
