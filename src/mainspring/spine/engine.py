"""The engine: what its user declares, the transactions that he opens, and the loops that carry it all out."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import UUID

from mainspring import telemetry
from mainspring.faultpoints import FaultPoint, reach
from mainspring.spine.drain import Drain, Drained, ask_again
from mainspring.spine.effects import Effect, EffectKind, NewEffect, Outcome
from mainspring.spine.errors import Misuse, Transient
from mainspring.spine.events import Event, Written
from mainspring.spine.executors import Executor, External, Transactional
from mainspring.spine.janitor import Janitor
from mainspring.spine.ports import H, Obligation, Store, Verdict
from mainspring.spine.recovery import Recovery
from mainspring.spine.retry import DEFAULT_BACKOFF, Backoff
from mainspring.spine.service import Service
from mainspring.spine.transaction import Transaction
from mainspring.spine.worker import Worker

OBLIGATION_NAME_LENGTH_MAX = 200  # it is part of a key, behind a seq

ExternalRun = TypeVar("ExternalRun", bound=Callable[[Effect], Awaitable[Outcome]])
TransactionalRun: TypeAlias = Callable[[Effect, Transaction[H]], Awaitable[Outcome]]
Judge = TypeVar("Judge", bound=Callable[[Event], Verdict])


@dataclass(frozen=True, slots=True, kw_only=True)
class SpineSettings:
    """How the loops run; validated together.

    Args:
        slots: effects that one process executes at once.
        transactions_max: transactions that executors have open at once; each holds a connection of the pool.
        tick_seconds: how often the floor tick asks whether anything is due.
    """

    slots: int = 200
    transactions_max: int = 4
    tick_seconds: float = 1.0
    due_sweep_seconds: float = 30.0
    done_days: float = 7.0
    grace_seconds: float = 10.0

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= 200:
            raise Misuse("slots is 1 to 200")
        if min(self.tick_seconds, self.due_sweep_seconds, self.done_days) <= 0 or self.grace_seconds < 0:
            raise Misuse(
                "tick_seconds, due_sweep_seconds and done_days are positive, grace_seconds is not negative"
            )
        if self.transactions_max < 1:
            raise Misuse("transactions_max is at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What `run_once` came to."""

    drained: int
    executed: int


@dataclass(frozen=True, slots=True)
class _PureObligation(Generic[H]):
    """An obligation whose judgement needs nothing but the event."""

    name: str
    kinds: frozenset[str] | None
    judgement: Callable[[Event], Verdict]

    async def load(self, _tx: H, _events: Any) -> None:
        return None

    def judge(self, event: Event, _context: Any) -> Verdict:
        return self.judgement(event)


