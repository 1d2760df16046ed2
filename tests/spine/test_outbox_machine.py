"""The outbox and its log against a model of dictionaries, by machines that try what no person would write down.

Rules claim, settle with any claim there ever was, renew, cancel, replay, discard, trim, append, drain, die half-way in a
transaction, and let time pass; after each the store's rows are what the model says. Times are whole seconds, far more than
a run takes, so that the store's own clock never decides where the model does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mainspring import faultpoints
from mainspring.spine.drain import Drain
from mainspring.spine.effects import (
    CRASHES_ALONE,
    AlreadyOwed,
    Deferred,
    Done,
    Dropped,
    Effect,
    EffectKind,
    EffectRow,
    Failed,
    NewEffect,
    Outcome,
    Owed,
    Retry,
    resolve,
)
from mainspring.spine.engine import Spine
from mainspring.spine.errors import Misuse
from mainspring.spine.events import Event, NewEvent
from mainspring.spine.ports import Owes
from tests.conformance.hands import Hands
from tests.conformance.subjects import MemorySubject, PostgresSubject, Subject

if TYPE_CHECKING:
    from tests.databases import Database, Databases

LEASE, DELAY, KEPT = 60, 40, 1_000
MAX_ATTEMPTS = 3
KIND = EffectKind(name="any", max_attempts=MAX_ATTEMPTS)
KINDS = ("mail", "ship")
FINAL = {"done", "dropped", "discarded"}

T = TypeVar("T")
Run = Callable[[Awaitable[T]], T]


@dataclass
class Row:
    """What the model knows of an effect."""

    tenant: UUID
    id: UUID
    kind: str
    key: str
    payload: dict[str, Any]
    due: int
    state: str = "pending"
    attempts: int = 0
    crashes: int = 0
    deferrals: int = 0
    epoch: int = 0
    claim: UUID | None = None
    lease_until: int = 0
    cancel: bool = False
    settled_at: int = 0

    @property
    def seen(self) -> tuple[Any, ...]:
        return (
            self.id, self.kind, self.key, self.payload, self.state, self.attempts, self.crashes, self.deferrals, self.epoch,
            self.claim, self.cancel,
        )  # fmt: skip


def seen(row: EffectRow) -> tuple[Any, ...]:
    return (
        row.id, row.kind, row.key, row.payload, row.state.value, row.attempts, row.crashes, row.deferrals, row.epoch,
        row.claim_id, row.cancel_requested,
    )  # fmt: skip


@dataclass
class Model:
    """The whole store, as it should be."""

    now: int = 0
    rows: dict[tuple[UUID, str, str], Row] = field(default_factory=dict)
    heads: dict[UUID, int] = field(default_factory=dict)
    drained: dict[UUID, int] = field(default_factory=dict)

    def ready(self, kinds: set[str], *, alone: bool) -> list[Row]:
        return [
            row
            for row in self.rows.values()
            if row.state == "pending"
            and row.kind in kinds
            and row.due <= self.now
            and (row.crashes >= CRASHES_ALONE) is alone
        ]

    def expired(self, kinds: set[str], *, alone: bool) -> list[Row]:
        return [
            row
            for row in self.rows.values()
            if row.state == "claimed"
            and row.kind in kinds
            and row.lease_until <= self.now
            and (row.crashes + 1 >= CRASHES_ALONE) is alone
        ]

    def row(self, id_: UUID) -> Row | None:
        return next((row for row in self.rows.values() if row.id == id_), None)

    def holds(self, effect: Effect) -> Row | None:
        row = self.row(effect.id)
        return row if row and row.state == "claimed" and row.claim == effect.claim_id else None

    def settle(self, row: Row, outcome: Outcome) -> None:
        row.claim = None
        match outcome:
            case Done():
                row.state = "done"
            case Dropped():
                row.state = "dropped"
            case Failed():
                row.state, row.attempts = "dead", row.attempts + 1
            case Retry():
                row.attempts += 1
                row.state = "dead" if row.attempts >= MAX_ATTEMPTS else "pending"
            case Deferred():
                row.state, row.deferrals = "pending", row.deferrals + 1
            case other:
                raise AssertionError(other)
        if row.state == "pending" and row.cancel:
            row.state = "dropped"
        if row.state == "pending":
            row.due = self.now + DELAY
        else:
            row.settled_at = self.now


OUTCOMES = st.sampled_from(
    [
        Done(),
        Dropped("spent"),
        Failed("x"),
        Retry("x", after_seconds=DELAY),
        Deferred("down", after_seconds=DELAY),
    ]
)
SOME_KINDS = st.sampled_from([set(KINDS), set(KINDS), {"mail"}, {"ship"}])
INDEX = st.integers(0, 10**6)  # picks one of however many there are


class Interrupted(Exception):
    """The process died here."""


class OutboxMachine(RuleBasedStateMachine):
    """Every rule is one act on the store and the same act on the model."""

    def __init__(self, run: Run[Any], subject: Subject) -> None:
        super().__init__()
        self.run = run
        self.subject = subject
        self.hands = Hands(subject)
        self.store = subject.store
        self.model = Model()
        self.claims: list[Effect] = []
        spine = Spine(self.store)
        spine.owes("order.paid")(owes)
        self.drain_step: Drain[Any] = spine.drain

    @initialize()
    def two_tenants(self) -> None:
        async def begin() -> list[UUID]:
            await self.subject.empty()
            return [await self.hands.tenant(), await self.hands.tenant()]

        self.tenants: list[UUID] = self.run(begin())
        self.model.heads = dict.fromkeys(self.tenants, 0)
        self.model.drained = dict.fromkeys(self.tenants, 0)
        for tenant, kind, key in ((0, "mail", "a"), (0, "ship", "a"), (1, "mail", "a")):
            self.owe_one(self.tenants[tenant], kind, key, delay=0)

    # owing

    @rule(
        tenant=st.integers(0, 1),
        kind=st.sampled_from(KINDS),
        key=st.sampled_from("abc"),
        n=st.sampled_from([1, 1, 1, 2]),
        delay=st.sampled_from([0, DELAY]),
    )
    def owe(self, tenant: int, kind: str, key: str, n: int, delay: int) -> None:
        to, payload = self.tenants[tenant], {"n": n}
        effect = NewEffect(kind, key=key, payload=payload, delay_seconds=delay)
        standing = self.model.rows.get((to, kind, key))
        if standing is None:
            self.owe_one(to, kind, key, n=n, delay=delay)
        elif standing.payload == payload:
            [owed] = self.run(self.hands.owe(to, effect))
            assert owed == AlreadyOwed(standing.id, standing.state)
        else:
            with pytest.raises(Misuse):
                self.run(self.hands.owe(to, effect))

    def owe_one(self, tenant: UUID, kind: str, key: str, *, n: int = 1, delay: int) -> None:
        effect = NewEffect(kind, key=key, payload={"n": n}, delay_seconds=delay)
        [owed] = self.run(self.hands.owe(tenant, effect))
        assert isinstance(owed, Owed)
        row = Row(tenant, owed.id, kind, key, {"n": n}, due=self.model.now + delay)
        self.model.rows[tenant, kind, key] = row

    @rule(tenant=st.integers(0, 1), key=st.sampled_from("abc"))
    def die_before_the_commit(self, tenant: int, key: str) -> None:
        to, claims = self.tenants[tenant], [effect for effect in self.claims if self.model.holds(effect)]

        async def interrupted() -> None:
            async with self.store.system("test") as tx:
                await self.store.owe_drained(tx, [(to, NewEffect("mail", key=key))])
                settlements = [resolve(effect, Failed("x"), KIND, random=0.5) for effect in claims]
                await self.store.settle(tx, sorted(settlements, key=lambda settlement: settlement.id))
                await self.store.append(tx, to, [NewEvent("order.paid")])
                raise Interrupted

        with pytest.raises(Interrupted):
            self.run(interrupted())

    # claiming

    @rule(
        kinds=SOME_KINDS,
        limit=st.integers(1, 4),
        after=st.sampled_from([None, 0, 1]),
    )
    def claim(self, kinds: set[str], limit: int, after: int | None) -> None:
        ready = self.model.ready(kinds, alone=False)
        expired = self.model.expired(kinds, alone=False)
        last = None if after is None else self.tenants[after]
        claimed = self.run(self.hands.claim(*sorted(kinds), limit=limit, lease=LEASE, after=last))
        taken = self.taken(claimed, ready, expired)
        assert len(taken) <= limit
        assert sum(effect.reclaimed for effect in claimed) == min(limit, len(expired))
        if len(taken) < limit:  # slots were left: nobody who had something was passed over
            served = {row.tenant for row in taken}
            assert {row.tenant for row in ready} <= served

    @rule(kinds=SOME_KINDS)
    def claim_alone(self, kinds: set[str]) -> None:
        ready = self.model.ready(kinds, alone=True)
        expired = self.model.expired(kinds, alone=True)
        claimed = self.run(self.hands.claim(*sorted(kinds), limit=4, lease=LEASE, alone=True))
        assert len(self.taken(claimed, ready, expired)) == min(1, len(ready) + len(expired))

    @precondition(lambda self: any(row.state == "claimed" for row in self.model.rows.values()))
    @rule(hand_back=st.booleans())
    def workers_die_and_others_take_over(self, hand_back: bool) -> None:
        self.age(LEASE + 1)
        self.claim(set(KINDS), 4, None)
        self.claim_alone(set(KINDS))
        if hand_back:
            self.settle_all(
                [(effect, Deferred("shutting down", after_seconds=DELAY)) for effect in self.held()]
            )
            self.age(DELAY + 1)
            self.claim(set(KINDS), 4, None)

    def taken(self, claimed: list[Effect], ready: list[Row], expired: list[Row]) -> list[Row]:
        """Check what was claimed against what could be, and note it in the model."""
        rows: list[Row] = []
        for effect in claimed:
            row = self.model.row(effect.id)
            assert row is not None
            assert row in (expired if effect.reclaimed else ready)
            assert row not in rows
            row.state, row.claim, row.lease_until = "claimed", effect.claim_id, self.model.now + LEASE
            row.crashes += effect.reclaimed
            assert (effect.attempts, effect.crashes, effect.epoch) == (row.attempts, row.crashes, row.epoch)
            rows.append(row)
            self.claims.append(effect)
        return rows

    @precondition(lambda self: self.held())
    @rule(picks=st.lists(st.tuples(INDEX, OUTCOMES), min_size=1, max_size=3), cancelled=st.booleans())
    def settle(self, picks: list[tuple[int, Outcome]], cancelled: bool) -> None:
        held = self.held()
        if cancelled:
            self.cancel(picks[0][0], "claimed")
        self.settle_all([(held[index % len(held)], outcome) for index, outcome in picks])

    @precondition(lambda self: self.stale())
    @rule(picks=st.lists(st.tuples(INDEX, OUTCOMES), min_size=1, max_size=2), index=INDEX)
    def settle_late(self, picks: list[tuple[int, Outcome]], index: int) -> None:
        held, stale = self.held(), self.stale()
        late = [(stale[-1 - index % len(stale)], outcome) for index, outcome in picks]
        in_time = [(held[index % len(held)], Done())] if held else []
        self.settle_all([*in_time, *late])

    def settle_all(self, picks: list[tuple[Effect, Outcome]]) -> None:
        batch = {effect.id: (effect, outcome) for effect, outcome in picks}  # a row once a batch
        settled = self.run(self.hands.settle(*batch.values(), kind=KIND))
        accepted = {id_ for id_, (effect, _) in batch.items() if self.model.holds(effect)}
        assert settled.accepted == accepted
        assert settled.refused == batch.keys() - accepted
        for effect, outcome in batch.values():
            row = self.model.holds(effect)
            if row is not None:
                self.model.settle(row, outcome)

    def held(self) -> list[Effect]:
        return [effect for effect in self.claims if self.model.holds(effect)]

    def stale(self) -> list[Effect]:
        """Claims that are no longer the last of their row; those of rows that somebody else holds come last."""
        late = [effect for effect in self.claims if not self.model.holds(effect)]
        return sorted(late, key=lambda effect: getattr(self.model.row(effect.id), "state", "") == "claimed")

    @precondition(lambda self: self.claims)
    @rule(picks=st.lists(INDEX, min_size=1, max_size=4))
    def renew(self, picks: list[int]) -> None:
        claims = [self.claims[-1 - index % len(self.claims)] for index in picks]
        effects = {effect.id: effect for effect in claims}
        lost = self.run(self.hands.renew(*effects.values(), lease=LEASE))
        assert lost == {id_ for id_, effect in effects.items() if not self.model.holds(effect)}
        for effect in effects.values():
            row = self.model.holds(effect)
            if row is not None:
                row.lease_until = self.model.now + LEASE

    # deciding

    @rule(index=INDEX, among=st.sampled_from(["claimed", "pending", "any"]))
    def cancel(self, index: int, among: str) -> None:
        row = self.any_row(index, among)
        state = self.run(self.hands.cancel(row.tenant, row.id))
        if row.state == "pending":
            row.state, row.settled_at = "dropped", self.model.now
            row.cancel = True
        elif row.state == "claimed":
            row.cancel = True
        assert state == row.state

    @rule(index=INDEX, new_key=st.booleans(), among=st.sampled_from(["dead", "dead", "any"]))
    def replay(self, index: int, new_key: bool, among: str) -> None:
        row = self.any_row(index, among)
        replayed = self.run(self.hands.replay(row.tenant, [row.id], new_key=new_key))
        assert replayed == ([row.id] if row.state == "dead" else [])
        if replayed:
            row.state, row.due, row.cancel = "pending", self.model.now, False
            row.attempts = row.crashes = row.deferrals = 0
            row.epoch += new_key

    @rule(index=INDEX, among=st.sampled_from(["dead", "any"]))
    def discard(self, index: int, among: str) -> None:
        row = self.any_row(index, among)
        discarded = self.run(self.hands.discard(row.tenant, [row.id]))
        assert discarded == ([row.id] if row.state == "dead" else [])
        if discarded:
            row.state, row.settled_at = "discarded", self.model.now

    def any_row(self, index: int, state: str = "any") -> Row:
        """One of the rows in that state, of any state when there is none."""
        rows = list(self.model.rows.values())
        rows = [row for row in rows if row.state == state] or rows
        return rows[index % len(rows)]

    # time and its sweeps

    @rule(seconds=st.sampled_from([30, 61, 61, 300]))
    def age(self, seconds: int) -> None:
        self.run(self.hands.age(seconds))
        self.model.now += seconds

    @rule(idle=st.booleans())
    def the_janitor_and_the_tick_come_by(self, idle: bool) -> None:
        if idle:
            self.age(KEPT)
        old = [
            key
            for key, row in self.model.rows.items()
            if row.state in FINAL and row.settled_at + KEPT <= self.model.now
        ]
        if len(old) < len(self.model.rows):  # one row at least is always left to decide about
            assert self.run(self.hands.trim(done_seconds=KEPT)) == len(old)
            for key in old:
                del self.model.rows[key]
        assert self.run(self.hands.rebuild_due()) == 0  # ordinary traffic never makes the index late
        kinds = set(KINDS)
        due = self.run(self.store.due(list(KINDS)))
        alone = self.model.ready(kinds, alone=True) + self.model.expired(kinds, alone=True)
        ordinary = self.model.ready(kinds, alone=False) + self.model.expired(kinds, alone=False)
        assert due.alone == bool(alone)
        assert due.effects or not ordinary  # it may ask once too often, never once too rarely
        assert due.lagging == (self.model.heads != self.model.drained)

    # the log

    @rule(tenant=st.integers(0, 1), number=st.integers(1, 3))
    def append(self, tenant: int, number: int) -> None:
        to = self.tenants[tenant]
        seqs = self.run(self.hands.append(to, *["order.paid"] * number))
        head = self.model.heads[to]
        assert seqs == tuple(range(head + 1, head + 1 + number))
        self.model.heads[to] += number

    @rule(
        dies_at=st.sampled_from([None, None, "drain.after_lock", "drain.after_insert", "drain.before_commit"])
    )
    def drain(self, dies_at: str | None) -> None:
        lag = sum(self.model.heads.values()) - sum(self.model.drained.values())
        if dies_at is not None and lag:
            faultpoints.arm(f"{dies_at}:raise")
            with pytest.raises(faultpoints.FaultRaised):
                self.run(self.drain_step.run_once())
            return
        assert self.run(self.all_is_drained()) == (lag, lag)
        for tenant, head in self.model.heads.items():
            for seq in range(self.model.drained[tenant] + 1, head + 1):
                key = f"{seq}#owes"
                [row] = [row for row in self.run(self.hands.rows(tenant, event_seq=seq)) if row.key == key]
                self.model.rows[tenant, "mail", key] = Row(
                    tenant, row.id, "mail", key, {"seq": seq}, due=self.model.now
                )
            self.model.drained[tenant] = head

    # what always holds

    @invariant()
    def the_rows_are_what_the_model_says(self) -> None:
        for tenant in getattr(self, "tenants", ()):
            found = {(row.kind, row.key): seen(row) for row in self.run(self.hands.rows(tenant, limit=1000))}
            expected = {
                (kind, key): row.seen for (to, kind, key), row in self.model.rows.items() if to == tenant
            }
            assert found == expected

    def teardown(self) -> None:
        """Whatever happened: once the trouble is over, everything that is owed is claimed and done."""
        if hasattr(self, "tenants"):
            self.run(self.everything_is_done())

    async def all_is_drained(self) -> tuple[int, int]:
        """Drain until two rounds find nothing: after rounds that failed, each takes less. Return how much was drained and owed."""
        events = owed = idle = 0
        while idle < 2:
            drained = await self.drain_step.run_once()
            events, owed = events + drained.events, owed + drained.owed
            idle = 0 if drained.events else idle + 1
        return events, owed

    async def everything_is_done(self) -> None:
        await self.hands.age(10 * (LEASE + DELAY))
        await self.all_is_drained()
        for alone in (False, True):
            while claimed := await self.hands.claim(*KINDS, limit=3, alone=alone):
                for effect in claimed:
                    assert await self.hands.settles(effect)
        for tenant in self.tenants:
            left = {row.state.value for row in await self.hands.rows(tenant, limit=1000)}
            assert left <= FINAL | {"dead"}


def owes(event: Event) -> Owes:
    return Owes(NewEffect("mail", key=f"{event.seq}#owes", payload={"seq": event.seq}, event_seq=event.seq))


def explore(run: Run[Any], subject: Callable[[], Subject], *, examples: int, steps: int) -> None:
    faultpoints.disarm()
    run_state_machine_as_test(
        lambda: OutboxMachine(run, subject()),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture
def run() -> Iterator[Run[Any]]:
    """A loop of the machine's own: its rules are not coroutines."""
    loop = asyncio.new_event_loop()
    yield loop.run_until_complete
    loop.close()


