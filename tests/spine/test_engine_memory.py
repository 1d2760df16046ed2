"""The whole way on every store: a change commits, what it owes is found, claimed, executed and settled."""

from __future__ import annotations

import asyncio
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from mainspring.ids import new_id
from mainspring.spine import desk, drain
from mainspring.spine.drain import ENGINE_VERSION, Drain
from mainspring.spine.effects import (
    CRASHES_ALONE,
    CRASHES_MAX,
    AlreadyOwed,
    Deferred,
    Done,
    Dropped,
    Effect,
    EffectRow,
    EffectState,
    Failed,
    Held,
    NewEffect,
    Outcome,
    Owed,
    Retry,
    Unknown,
)
from mainspring.spine.engine import Ran, Spine, SpineSettings
from mainspring.spine.errors import Definitive, Misuse, Transient
from mainspring.spine.events import Cause, Event, NewEvent, Trust
from mainspring.spine.ports import NotOwed, Owes, Verdict
from mainspring.spine.transaction import Transaction
from tests.conformance.hands import LEASE, Hands

STUCK = 20.0  # a test that waits longer has found something that hangs


@dataclass
class Shop:
    """A program on the engine: paid orders owe a mail; how mails are done can be changed."""

    spine: Spine[Any]
    hands: Hands
    mailed: list[Effect] = field(default_factory=list)
    answer: Any = field(default_factory=lambda: lambda effect: Done())

    async def mail(self, effect: Effect) -> Outcome:
        self.mailed.append(effect)
        answer = self.answer(effect)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def pay(self, tenant: UUID, *orders: str) -> None:
        async with self.spine.open(tenant) as tx:
            for order in orders:
                tx.append(NewEvent("order.paid", subject=order, data={"order": order}))

    async def run(self) -> Ran:
        async with asyncio.timeout(STUCK):
            return await self.spine.run_once()

    async def row(self, tenant: UUID, key: str = "42", kind: str = "mail") -> EffectRow:
        [row] = [row for row in await self.hands.rows(tenant, kind=kind) if row.key == key]
        return row

    async def log(self, tenant: UUID) -> list[str]:
        return [event.kind for event in await self.hands.read(tenant)]


def receipt(event: Event) -> Verdict:
    if event.data.get("gift"):
        return NotOwed("gift")
    return Owes(NewEffect("mail", key=event.subject, payload={"order": event.subject}))


@pytest.fixture
def shop(hands: Hands) -> Shop:
    return new_shop(hands)


def new_shop(hands: Hands, **settings: Any) -> Shop:
    made = Shop(Spine(hands.store, SpineSettings(grace_seconds=0, **settings), name="w1"), hands)
    made.spine.owes("order.paid")(receipt)
    made.spine.effect("mail", max_attempts=3, lease_seconds=LEASE)(made.mail)
    return made


# from a commit to a settled effect ----------------------------------------------------------------------------


async def test_what_commits_is_owed_and_what_is_owed_is_done_once(shop: Shop):
    tenant = await shop.hands.tenant()
    await shop.pay(tenant, "42")
    assert await shop.run() == Ran(drained=1, executed=1)
    [effect] = shop.mailed
    assert (effect.tenant_id, effect.key, effect.payload, effect.event_seq) == (
        tenant,
        "42",
        {"order": "42"},
        1,
    )
    row = await shop.row(tenant)
    assert (row.state, row.attempts) == (EffectState.DONE, 0)
    assert await shop.run() == Ran(drained=0, executed=0)
    assert len(shop.mailed) == 1


async def test_a_change_that_is_rolled_back_owes_nothing_and_tells_nobody(shop: Shop):
    tenant = await shop.hands.tenant()
    told: list[Any] = []
    shop.spine.on_commit(lambda *what: told.append(what))
    with pytest.raises(ZeroDivisionError):
        async with shop.spine.open(tenant) as tx:
            tx.append(NewEvent("order.paid", subject="42"))
            await tx.owe(NewEffect("mail", key="direct"))
            raise ZeroDivisionError
    assert await shop.run() == Ran(drained=0, executed=0)
    assert told == []
    await shop.pay(tenant, "43")
    assert told == [(tenant, ("order.paid",))]


async def test_an_effect_can_be_owed_without_an_event(shop: Shop):
    tenant = await shop.hands.tenant()
    async with shop.spine.open(tenant) as tx:
        assert isinstance(await tx.owe(NewEffect("mail", key="42")), Owed)
        assert isinstance(await tx.owe(NewEffect("mail", key="42")), AlreadyOwed)
        with pytest.raises(Misuse, match="offered"):
            await tx.owe(NewEffect("mail", key="43", family="offered"))
    assert await shop.run() == Ran(drained=0, executed=1)


async def test_events_come_in_the_order_in_which_they_were_appended(shop: Shop):
    tenant = await shop.hands.tenant()
    seqs: list[int] = []

    async def stamp(seq: int) -> None:
        seqs.append(seq)

    async with shop.spine.open(tenant) as tx:
        tx.append(NewEvent("order.paid", subject="1"), stamp=stamp)
        tx.append(NewEvent("order.sent", subject="1"))
        tx.append(NewEvent("order.paid", subject="2"), stamp=stamp)
        assert seqs == []
        assert tx.appended_kinds == ("order.paid", "order.sent", "order.paid")
    assert tx.appended == (1, 2, 3)
    assert seqs == [1, 3]