class Spine(Generic[H]):
    """The engine on a store: declare what events owe and how effects are done, then run it in any number of processes.

    Example:
        spine = Spine(PostgresStore(pool))

        @spine.owes("order.paid")
        def receipt(event): return Owes(NewEffect("send_receipt", key=event.subject))

        @spine.effect("send_receipt", target="smtp")
        async def send_receipt(effect): ...; return Done()
    """

    def __init__(
        self, store: Store[H], settings: SpineSettings | None = None, *, name: str | None = None
    ) -> None:
        self.store = store
        self.settings = settings or SpineSettings()
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._obligations: list[Obligation[H]] = []
        self._executors: dict[str, Executor[H]] = {}
        self._offered: dict[str, EffectKind] = {}
        self._listeners: list[Callable[[UUID, tuple[str, ...]], None]] = []
        self._owed_listeners: list[Callable[[], None]] = []
        self._written_listeners: list[Callable[[UUID, tuple[Written, ...]], None]] = []
        self._drained_listeners: list[Callable[[Drained], None]] = []
        self._catching_up: list[asyncio.Future[None]] = []
        self.drain: Drain[H] = Drain(store, self._obligations, complete=self._complete)
        self.worker: Worker[H] = Worker(
            store,
            self._executors,
            self.open,
            name=self.name,
            slots=self.settings.slots,
            transactions_max=self.settings.transactions_max,
            freed=self._slot_freed,
        )
        self.janitor: Janitor[H] = Janitor(store, done_days=self.settings.done_days)
        self._drain_loop = Service("drain", self._drain_round, every_seconds=None)
        self._worker_loop = Service("worker", self._worker_round, every_seconds=None)
        self._alone_loop = Service("alone", self._alone_round, every_seconds=None)
        self.recovery: Recovery[H] = Recovery(
            store,
            self.worker,
            poke_drain=self._drain_everywhere,
            poke_worker=self._worker_loop.poke,
            poke_alone=self._alone_loop.poke,
        )
        self._loops = [
            self._drain_loop,
            self._worker_loop,
            self._alone_loop,
            Service("tick", self.recovery.run_once, every_seconds=self.settings.tick_seconds),
            Service("janitor", self.janitor.run_once, every_seconds=self.settings.due_sweep_seconds),
        ]
        self._renew_loop: Service | None = None
        self.register_executor(ask_again(store, self._obligations, complete=self._complete))

    # declaring ----------------------------------------------------------------------------------------------

    def owes(self, *kinds: str, name: str | None = None) -> Callable[[Judge], Judge]:
        """Declare, as a pure function of the event, what events of these kinds owe."""

        def declare(judge: Judge) -> Judge:
            own_name = name or str(getattr(judge, "__name__", "obligation"))
            self.register_obligation(_PureObligation(own_name, frozenset(kinds) or None, judge))
            return judge

        return declare

    def effect(
        self,
        kind: str,
        *,
        target: str = "",
        idempotent: bool = True,
        max_attempts: int = 12,
        lease_seconds: float = 60.0,
        timeout_seconds: float | None = None,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> Callable[[ExternalRun], ExternalRun]:
        """Declare how effects of a kind are done, out in the world: at least once, `effect.idempotency_key` in hand.

        Args:
            kind: the effects' kind; one executor a kind.
            target: the thing outside that it depends on, as smtp.
            idempotent: doing it twice is as good as once. If not, one whose end is unknown is dead, and a person decides.
            max_attempts: failed attempts after which it is dead.
            lease_seconds: how long a claim lasts unless it is renewed, every third of it. After a crash it is this long
                until another worker takes the effect.
            timeout_seconds: after how long an attempt is cut off, its end unknown; never by default.
            backoff: how long it waits between attempts.
        """
        declared = EffectKind(
            name=kind, target=target, idempotent=idempotent, max_attempts=max_attempts, lease_seconds=lease_seconds,
            timeout_seconds=timeout_seconds, backoff=backoff,
        )  # fmt: skip

        def declare(run: ExternalRun) -> ExternalRun:
            self.register_executor(External(declared, run))
            return run

        return declare

    def transactional_effect(
        self,
        kind: str,
        *,
        max_attempts: int = 12,
        lease_seconds: float = 10.0,
        timeout_seconds: float | None = None,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> Callable[[TransactionalRun[H]], TransactionalRun[H]]:
        """Declare how effects of a kind are done inside the database: their writes and the settle commit together.

        The function gets the effect and the open transaction. What it writes stands when it answers Done, Dropped or Held.

        Args:
            kind: the effects' kind; one executor a kind.
            max_attempts: failed attempts after which it is dead.
            lease_seconds: how long a claim lasts unless it is renewed, every third of it. After a crash it is this long
                until another worker takes the effect.
            timeout_seconds: after how long an attempt is rolled back; never by default.
            backoff: how long it waits between attempts.
        """
        declared = EffectKind(
            name=kind, transactional=True, max_attempts=max_attempts, lease_seconds=lease_seconds,
            timeout_seconds=timeout_seconds, backoff=backoff,
        )  # fmt: skip

        def declare(run: TransactionalRun[H]) -> TransactionalRun[H]:
            self.register_executor(Transactional(declared, run))
            return run

        return declare

    def register_obligation(self, obligation: Obligation[H]) -> None:
        """Add an obligation; its name is its own."""
        if any(known.name == obligation.name for known in self._obligations):
            raise Misuse(f"an obligation named {obligation.name} is declared already")
        if not 0 < len(obligation.name) <= OBLIGATION_NAME_LENGTH_MAX:
            raise Misuse(f"an obligation's name has 1 to {OBLIGATION_NAME_LENGTH_MAX} characters")
        self._obligations.append(obligation)

    def register_executor(self, executor: Executor[H]) -> None:
        """Add how a kind is done; one executor a kind."""
        if executor.kind.name in self._executors:
            raise Misuse(f"kind {executor.kind.name} has an executor already")
        self._executors[executor.kind.name] = executor

    def register_offered(self, kind: EffectKind) -> None:
        """Add a kind that is not executed but offered: somebody else hands its effects to their recipients, and settles them."""
        self._offered[kind.name] = kind

    def _complete(self, effect: NewEffect) -> NewEffect:
        """Return an effect with its kind's target, if it names none. A process that knows the kind alone can say.

        Raises Misuse for one that is offered and that nobody here hands to anybody: it would be owed for ever.
        """
        if effect.family == "offered" and effect.kind not in self._offered:
            raise Misuse(f"nobody hands effects of kind {effect.kind} to their recipients")
        executor = None if effect.target else self._executors.get(effect.kind)
        return replace(effect, target=executor.kind.target) if executor and executor.kind.target else effect

    def register_loop(
        self, name: str, run_once: Callable[[], Awaitable[bool]], *, every_seconds: float
    ) -> Service:
        """Add a loop that starts and stops with the engine: a sweep of a room's own."""
        loop = Service(name, run_once, every_seconds=every_seconds)
        self._loops.append(loop)
        return loop

    def on_commit(self, listener: Callable[[UUID, tuple[str, ...]], None]) -> None:
        """Call `listener(tenant, kinds)` after each commit in this process that appended events."""
        self._listeners.append(listener)

    def on_owed(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each round of this process's drain that has owed something."""
        self._owed_listeners.append(listener)

    def on_written(self, listener: Callable[[UUID, tuple[Written, ...]], None]) -> None:
        """Call `listener(tenant, written)` after each commit in this process that appended events: for who tells other processes."""
        self._written_listeners.append(listener)

    def on_drained(self, listener: Callable[[Drained], None]) -> None:
        """Call `listener` after each round of this process's drain that has drained something: for who tells other processes."""
        self._drained_listeners.append(listener)

    # what other processes tell ------------------------------------------------------------------------------

    def heard(self, tenant: UUID, kinds: tuple[str, ...]) -> None:
        """Another process has committed: whoever waits here for what it appended looks. Nothing is believed but that it is time to."""
        for listener in self._listeners:
            listener(tenant, kinds)

    def heard_owed(self) -> None:
        """Another process's drain has owed something: whoever waits here for it looks."""
        for listener in self._owed_listeners:
            listener()

    def look_everywhere(self) -> None:
        """Something may have been missed: drain whatever lags, and have every loop look, and with them whoever waits."""
        self._drain_everywhere()
        for loop in self._loops:
            loop.poke()

    async def catch_up(self, tenants: Iterable[UUID]) -> None:
        """Have the drain look at these tenants; return once a round that began after this call has ended. Raises what it raised."""
        for tenant in tenants:
            self.drain.call(tenant)
        ended = asyncio.get_running_loop().create_future()
        self._catching_up.append(ended)
        self._drain_loop.poke()
        await ended

    # transactions -------------------------------------------------------------------------------------------

    async def create_tenant(self, tenant: UUID, name: str) -> bool:
        """Bring a tenant and its log into being; False when it exists already."""
        async with self.store.system("create tenant") as tx:
            return await self.store.create_tenant(tx, tenant, name)

    @asynccontextmanager
    async def open(self, tenant: UUID) -> AsyncIterator[Transaction[H]]:
        """Open a transaction of a tenant: what it changes, appends and owes commits together when the block ends."""
        async with self.store.tenant(tenant) as handle:
            tx = Transaction(self.store, handle, tenant, complete=self._complete)
            yield tx
            await tx.write_events()
        self._committed(tx)

    @asynccontextmanager
    async def transaction(self, connection: Any, tenant: UUID) -> AsyncIterator[Transaction[H]]:
        """The same on your own connection: your statements and ours commit together.

        Joined to a transaction that is open already, the events are written when the block ends, and what they owe is
        found by the floor tick once you commit. Events hold their tenant's log until then: commit soon.
        """
        async with self.store.adopt(connection, tenant) as handle:
            tx = Transaction(self.store, handle, tenant, complete=self._complete)
            yield tx
            await tx.write_events()
        self._committed(tx)

    def _committed(self, tx: Transaction[H]) -> None:
        if tx.appended:
            reach(FaultPoint.APPEND_AFTER_COMMIT)
            telemetry.count_appended(tx.appended_kinds)
            self.drain.call(tx.tenant)
            self._drain_loop.poke()
            for listener in self._listeners:
                listener(tx.tenant, tx.appended_kinds)
            for tell in self._written_listeners:
                tell(tx.tenant, tx.written)
        if tx.has_owed:
            self._worker_loop.poke()

    # running ------------------------------------------------------------------------------------------------

    async def run_once(self) -> Ran:
        """Drain what lags and execute what is due, until neither is left; for tests and for cron.

        What takes long keeps its claim: claims are renewed meanwhile.
        """
        if self._renew_loop is not None:  # started: its loops renew, and are the ones to end
            return await self._until_nothing_is_left()
        self.worker.open()
        renewing = self._renewal()
        renewing.start()
        try:
            return await self._until_nothing_is_left()
        finally:
            await renewing.stop()

    async def _until_nothing_is_left(self) -> Ran:
        drained = executed = 0
        while True:
            self.drain.look_everywhere()
            round_ = await self.drain.run_once()
            taken = await self.worker.run_once() or await self.worker.run_alone()
            drained += round_.events
            executed += taken
            if not round_.events and not taken:
                return Ran(drained=drained, executed=executed)

    async def start(self) -> None:
        """Start the loops; an engine of every process that has started carries on what any other left.

        It may be started again once it is stopped. Raises Misuse when it runs.
        """
        if self._renew_loop is not None:
            raise Misuse("this engine runs already, or is being stopped")
        self.worker.open()
        self._renew_loop = self._renewal()
        for loop in (*self._loops, self._renew_loop):
            loop.start()
        self._drain_everywhere()
        self._worker_loop.poke()

    async def stop(self) -> None:
        """Stop claiming, finish what is in hand within the grace, hand the rest back, end the loops."""
        self.worker.close()
        await asyncio.gather(*(loop.stop() for loop in self._loops))
        await self.worker.stop(grace_seconds=self.settings.grace_seconds)
        if self._renew_loop is not None:
            await self._renew_loop.stop()
            self._renew_loop = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the loops for the length of a block."""
        await self.start()
        try:
            yield
        finally:
            await self.stop()

    def _renewal(self) -> Service:
        shortest = min(executor.kind.lease_seconds for executor in self._executors.values())
        return Service("renew", self._renew_round, every_seconds=shortest / 3, at_once=False)

    def _drain_everywhere(self) -> None:
        self.drain.look_everywhere()
        self._drain_loop.poke()

    async def _drain_round(self) -> bool:
        waiting, self._catching_up = self._catching_up, []
        try:
            drained = await self.drain.run_once()
        except BaseException as error:
            _end(waiting, error)
            raise
        _end(waiting)
        if drained.events:
            for tell in self._drained_listeners:
                tell(drained)
        if drained.owed:
            self._worker_loop.poke()
            for listener in self._owed_listeners:
                listener()
        return drained.events > 0

    async def _worker_round(self) -> bool:
        return await self.worker.take() > 0

    async def _alone_round(self) -> bool:
        # asked again here, since the loop also runs when it starts: waiting for an empty hand holds up everything else
        due = await self.store.due(list(self.worker.lease_seconds))
        return due.alone and await self.worker.run_alone() > 0

    def _slot_freed(self) -> None:
        self._worker_loop.poke()

    async def _renew_round(self) -> bool:
        await self.worker.renew()
        return False


def _end(waiting: Iterable[asyncio.Future[None]], error: BaseException | None = None) -> None:
    """Tell those who wait for a round how it has ended; one that was cut short is as one that found no database."""
    for one in waiting:
        if one.done():
            continue
        if error is None:
            one.set_result(None)
        else:
            one.set_exception(error if isinstance(error, Exception) else Transient("the drain was stopped"))