@pytest.fixture
async def database(databases: Databases) -> Database:
    """A library user's database, made in the session's own loop."""
    return await databases.create("library")


@pytest.fixture
def on_postgres(run: Run[Any], database: Database) -> Iterator[Callable[[], Subject]]:
    """A PostgreSQL store whose connections live in the machine's loop."""

    async def begin() -> tuple[Any, Any]:
        pool = await asyncpg.create_pool(min_size=1, max_size=2, **database.dsn)
        return pool, await asyncpg.connect(**database.admin)

    pool, admin = run(begin())
    yield lambda: PostgresSubject(pool, admin, roles=False)
    run(pool.close())
    run(admin.close())


@pytest.mark.slow
def test_the_outbox_in_memory_is_the_model(run: Run[Any]):
    explore(run, MemorySubject, examples=150, steps=40)


@pytest.mark.slow
def test_the_outbox_on_postgres_is_the_model(run: Run[Any], on_postgres: Callable[[], Subject]):
    explore(run, on_postgres, examples=25, steps=30)


@pytest.mark.slow
def test_the_outbox_in_memory_is_the_model_in_many_more_runs(run: Run[Any]):
    explore(run, MemorySubject, examples=250, steps=60)


@pytest.mark.slow
def test_the_outbox_on_postgres_is_the_model_in_many_more_runs(
    run: Run[Any], on_postgres: Callable[[], Subject]
):
    explore(run, on_postgres, examples=50, steps=50)