async def test_a_transaction_that_is_over_takes_nothing_more(shop: Shop):
    tenant = await shop.hands.tenant()
    async with shop.spine.open(tenant) as tx:
        pass
    with pytest.raises(Misuse):
        tx.append(NewEvent("order.paid"))
    with pytest.raises(Misuse):
        await tx.owe(NewEffect("mail", key="42"))
    with pytest.raises(Misuse):
        await tx.write_events()


async def test_an_event_that_owes_nothing_leaves_only_a_moved_cursor(shop: Shop):
    tenant = await shop.hands.tenant()
    async with shop.spine.open(tenant) as tx:
        tx.append(NewEvent("order.paid", data={"gift": True}))
        tx.append(NewEvent("order.sent"))
    assert await shop.run() == Ran(drained=2, executed=0)
    assert await shop.hands.rows(tenant) == []
    assert await shop.hands.lagging() == []


async def test_many_tenants_and_many_events_are_all_drained_each_once(shop: Shop):
    tenants = [await shop.hands.tenant() for _ in range(4)]
    for tenant in tenants:
        await shop.pay(tenant, *(f"{n}" for n in range(250)))
    assert await shop.run() == Ran(drained=1000, executed=1000)
    assert len({(effect.tenant_id, effect.key) for effect in shop.mailed}) == 1000


async def test_two_engines_on_one_store_do_everything_once(hands: Hands):
    shops = [new_shop(hands), new_shop(hands)]
    tenants = [await hands.tenant() for _ in range(5)]
    for tenant in tenants:
        await shops[0].pay(tenant, *"abcdefgh")
    ran = await asyncio.gather(*(shop.run() for shop in shops))
    ran.append(await shops[0].run())  # what one skipped because the other held it
    assert sum(one.drained for one in ran) == sum(one.executed for one in ran) == 40
    assert len({(e.tenant_id, e.key) for shop in shops for e in shop.mailed}) == 40


async def test_an_engine_older_than_the_rows_executes_but_does_not_drain(shop: Shop):
    tenant = await shop.hands.tenant()
    await shop.pay(tenant, "42")
    async with shop.spine.open(tenant) as tx:
        await tx.owe(NewEffect("mail", key="direct"))
    await shop.hands.subject.set_engine_version(ENGINE_VERSION + 1)
    assert await shop.run() == Ran(drained=0, executed=1)
    newer: Drain[Any] = Drain(shop.hands.store, [], engine_version=ENGINE_VERSION + 1)
    assert (await newer.run_once()).events == 1


async def test_a_round_that_slept_through_a_migration_leaves_no_trace(shop: Shop):
    """A process may be frozen behind its first statement: what it has read by then may be of a kind that it does not know."""

    class Frozen:
        name, kinds = "frozen", None

        async def load(self, _tx: Any, _events: Any) -> None:
            await shop.hands.subject.set_engine_version(ENGINE_VERSION + 1)

        def judge(self, _event: Event, _context: Any) -> Verdict:
            return NotOwed("nothing")

    shop.spine.register_obligation(Frozen())
    tenant = await shop.hands.tenant()
    await shop.pay(tenant, "42")
    with pytest.raises(Transient, match="engine version"):
        await shop.spine.drain.run_once()
    assert await shop.hands.rows(tenant) == []
    assert len(await shop.hands.lagging(version=ENGINE_VERSION + 1)) == 1
    assert (await shop.spine.drain.run_once()).events == 0


async def test_on_a_users_own_connection_his_change_and_ours_commit_together(shop: Shop):
    if not (shop.hands.subject.adopts and shop.hands.subject.concurrent):
        pytest.skip("a library user's own PostgreSQL")
    tenant = await shop.hands.tenant()
    async with shop.hands.subject.connection() as conn:
        await conn.execute("create temporary table orders (id text)")
        for order, breaks in (("42", False), ("43", True)):
            try:
                async with conn.transaction():
                    await conn.execute("insert into orders values ($1)", order)
                    async with shop.spine.transaction(conn, tenant) as tx:
                        tx.append(NewEvent("order.paid", subject=order))
                        await tx.owe(NewEffect("mail", key=f"direct {order}"))
                    assert not breaks
            except AssertionError:
                pass
        assert [row["id"] for row in await conn.fetch("select id from orders")] == ["42"]
    assert await shop.log(tenant) == ["order.paid"]
    await shop.run()
    assert sorted(effect.key for effect in shop.mailed) == ["42", "direct 42"]


# what executors answer ----------------------------------------------------------------------------------------


async def test_a_failing_effect_is_tried_again_under_the_same_idempotency_key(shop: Shop):
    tenant = await shop.hands.tenant()
    await shop.pay(tenant, "42")
    shop.answer = lambda effect: Done() if effect.attempts == 2 else Retry("busy", after_seconds=10)
    for _ in range(3):
        assert (await shop.run()).executed == 1
        assert (await shop.run()).executed == 0
        await shop.hands.age(11)
    assert [effect.attempts for effect in shop.mailed] == [0, 1, 2]
    assert len({effect.idempotency_key for effect in shop.mailed}) == 1
    assert len({effect.claim_id for effect in shop.mailed}) == 3
    assert (await shop.row(tenant)).state == EffectState.DONE
    attempts = await shop.hands.attempts(shop.mailed[-1])
    assert [attempt.outcome for attempt in attempts] == ["retry", "retry", "done"]


