"""What is told of a commit, how often it is tried, and that whoever commits never notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest

from mainspring import telemetry
from mainspring.fabric import relay as relays
from mainspring.fabric.errors import NotARef, Unreachable
from mainspring.fabric.heads import BYTES_MAX, Heads
from mainspring.fabric.listener import Listener
from mainspring.fabric.memory import Broker, MemoryFabric
from mainspring.fabric.refs import EventRef
from mainspring.fabric.relay import Relay
from mainspring.spine.drain import Drained
from mainspring.spine.events import Written
from tests.fabric.subjects import quick
from tests.fabric.test_conformance import Took, until

TENANT, OTHER = UUID(int=1), UUID(int=2)


class Failing(MemoryFabric):
    """A fabric that takes nothing for a while."""

    def __init__(self, broker: Broker, failures: int) -> None:
        super().__init__(broker)
        self.failures = failures
        self.asked: list[str] = []

    async def publish(self, ref: EventRef, *, epoch: int = 0) -> None:
        self.asked.append(ref.message_id(epoch))
        if self.failures > 0:
            self.failures -= 1
            raise Unreachable("not now")
        await super().publish(ref, epoch=epoch)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    made = Broker(quick())
    yield made
    for durable in made._durables.values():
        for share in list(durable.shares):
            await share.close()


async def taken(broker: Broker) -> Took:
    took = Took()
    await MemoryFabric(broker).subscribe(broker.settings.names.all_events, took)
    return took


def written(*seqs: int, kind: str = "card.moved") -> tuple[Written, ...]:
    return tuple(Written(seq, kind, f"row {seq}") for seq in seqs)


def given_up(reason: str) -> float:
    return (
        telemetry.REGISTRY.get_sample_value("mainspring_fabric_publish_failures_total", {"reason": reason})
        or 0.0
    )


async def test_the_newest_of_a_kind_stands_for_those_before_it_in_whatever_order_they_come(
    broker: Broker,
) -> None:
    took, relay = await taken(broker), Relay(MemoryFabric(broker), instance=uuid4())
    relay.committed(TENANT, written(3, 4))
    relay.committed(TENANT, written(2))
    relay.committed(TENANT, written(1, kind="card.created"))
    relay.committed(OTHER, written(9))
    assert await relay.run_once() is False
    await until(lambda: len(took.seqs) == 3)
    refs = {(one.tenant, one.kind, one.row_id, one.seq) for call in took.calls for one in call}
    assert refs == {
        (TENANT, "card.moved", "row 4", 4), (TENANT, "card.created", "row 1", 1), (OTHER, "card.moved", "row 9", 9),
    }  # fmt: skip


async def test_what_was_not_taken_is_tried_again_under_the_same_id_and_then_given_up(broker: Broker) -> None:
    took, before = await taken(broker), given_up("unreachable")
    fabric = Failing(broker, failures=2)
    relay = Relay(fabric, instance=uuid4())
    relay.committed(TENANT, written(1))
    for _ in range(3):
        assert await relay.run_once() is False
    await until(lambda: took.seqs == [1])
    assert len(fabric.asked) == 3
    assert len(set(fabric.asked)) == 1
    fabric.failures = 99
    relay.committed(TENANT, written(2))
    for _ in range(5):
        await relay.run_once()
    assert len(fabric.asked) == 6
    assert given_up("unreachable") - before == 1
    assert relay.waiting == 0


async def test_a_newer_one_takes_the_place_of_one_that_was_not_taken(broker: Broker) -> None:
    took = await taken(broker)
    fabric = Failing(broker, failures=1)
    relay = Relay(fabric, instance=uuid4())
    relay.committed(TENANT, written(1))
    first = asyncio.create_task(relay.run_once())
    await asyncio.sleep(0)
    relay.committed(TENANT, written(2))
    await first
    await relay.run_once()
    await until(lambda: took.seqs == [2])
    assert relay.waiting == 0


async def test_in_an_outage_nothing_is_kept_and_everything_counted(broker: Broker) -> None:
    took, before = await taken(broker), given_up("down")
    relay = Relay(MemoryFabric(broker), instance=uuid4())
    broker.down()
    relay.committed(TENANT, written(1, 2))
    relay.committed(OTHER, written(1))
    assert await relay.run_once() is False
    assert given_up("down") - before == 2
    broker.up()
    await relay.run_once()
    await asyncio.sleep(0.02)
    assert took.seqs == []


async def test_what_waits_is_bounded_and_what_is_over_counted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "WAITING_MAX", 3)
    before = given_up("overflow")
    relay = Relay(MemoryFabric(broker), instance=uuid4())
    for n in range(5):
        relay.committed(UUID(int=n + 1), written(1))
    relay.committed(UUID(int=1), written(2))
    assert relay.waiting == 3
    assert given_up("overflow") - before == 2


async def test_many_are_told_in_several_rounds(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "ROUND_MAX", 2)
    took, relay = await taken(broker), Relay(MemoryFabric(broker), instance=uuid4())
    for n in range(5):
        relay.committed(UUID(int=n + 1), written(1))
    assert [await relay.run_once() for _ in range(3)] == [True, True, False]
    await until(lambda: len(took.seqs) == 5)


async def test_whoever_commits_is_not_told_that_a_kind_fits_no_subject(broker: Broker) -> None:
    before = given_up("unfit")
    relay = Relay(MemoryFabric(broker), instance=uuid4())
    relay.committed(TENANT, written(1, kind="x" * 101))
    assert given_up("unfit") - before == 1
    assert relay.waiting == 0


# the other end ------------------------------------------------------------------------------------------------------


class Engine:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def heard(self, tenant: UUID, kinds: tuple[str, ...]) -> None:
        self.told.append((tenant, kinds))

    def heard_owed(self) -> None:
        self.told.append("owed")

    def look_everywhere(self) -> None:
        self.told.append("everywhere")

    async def catch_up(self, tenants: object) -> None:
        self.told.append(list(tenants))  # type: ignore[call-overload]


def listener(broker: Broker, engine: Engine, instance: UUID, position: int | None = None) -> Listener:
    async def at(_tenant: UUID) -> int | None:
        return position

    return Listener(MemoryFabric(broker), broker.settings.names, engine, instance=instance, position=at)


async def test_a_broadcast_wakes_every_instance_but_the_one_that_sent_it(broker: Broker) -> None:
    here, there = uuid4(), uuid4()
    mine, theirs = Engine(), Engine()
    for engine, instance in ((mine, here), (theirs, there)):
        await listener(broker, engine, instance).start()
    relay = Relay(MemoryFabric(broker), instance=here)
    relay.committed(TENANT, written(2, 1))
    relay.drained(Drained(events=1, owed=1, reached={TENANT: 2}))
    relay.drained(Drained(events=1, owed=0, reached={OTHER: 1}))
    await relay.run_once()
    await until(lambda: len(theirs.told) >= 2 and bool(mine.told))
    # both are one consumer's: either of them has got the reference
    assert [one for one in theirs.told if one != [TENANT]] == [(TENANT, ("card.moved",)), "owed"]
    assert [one for one in mine.told if one != [TENANT]] == [] or mine.told == [[TENANT]]


async def test_what_this_process_has_drained_itself_is_not_drained_again(broker: Broker) -> None:
    engine = Engine()
    ear = listener(broker, engine, uuid4())
    ear.drained(Drained(events=5, owed=0, reached={TENANT: 5}))
    await ear.took([EventRef(tenant=TENANT, kind="a", row_id="", seq=seq) for seq in (4, 5)])
    assert engine.told == []
    await ear.took([EventRef(tenant=tenant, kind="a", row_id="", seq=6) for tenant in (OTHER, TENANT, OTHER)])
    assert engine.told == [[TENANT, OTHER]]


async def test_what_is_remembered_is_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.fabric.listener.REMEMBERED_MAX", 3)
    ear = listener(broker, Engine(), uuid4())
    for n in range(10):
        ear.drained(Drained(events=1, owed=0, reached={UUID(int=n): 1}))
        assert len(ear._reached) <= 3


@pytest.mark.parametrize(("position", "passed"), [(None, False), (6, False), (7, True), (8, True)])
async def test_a_reference_is_passed_when_the_cursor_is_there(
    broker: Broker, position: int | None, passed: bool
) -> None:
    ear = listener(broker, Engine(), uuid4(), position)
    assert await ear.passed(EventRef(tenant=TENANT, kind="a", row_id="", seq=7)) is passed


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"\xff", b"[]", b'{"by":"x"}', b'{"by":"00000000-0000-0000-0000-000000000001","kinds":["*"]}', b"[" * 9000,
     b'{"by":"00000000-0000-0000-0000-000000000001","more":1}', b" " * (BYTES_MAX + 1)],
)  # fmt: skip
async def test_a_broken_broadcast_wakes_nobody(broker: Broker, data: bytes) -> None:
    with pytest.raises(NotARef):
        Heads.decode(data)
    engine = Engine()
    listener(broker, engine, uuid4()).heard(TENANT, data)
    assert engine.told == []


def test_a_broadcast_of_very_many_kinds_is_short_enough_all_the_same() -> None:
    heads = Heads(by=uuid4(), kinds=tuple(f"{n:03}".replace("0", "o") + "x" * 96 for n in range(1000)))
    data = heads.encode()
    assert len(data) <= BYTES_MAX
    assert len(Heads.decode(data).kinds) > 50