@pytest.mark.parametrize(
    ("before", "keys"),
    [
        (None, 2),
        (Unknown("no answer within 30 s"), 1),
        (Retry("answered 503", after_seconds=0), 1),
        (Deferred("answered 429", after_seconds=0, tried=True), 1),
        (Deferred("it did not say whether it was sent", after_seconds=0), 1),
    ],
    ids=["refused at once", "time-out", "5xx", "429", "deferred"],
)
async def test_a_refusal_after_a_time_out_keeps_its_key_when_it_is_replayed(
    shop: Shop, before: Outcome | None, keys: int
):
    """What was asked first may have happened, whatever was answered when it was asked again."""
    tenant = await shop.hands.tenant()
    await shop.pay(tenant, "42")
    outcomes = [*([before] if before else []), Failed("answered 409: seen already")]
    shop.answer = lambda effect: outcomes.pop(0) if outcomes else Done()
    for _ in range(len(outcomes)):
        await shop.run()
        await shop.hands.age(100)
    row = await shop.row(tenant)
    assert (row.state, row.outcome) == (EffectState.DEAD, "failed")
    async with shop.spine.open(tenant) as tx:
        by = desk.By(actor_id=None, actor={})
        await desk.replay(shop.hands.store, tx, [row.id], new_key=None, by=by)
    await shop.run()
    assert (await shop.row(tenant)).state == EffectState.DONE
    assert len({effect.idempotency_key for effect in shop.mailed}) == keys


async def test_an_effect_that_fails_too_often_is_dead_and_its_tenants_log_says_so(shop: Shop):
    tenant = await shop.hands.tenant()
    async with shop.spine.open(tenant) as tx:
        cause = Cause(seq=None, depth=2, trust=Trust.AGENT)
        tx.append(NewEvent("order.paid", subject="42", cause=cause))
    shop.answer = lambda effect: Retry("busy", after_seconds=0)
    await shop.run()
    row = await shop.row(tenant)
    assert (row.state, row.attempts, row.outcome, row.error) == (EffectState.DEAD, 3, "exhausted", "busy")
    dead = (await shop.hands.read(tenant))[-1]
    assert (dead.kind, dead.subject) == ("effect.dead", str(row.id))
    assert dead.data["effect"]["key"] == "42"
    assert dead.data["effect"]["outcome"] == "exhausted"
    assert (dead.cause_seq, dead.depth, dead.trust) == (1, 3, Trust.AGENT)


@pytest.mark.parametrize(
    ("answer", "state", "outcome"),
    [
        (Dropped("spent"), EffectState.DROPPED, "dropped(spent)"),
        (Failed("no such address"), EffectState.DEAD, "failed"),
        (Definitive("no such address"), EffectState.DEAD, "failed"),
        (Transient("try later"), EffectState.PENDING, "retry"),
        (ValueError("a defect"), EffectState.PENDING, "retry"),
        (TimeoutError(), EffectState.PENDING, "unknown"),
        (Deferred("down", after_seconds=30), EffectState.PENDING, "deferred"),
        (None, EffectState.DEAD, "failed"),
        ("done", EffectState.DEAD, "failed"),
    ],
    ids=str,
)
async def test_every_answer_and_every_error_is_settled(
    shop: Shop, answer: Any, state: EffectState, outcome: str
):
    tenant = await shop.hands.tenant()
    await shop.pay(tenant, "42", "43")

    def answer_with(effect: Effect) -> Any:
        if effect.key == "43":
            return Done()
        if isinstance(answer, Exception):
            raise answer
        return answer

    shop.answer = answer_with
    assert (await shop.run()).executed == 2
    row = await shop.row(tenant)
    assert (row.state, row.outcome, row.claim_id) == (state, outcome, None)
    assert (await shop.row(tenant, "43")).state == EffectState.DONE
    assert shop.spine.worker.in_hand == 0


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b", "x" * 1_000_000], ids=["NUL", "half", "long"])
async def test_an_error_that_no_store_could_keep_is_kept_mended(shop: Shop, text: str):
    tenant = await shop.hands.tenant()
    await shop.pay(tenant, "42")

    def fail(_: Effect) -> Outcome:
        raise Definitive(text)

    shop.answer = fail
    await shop.run()
    row = await shop.row(tenant)
    assert row.state == EffectState.DEAD
    assert row.error is not None
    assert row.error.startswith("Definitive: ")
    assert (await shop.log(tenant))[-1] == "effect.dead"


async def test_an_executor_that_takes_too_long_is_cut_off_and_tried_again(hands: Hands):
    shop = new_shop(hands)
    shop.spine.effect("slow", timeout_seconds=0.01)(lambda effect: asyncio.Event().wait())  # type: ignore[arg-type, return-value]
    tenant = await hands.tenant()
    await hands.owe_one(tenant, "slow")
    assert (await shop.run()).executed == 1
    row = await shop.row(tenant, "1", "slow")
    assert (row.state, row.attempts, row.outcome) == (EffectState.PENDING, 1, "unknown")


async def test_a_dead_effect_of_a_tenant_without_a_log_hurts_nobody_else(shop: Shop):
    # its burial cannot be told in a log that does not exist; the worker must not hang on it, nor its neighbours
    nobody, tenant = new_id(), await shop.hands.tenant()
    try:
        await shop.hands.owe_one(nobody, key="orphan")
    except Misuse:
        return  # better still: nothing can be owed to nobody
    await shop.pay(tenant, "42", "43")
    shop.answer = lambda effect: Done() if effect.key == "43" else Failed("x")
    await shop.run()
    assert shop.spine.worker.in_hand == 0
    assert (await shop.row(tenant, "42")).state == EffectState.DEAD
    assert (await shop.row(tenant, "43")).state == EffectState.DONE


# transactional executors --------------------------------------------------------------------------------------


@dataclass
class Launcher:
    """A transactional executor: it owes a mail and appends an event, then answers as told."""

    shop: Shop
    answers: list[Any]
    runs: int = 0

    async def launch(self, effect: Effect, tx: Transaction[Any]) -> Outcome:
        self.runs += 1
        tx.append(NewEvent("run.queued", subject=effect.key))
        await tx.owe(NewEffect("mail", key=f"launched {effect.key}"))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def launch(shop: Shop, *answers: Any, max_attempts: int = 3) -> tuple[Launcher, UUID]:
    launcher = Launcher(shop, list(answers))
    shop.spine.transactional_effect("launch", max_attempts=max_attempts, lease_seconds=LEASE)(launcher.launch)
    tenant = await shop.hands.tenant()
    await shop.hands.owe_one(tenant, "launch", key="42")
    await shop.run()
    return launcher, tenant


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (Done(), EffectState.DONE),
        (Dropped("spent"), EffectState.DROPPED),
        (Held("paused"), EffectState.PENDING),
    ],
)
async def test_what_a_transactional_executor_writes_commits_with_its_settle(
    shop: Shop, answer: Outcome, state: EffectState
):
    _, tenant = await launch(shop, answer)
    assert (await shop.row(tenant, kind="launch")).state == state
    assert await shop.log(tenant) == ["run.queued"]
    assert [effect.key for effect in shop.mailed] == ["launched 42"]


@pytest.mark.parametrize(
    "answer",
    [Retry("busy"), Deferred(after_seconds=30), ValueError("a defect"), Definitive("x"), Failed("x"), None],
)
async def test_what_it_wrote_is_undone_when_it_did_not_succeed(shop: Shop, answer: Any):
    launcher, tenant = await launch(shop, answer)
    assert launcher.runs == 1
    row = await shop.row(tenant, kind="launch")
    assert row.state in {EffectState.PENDING, EffectState.DEAD}
    assert "run.queued" not in await shop.log(tenant)
    assert shop.mailed == []


async def test_a_passing_trouble_of_the_store_is_tried_again_at_once(shop: Shop):
    launcher, tenant = await launch(shop, Transient("deadlock"), Transient("deadlock"), Done())
    assert launcher.runs == 3
    row = await shop.row(tenant, kind="launch")
    assert (row.state, row.attempts) == (EffectState.DONE, 0)
    assert await shop.log(tenant) == ["run.queued"]


async def test_a_transactional_executor_that_lost_its_claim_leaves_nothing(shop: Shop):
    if not shop.hands.subject.concurrent:
        pytest.skip("nobody can take a claim over while a transaction is open here")
    taken: list[Effect] = []

    async def launched(effect: Effect, tx: Transaction[Any]) -> Outcome:
        tx.append(NewEvent("run.queued"))
        await shop.hands.age(LEASE + 1)
        taken.extend(await asyncio.create_task(shop.hands.claim("launch", worker="w2"), context=Context()))
        return Done()

    shop.spine.transactional_effect("launch", lease_seconds=LEASE)(launched)
    tenant = await shop.hands.tenant()
    await shop.hands.owe_one(tenant, "launch")
    await shop.run()
    row = await shop.row(tenant, "1", "launch")
    assert (row.state, row.worker, row.claim_id) == (EffectState.CLAIMED, "w2", taken[0].claim_id)
    assert await shop.log(tenant) == []


async def test_a_value_that_was_refused_inside_it_cannot_be_passed_over(shop: Shop):
    async def launched(_: Effect, tx: Transaction[Any]) -> Outcome:
        await tx.owe(NewEffect("mail", key="before"))
        try:
            await tx.owe(NewEffect("mail", key="a\x00b"))
        except Definitive:
            return Done()
        raise AssertionError

    shop.spine.transactional_effect("launch", max_attempts=1)(launched)
    tenant = await shop.hands.tenant()
    await shop.hands.owe_one(tenant, "launch")
    await shop.run()
    assert (await shop.row(tenant, "1", "launch")).state == EffectState.DEAD
    assert shop.mailed == []


# obligations that break ---------------------------------------------------------------------------------------


class Broken(Exception):
    """A defect in an obligation."""


@dataclass
class Judge:
    """An obligation with a defect for some subjects, until it is mended."""

    breaks_on: set[str]
    answer: Any = None

    def __call__(self, event: Event) -> Verdict:
        if event.subject in self.breaks_on:
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer
        return Owes(NewEffect("stamp", key=event.subject))


BREAKS = pytest.mark.parametrize(
    "answer",
    [Broken("a defect"), Owes(NewEffect("stamp", key="a\x00b")), Owes(NewEffect("stamp", key="1", payload={"x": "\x00"})), None],
    ids=["raises", "owes a key with NUL", "owes a payload with NUL", "answers nothing"],
)  # fmt: skip


@BREAKS
async def test_an_event_that_breaks_an_obligation_is_dead_alone_and_owed_when_it_is_mended(
    shop: Shop, answer: Any
):
    judge = Judge({"poison"}, answer)
    shop.spine.owes("order.paid", name="stamps")(judge)
    stamped: list[str] = []

    async def stamp(effect: Effect) -> Outcome:
        stamped.append(effect.key)
        return Done()

    shop.spine.effect("stamp")(stamp)
    loud, quiet = await shop.hands.tenant(), await shop.hands.tenant()
    await shop.pay(loud, "before", "poison", "after")
    await shop.pay(quiet, "elsewhere")
    await shop.run()
    # every other obligation, event and tenant is served, and no cursor is held
    assert sorted(stamped) == ["after", "before", "elsewhere"]
    assert sorted(effect.key for effect in shop.mailed) == ["after", "before", "elsewhere", "poison"]
    assert await shop.hands.lagging() == []
    row = await shop.row(loud, "2#stamps", "event")
    assert (row.state, row.outcome, row.event_seq) == (EffectState.DEAD, "failed", 2)
    assert (await shop.log(loud))[-1] == "effect.dead"
    # replayed before it is mended it is dead again; afterwards it owes what it should have, once
    assert await shop.hands.replay(loud, [row.id]) == [row.id]
    await shop.run()
    assert (await shop.row(loud, "2#stamps", "event")).state == EffectState.DEAD
    judge.breaks_on.clear()
    assert await shop.hands.replay(loud, [row.id]) == [row.id]
    await shop.run()
    assert (await shop.row(loud, "2#stamps", "event")).state == EffectState.DONE
    assert sorted(stamped) == ["after", "before", "elsewhere", "poison"]
    assert len(shop.mailed) == 4


async def test_an_obligation_is_not_asked_about_another_event_when_its_own_is_not_kept(shop: Shop):
    shop.spine.owes("order.paid", name="stamps")(Judge(set(), None))
    tenant = await shop.hands.tenant()
    await shop.pay(tenant, "kept")
    gone = NewEffect("event", key="0#stamps", event_seq=0, payload={"obligation": "stamps"})
    await shop.hands.owe(tenant, gone)
    await shop.run()
    row = await shop.row(tenant, "0#stamps", "event")
    assert (row.state, row.error) == (EffectState.DEAD, "event 0 is not kept any more")


async def test_a_whole_batch_of_poison_is_pinned_event_by_event(shop: Shop):
    subjects = {f"{n}" for n in range(12)}
    shop.spine.owes("order.paid", name="stamps")(Judge(subjects - {"5"}, Broken("a defect")))
    tenant = await shop.hands.tenant()
    await shop.pay(tenant, *sorted(subjects, key=int))
    async with asyncio.timeout(STUCK):
        await shop.spine.drain.run_once()
    poisoned = await shop.hands.rows(tenant, kind="event")
    assert {row.key for row in poisoned} == {f"{n + 1}#stamps" for n in range(12) if n != 5}
    assert [row.key for row in await shop.hands.rows(tenant, kind="stamp")] == ["5"]
    assert len(await shop.hands.rows(tenant, kind="mail")) == 12


async def test_an_obligation_that_breaks_on_every_event_does_not_break_on_the_news_of_it_for_ever(shop: Shop):
    """The death of what broke is an event, too: two letters for each event, both to be replayed, and an end."""
    broken = True

    @shop.spine.owes(name="everything")
    def judge(event: Event) -> Verdict:
        if broken:
            raise Broken("a defect")
        return NotOwed("mended")

    tenant = await shop.hands.tenant()
    await shop.pay(tenant, "42")
    async with asyncio.timeout(STUCK):
        await shop.run()
    assert [event.kind for event in await shop.hands.read(tenant)] == ["order.paid", "effect.dead"]
    letters = await shop.hands.rows(tenant, kind="event")
    assert {(row.key, row.state.value) for row in letters} == {
        ("1#everything", "dead"),
        ("2#everything", "dead"),
    }
    broken = False
    async with shop.hands.store.tenant(tenant) as tx:
        await shop.hands.store.replay(tx, tenant, [(row, False) for row in letters])
        await shop.hands.store.make_due(tx, [(tenant, row.id) for row in letters])
    await shop.run()
    assert {row.state.value for row in await shop.hands.rows(tenant, kind="event")} == {"done"}


async def test_an_engine_older_than_the_rows_leaves_what_is_to_be_asked_again_to_a_newer_one(shop: Shop):
    """It would judge the event by what it knows: a word that it does not know fails for good, one that has changed is silently lost."""
    judge = Judge({"42"}, Broken("an unknown word"))
    shop.spine.owes("order.paid", name="stamps")(judge)
    tenant = await shop.hands.tenant()
    await shop.pay(tenant, "42")
    await shop.spine.drain.run_once()
    await shop.hands.subject.set_engine_version(ENGINE_VERSION + 1)
    for _ in range(20):  # more often than it has attempts
        await shop.run()
        await shop.hands.age(30)
    row = await shop.row(tenant, "1#stamps", "event")
    assert (row.state, row.attempts) == (EffectState.PENDING, 0)
    assert row.deferrals > 12
    # a newer one takes it
    judge.breaks_on.clear()
    await shop.hands.subject.set_engine_version(ENGINE_VERSION)
    await shop.run()
    assert (await shop.row(tenant, "1#stamps", "event")).state == EffectState.DONE
    assert [row.key for row in await shop.hands.rows(tenant, kind="stamp")] == ["42"]


async def test_what_is_owed_when_asked_again_may_be_owed_already_and_is_then_left_as_it_is(shop: Shop):
    judge = Judge({"42"}, Broken("a defect"))
    shop.spine.owes("order.paid", name="stamps")(judge)
    tenant = await shop.hands.tenant()
    await shop.pay(tenant, "42")
    await shop.spine.drain.run_once()
    judge.breaks_on.clear()
    [standing] = await shop.hands.owe(tenant, NewEffect("stamp", key="42", payload={"by": "hand"}))
    await shop.run()
    assert (await shop.row(tenant, "1#stamps", "event")).state == EffectState.DONE
    [row] = await shop.hands.rows(tenant, kind="stamp")
    assert (row.id, row.payload) == (standing.id, {"by": "hand"})


async def test_beside_poison_a_round_owes_no_more_than_any_other(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    """Without a limit, one broken obligation would have the others' rows of a whole round inserted in one statement."""
    monkeypatch.setattr(drain, "OWED_MAX", 10)

    @shop.spine.owes("order.paid", name="many")
    def many(event: Event) -> Verdict:
        return Owes(*(NewEffect("stamp", key=f"{event.subject}.{n}") for n in range(4)))

    shop.spine.owes("order.paid", name="broken")(Judge({"1", "7"}, Broken("a defect")))
    tenant = await shop.hands.tenant()
    await shop.pay(tenant, *"0123456789")
    rounds = []
    async with asyncio.timeout(STUCK):
        while (drained := await shop.spine.drain.run_once()).events:
            rounds.append((drained.events, drained.owed))
    # of each event a mail, four stamps, and one stamp or the row that asks again
    assert rounds == [(1, 6)] * 10
    assert {row.key for row in await shop.hands.rows(tenant, kind="event")} == {"2#broken", "8#broken"}
    assert len(await shop.hands.rows(tenant, kind="stamp", limit=100)) == 48
    assert len(await shop.hands.rows(tenant, kind="mail")) == 10


async def test_an_outage_inside_an_obligation_aborts_the_round_and_poisons_nothing(shop: Shop):
    judge = Judge({"42"}, Transient("database gone"))
    shop.spine.owes("order.paid", name="stamps")(judge)
    tenant = await shop.hands.tenant()
    await shop.pay(tenant, "42")
    with pytest.raises(Transient):
        await shop.run()
    assert await shop.hands.rows(tenant) == []
    assert len(await shop.hands.lagging()) == 1
    judge.breaks_on.clear()
    await shop.run()
    assert {row.kind for row in await shop.hands.rows(tenant)} == {"mail", "stamp"}


async def test_a_name_too_long_for_a_key_is_refused_when_it_is_declared(shop: Shop):
    # found out only when its first event breaks, it would stop the drain of every tenant
    with pytest.raises(Misuse):
        shop.spine.owes("order.paid", name="n" * 300)(receipt)


def test_names_and_kinds_are_declared_once(shop: Shop):
    with pytest.raises(Misuse, match="receipt"):
        shop.spine.owes("order.sent")(receipt)
    with pytest.raises(Misuse, match="mail"):
        shop.spine.effect("mail")(shop.mail)
    with pytest.raises(Misuse, match="event"):
        shop.spine.effect("event")(shop.mail)


# workers that die ---------------------------------------------------------------------------------------------


async def die_with_it(hands: Hands, *kinds: str, times: int = 1, before: int = 0) -> None:
    """Claim the only due effect and vanish, so many times."""
    for crashes in range(before, before + times):
        await hands.claim_one(*kinds, worker=f"doomed {crashes}", alone=crashes >= CRASHES_ALONE)
        await hands.age(LEASE + 1)


async def test_what_a_dead_worker_held_is_done_by_another(shop: Shop):
    tenant = await shop.hands.tenant()
    await shop.hands.owe_one(tenant, key="42")
    await die_with_it(shop.hands)
    assert (await shop.run()).executed == 1
    row = await shop.row(tenant)
    assert (row.state, row.crashes, row.attempts) == (EffectState.DONE, 1, 0)
    [effect] = shop.mailed
    assert effect.reclaimed
    assert [attempt.outcome for attempt in await shop.hands.attempts(effect)] == ["lease_lost", "done"]


async def test_an_effect_that_ends_every_worker_is_dead_after_the_last_allowed_crash(shop: Shop):
    tenant = await shop.hands.tenant()
    await shop.hands.owe_one(tenant, key="42")
    await die_with_it(shop.hands, times=CRASHES_MAX)
    await shop.run()
    assert shop.mailed == []
    row = await shop.row(tenant)
    assert (row.state, row.crashes, row.attempts, row.outcome) == (
        EffectState.DEAD, CRASHES_MAX, 0, "worker_crashed",
    )  # fmt: skip
    assert await shop.log(tenant) == ["effect.dead"]
    assert len(await shop.hands.rows(tenant, state=EffectState.DEAD)) == 1


async def test_one_crash_before_the_last_it_is_still_run_and_may_succeed(shop: Shop):
    tenant = await shop.hands.tenant()
    await shop.hands.owe_one(tenant, key="42")
    await die_with_it(shop.hands, times=CRASHES_MAX - 1)
    await shop.run()
    assert (await shop.row(tenant)).state == EffectState.DONE


async def test_what_must_not_happen_twice_is_not_run_again_after_a_crash(shop: Shop):
    charged: list[Effect] = []

    async def charge(effect: Effect) -> Outcome:
        charged.append(effect)
        return Done()

    shop.spine.effect("charge", idempotent=False, lease_seconds=LEASE)(charge)
    tenant = await shop.hands.tenant()
    await shop.hands.owe_one(tenant, "charge", key="42")
    await die_with_it(shop.hands, "charge")
    await shop.run()
    row = await shop.row(tenant, kind="charge")
    assert (row.state, row.outcome, row.crashes) == (EffectState.DEAD, "unknown", 1)
    assert charged == []
    await shop.hands.replay(tenant, [row.id])
    await shop.run()
    assert (await shop.row(tenant, kind="charge")).state == EffectState.DONE
    assert len(charged) == 1


async def test_what_must_not_happen_twice_is_not_handed_back_by_a_worker_that_never_looked_at_it(shop: Shop):
    shop.spine.effect("charge", idempotent=False, lease_seconds=LEASE)(lambda _: pytest.fail("run twice"))
    tenant = await shop.hands.tenant()
    await shop.hands.owe_one(tenant, "charge", key="42")
    await die_with_it(shop.hands, "charge")
    worker = shop.spine.worker
    assert await worker.take() == 1
    worker.close()
    for held in worker._in_hand.values():
        held.task.cancel()  # as a stop does whose grace is over, before the task's first step
    await worker._empty.wait()
    row = await shop.row(tenant, kind="charge")
    assert (row.state, row.outcome, row.crashes) == (EffectState.DEAD, "unknown", 1)


async def test_a_crash_of_a_neighbour_costs_an_effect_no_attempt(shop: Shop):
    tenant = await shop.hands.tenant()
    await shop.hands.owe(tenant, *(NewEffect("mail", key=f"{n}") for n in range(20)))
    assert len(await shop.hands.claim(limit=20, worker="doomed")) == 20
    await shop.hands.age(LEASE + 1)
    await shop.run()
    rows = await shop.hands.rows(tenant)
    assert {(row.state, row.attempts, row.crashes) for row in rows} == {(EffectState.DONE, 0, 1)}


async def test_what_has_ended_two_workers_runs_with_nothing_beside_it(shop: Shop):
    tenant = await shop.hands.tenant()
    await shop.hands.owe_one(tenant, key="poison")
    await die_with_it(shop.hands, times=CRASHES_ALONE)
    beside: dict[str, int] = {}
    gate, started = asyncio.Event(), asyncio.Queue[str]()

    async def look(effect: Effect) -> Outcome:
        beside[effect.key] = shop.spine.worker.in_hand
        await started.put(effect.key)
        if effect.key != "poison":
            await gate.wait()
        return Done()

    shop.answer = look
    await shop.hands.owe(tenant, *(NewEffect("mail", key=f"{n}") for n in range(3)))
    worker = shop.spine.worker
    async with asyncio.timeout(STUCK):
        # a claim is on its way when the turn of the lonely one comes
        running = [asyncio.create_task(act()) for act in (worker.take, worker.run_alone, worker.take)]
        assert {await started.get() for _ in range(3)} == {"0", "1", "2"}
        await shop.hands.owe_one(tenant, key="3")
        assert await worker.take() == 0  # it waits for its turn: nothing new begins
        gate.set()
        await asyncio.gather(*running)
        await shop.run()
    assert beside["poison"] == 1
    assert len(beside) == 5


async def test_a_worker_whose_lease_ran_out_keeps_track_of_both_claims(hands: Hands):
    # a process that slept through its lease claims its own row again while the first run is still going
    shop = new_shop(hands)
    tenant = await hands.tenant()
    await hands.owe_one(tenant, key="42")
    started, gates = asyncio.Queue[Effect](), [asyncio.Event(), asyncio.Event()]

    async def hold(effect: Effect) -> Outcome:
        gate = gates[len(shop.mailed) - 1]
        await started.put(effect)
        await gate.wait()
        return Done()

    shop.answer = hold
    async with asyncio.timeout(STUCK):
        assert await shop.spine.worker.take() == 1
        await started.get()
        await hands.age(LEASE + 1)
        assert await shop.spine.worker.take() == 1
        second = await started.get()
        gates[0].set()
        # the first run ends and is refused; the second is still in hand, and still renewed
        for _ in range(100):
            await asyncio.sleep(0)
        await hands.row(second)
        assert shop.spine.worker.in_hand >= 1
        await hands.age(LEASE - 5)
        await shop.spine.worker.renew()
        await hands.age(LEASE - 5)
        assert await hands.claim(alone=True) == await hands.claim() == []
        gates[1].set()
        await shop.spine.worker.run_once()
    assert (await shop.row(tenant)).state == EffectState.DONE
    assert shop.spine.worker.in_hand == 0


async def test_a_lost_claim_is_cancelled_here(shop: Shop):
    tenant = await shop.hands.tenant()
    await shop.hands.owe_one(tenant, key="42")
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def hold(_: Effect) -> Outcome:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return Done()

    shop.answer = hold
    async with asyncio.timeout(STUCK):
        await shop.spine.worker.take()
        await started.wait()
        await shop.hands.age(LEASE + 1)
        other = await shop.hands.claim_one(worker="w2")
        await shop.spine.worker.renew()
        await cancelled.wait()
        assert await shop.spine.worker.run_once() == 0
    assert shop.spine.worker.in_hand == 0
    assert (await shop.hands.row(other)).worker == "w2"


# shutting down ------------------------------------------------------------------------------------------------


async def stopped_amid(shop: Shop, kind: str) -> UUID:
    """Start the engine, let it begin an effect that never ends, and stop it."""
    tenant = await shop.hands.tenant()
    started = asyncio.Event()

    async def hold(_: Effect) -> Outcome:
        started.set()
        await asyncio.Event().wait()
        return Done()

    async def hold_open(_: Effect, tx: Transaction[Any]) -> Outcome:
        tx.append(NewEvent("run.queued"))
        return await hold(_)

    shop.answer = hold
    shop.spine.effect("charge", idempotent=False)(hold)
    shop.spine.transactional_effect("launch")(hold_open)
    await shop.hands.owe_one(tenant, kind, key="42")
    async with asyncio.timeout(STUCK):
        await shop.spine.start()
        await started.wait()
        await shop.spine.stop()
    assert shop.spine.worker.in_hand == 0
    return tenant


@pytest.mark.parametrize("kind", ["mail", "launch"])
async def test_what_is_in_hand_at_shutdown_is_handed_back_unspent(shop: Shop, kind: str):
    if kind == "launch" and not shop.hands.subject.concurrent:
        pytest.skip("an open transaction holds up every loop here")
    tenant = await stopped_amid(shop, kind)
    row = await shop.row(tenant, kind=kind)
    assert (row.state, row.attempts, row.crashes, row.outcome) == (EffectState.PENDING, 0, 0, "deferred")
    assert (row.claim_id, row.lease_until) == (None, None)
    assert await shop.log(tenant) == []
    # at once, without waiting for the lease
    [effect] = await shop.hands.claim(kind)
    assert effect.key == "42"
    # what acts outside may have done so, what is undone has not
    noted = [attempt.error for attempt in await shop.hands.attempts(effect)]
    assert noted == (["shutting down"] if kind == "mail" else [])


async def test_a_lonely_effect_that_is_running_does_not_hold_up_the_shutdown(shop: Shop):
    await shop.hands.owe_one(await shop.hands.tenant(), key="0")
    await die_with_it(shop.hands, times=CRASHES_ALONE)
    started = asyncio.Event()

    async def hold(_: Effect) -> Outcome:
        started.set()
        await asyncio.Event().wait()
        return Done()

    shop.answer = hold
    async with asyncio.timeout(STUCK):
        await shop.spine.start()
        await started.wait()
        await shop.spine.stop()
    row = await shop.row((await shop.hands.claim_one(alone=True)).tenant_id, "0")
    assert (row.crashes, row.deferrals) == (CRASHES_ALONE, 1)


async def test_what_may_have_happened_is_unknown_at_shutdown(shop: Shop):
    tenant = await stopped_amid(shop, "charge")
    row = await shop.row(tenant, kind="charge")
    assert (row.state, row.outcome) == (EffectState.DEAD, "unknown")


async def test_a_stopped_engine_takes_nothing_more(shop: Shop):
    tenant = await shop.hands.tenant()
    await shop.spine.start()
    await shop.spine.stop()
    await shop.pay(tenant, "42")
    assert await shop.spine.worker.take() == 0
    assert shop.mailed == []


async def test_an_engine_that_is_started_again_does_what_is_due_again(shop: Shop):
    tenant = await shop.hands.tenant()
    mailed = asyncio.Event()

    def answer(_: Effect) -> Outcome:
        mailed.set()
        return Done()

    shop.answer = answer
    for order in ("42", "43"):
        mailed.clear()
        async with asyncio.timeout(STUCK), shop.spine.running():
            await shop.pay(tenant, order)
            await mailed.wait()
    await shop.pay(tenant, "44")
    assert await shop.run() == Ran(drained=1, executed=1)
    assert [effect.key for effect in shop.mailed] == ["42", "43", "44"]


async def test_an_engine_that_runs_is_not_started_a_second_time(shop: Shop):
    async with shop.spine.running():
        with pytest.raises(Misuse, match="already"):
            await shop.spine.start()
    assert shop.spine.worker.in_hand == 0


async def test_what_outlasts_its_lease_in_one_round_keeps_its_claim(shop: Shop):
    tenant = await shop.hands.tenant()
    leases: set[Any] = set()

    async def long(effect: Effect) -> Outcome:
        while len(leases) < 3:  # renewed twice, whoever waits for how long
            leases.add((await shop.hands.row(effect)).lease_until)
            await asyncio.sleep(0.001)
        return Done()

    shop.spine.effect("report", lease_seconds=0.3)(long)
    await shop.hands.owe_one(tenant, "report")
    assert await shop.run() == Ran(drained=0, executed=1)
    assert (await shop.row(tenant, "1", "report")).crashes == 0


async def test_a_running_engine_does_what_commits_without_being_asked(shop: Shop):
    tenant = await shop.hands.tenant()
    mailed = asyncio.Event()

    def answer(_: Effect) -> Outcome:
        mailed.set()
        return Done()

    shop.answer = answer
    async with asyncio.timeout(STUCK), shop.spine.running():
        await shop.pay(tenant, "42")
        await mailed.wait()
    assert (await shop.row(tenant)).state == EffectState.DONE


async def test_what_another_process_committed_is_found_by_the_tick(hands: Hands):
    shop = new_shop(hands, tick_seconds=0.01)
    tenant = await hands.tenant()
    mailed = asyncio.Event()

    def answer(_: Effect) -> Outcome:
        mailed.set()
        return Done()

    shop.answer = answer
    async with asyncio.timeout(STUCK), shop.spine.running():
        await hands.append(tenant, NewEvent("order.paid", subject="42"))  # nobody pokes
        await mailed.wait()
    assert [effect.key for effect in shop.mailed] == ["42"]
