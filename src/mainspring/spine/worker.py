"""Outbox to outcomes. Takes due effects under a claim, leaves each executed and its outcome settled.

If it dies here the claims run out and another worker takes the rows: a transactional executor then left nothing behind, an
external one may have acted, and acts again under the same idempotency key.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Generic, assert_never
from uuid import UUID

from mainspring import telemetry, tracing
from mainspring.faultpoints import FaultPoint, reach
from mainspring.spine.breaker import evidence_of
from mainspring.spine.effects import (
    Deferred,
    Done,
    Dropped,
    Effect,
    Failed,
    Held,
    Outcome,
    Settlement,
    Unknown,
    bury_crashed,
    checked,
    outcome_of,
    put_off,
    resolve,
)
from mainspring.spine.errors import LeaseLost, Transient
from mainspring.spine.executors import Executor, External, Transactional
from mainspring.spine.judging import EVENT_KIND
from mainspring.spine.ports import ClaimRequest, H, Store
from mainspring.spine.settler import Settler
from mainspring.spine.targets import Finished
from mainspring.spine.transaction import Transaction

log = logging.getLogger("mainspring.spine")

_TRANSIENT_TRIES = 3
_NO_SPAN = nullcontext()
# a labelled counter is looked up once, not once an effect: the kinds are those that are declared
_waited = cache(telemetry.effect_latency.labels)
_attempts = cache(telemetry.effect_attempts.labels)
_HAND_BACK_SECONDS = 5.0  # to write what is handed back takes a moment, however short the grace is
_FIRST_PATIENCE_SECONDS = 5.0
_LONGEST_PATIENCE_SECONDS = 300.0
_RESERVE_RESTS = 20.0  # times what a look for transactional effects alone has taken, when it found none


@dataclass(slots=True)
class InHand:
    """An effect that this worker holds: its task, and until when, by our own clock, the claim is surely ours."""

    effect: Effect
    trusted_until: float
    task: asyncio.Task[Finished | None] | None = None
    executed: bool = False
    traceparent: str | None = None


def _span(held: InHand) -> AbstractContextManager[object]:
    """Tell an execution; where nobody traces it is not asked for, since writing all this down costs as much as what it tells of."""
    effect = held.effect
    return tracing.span(
        f"execute {effect.kind}",
        parent=held.traceparent,
        tenant=str(effect.tenant_id),
        effect=str(effect.id),
        key=effect.key,
        attempt=effect.attempts + 1,
        waited_seconds=effect.waited_seconds,
    )


class _Undo(Exception):
    def __init__(self, outcome: Outcome) -> None:
        super().__init__(repr(outcome))
        self.outcome = outcome


class Worker(Generic[H]):
    """Executes what is due, at most `slots` at once; while one batch is being settled, the next is claimed and executed.

    Args:
        transactions_max: how many transactions executors have open at once, of whatever kind; each needs a connection.
        freed: called when it can claim again what it could not before.
    """

    def __init__(
        self,
        store: Store[H],
        executors: Mapping[str, Executor[H]],
        open_transaction: Callable[[UUID], AbstractAsyncContextManager[Transaction[H]]],
        *,
        name: str,
        slots: int,
        transactions_max: int,
        freed: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._executors = executors
        self._open = open_transaction
        self._name = name
        self._slots = slots
        self._freed = freed
        self._transactions = asyncio.Semaphore(transactions_max)
        self._settler: Settler[H] = Settler(store, open_transaction, self._let_go, freed)
        self._in_hand: dict[UUID, InHand] = {}
        self._executing = 0
        self._outside = 0  # how many of those are external
        self._crowded = False
        self._reserve_rests_until = 0.0
        self._wakes_at: float | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._after: UUID | None = None
        self._closed = asyncio.Event()
        self._saturated = False
        self._quiet = False
        self._claiming = 0
        self._patience_seconds = _FIRST_PATIENCE_SECONDS
        self._rest_until = 0.0

    @property
    def in_hand(self) -> int:
        """How many effects this worker holds."""
        return len(self._in_hand)

    @property
    def lease_seconds(self) -> Mapping[str, float]:
        """The kinds that this worker executes, with their leases."""
        return {name: executor.kind.lease_seconds for name, executor in self._executors.items()}

    async def take(self) -> int:
        """Claim into the free slots and start executing; return how many were claimed."""
        free = self._free()
        self._saturated = free <= 0
        if self._saturated or not self._executors or self._closing or self._quiet:
            return 0
        room = self._room_outside()
        self._crowded = room <= 0
        if self._crowded and self._is_resting():
            return 0
        # a claim that is on its way counts as in hand: nothing may begin to run alone meanwhile
        self._claiming += 1
        self._empty.clear()
        try:
            return await (
                self._claim_inside(free)
                if self._crowded
                else self._claim(self._request(limit=min(free, room)))
            )
        finally:
            self._claiming -= 1
            self._note_if_empty()

    async def _claim_inside(self, limit: int) -> int:
        """Claim transactional effects alone. It may have to pass over all that waits besides: then it is not done all the time."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        leases = {name: seconds for name, seconds in self.lease_seconds.items() if self._is_inside(name)}
        taken = await self._claim(replace(self._request(limit=limit), lease_seconds=leases))
        if not taken:
            self._reserve_rests_until = loop.time() + _RESERVE_RESTS * (loop.time() - asked_at)
        return taken

    def _is_resting(self) -> bool:
        """Tell whether it is too soon to look again for transactional effects alone; whoever has called for that is heard after it."""
        loop, until = asyncio.get_running_loop(), self._reserve_rests_until
        if loop.time() >= until:
            return False
        if self._wakes_at != until:
            self._wakes_at = until
            loop.call_at(until, self._freed)
        return True

    def _is_inside(self, kind: str) -> bool:
        return isinstance(self._executors[kind], Transactional)

    def _room_outside(self) -> int:
        """How many more external effects may be claimed: they may take long, and what is done in our own database must not wait.

        Where only the engine's own kind is transactional, nothing is kept back for it.
        """
        if not any(self._is_inside(name) for name in self._executors if name != EVENT_KIND.name):
            return self._slots
        return max(1, self._slots * 3 // 4) - self._outside

    def _free(self) -> int:
        """How many more may be claimed: a slot is free once its executor has answered, unless as many wait to be settled."""
        return self._slots - max(self._executing, len(self._in_hand) - self._slots)

    @asynccontextmanager
    async def transaction(self, tenant: UUID) -> AsyncIterator[Transaction[H]]:
        """Open a transaction for an external executor, in its turn: with the transactional ones, at most `transactions_max`.

        There are many more slots than connections, and what many executors wait for in the database is one lock.
        """
        async with self._transactions, self._open(tenant) as tx:
            yield tx

    async def run_once(self) -> int:
        """Claim into the free slots, and return when all that is in hand is settled."""
        taken = await self.take()
        await self._empty.wait()
        return taken

    async def run_alone(self) -> int:
        """Run one effect that has ended its workers, with nothing beside it.

        Claims nothing else until what is in hand is done; when that takes too long it claims on, and waits longer next time.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._rest_until:
            return 0
        self._quiet = True
        try:
            if not await self._until_empty(self._patience_seconds):
                # claim on for longer than was waited: one long effect must not stall all the others
                self._rest_until = loop.time() + 2 * self._patience_seconds
                self._patience_seconds = min(2 * self._patience_seconds, _LONGEST_PATIENCE_SECONDS)
                return 0
            self._patience_seconds = _FIRST_PATIENCE_SECONDS
            if self._closing:
                return 0
            taken = await self._claim(self._request(limit=1, alone=True))
            await self._until_empty()
            return taken
        finally:
            self._quiet = False
            self._freed()

    async def _until_empty(self, seconds: float | None = None) -> bool:
        """Wait until nothing is in hand, at most so long, and no longer once this worker is closing; tell whether it is so."""
        waiting = {asyncio.ensure_future(self._empty.wait()), asyncio.ensure_future(self._closed.wait())}
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        return self._empty.is_set()

    def _request(self, *, limit: int, alone: bool = False) -> ClaimRequest:
        return ClaimRequest(
            worker=self._name, lease_seconds=self.lease_seconds, limit=limit, after=self._after, alone=alone
        )

    async def _claim(self, request: ClaimRequest) -> int:
        asked_at = asyncio.get_running_loop().time()
        span = tracing.Begun("claim")
        claimed = await self._store.claim(request)
        self._after = claimed.after
        if claimed.effects:
            span.end(worker=self._name, effects=len(claimed.effects))
            traced = await self._traced(claimed.effects) if tracing.is_on() else {}
            self._begin(claimed.effects, asked_at, traced)
        return len(claimed.effects)

    async def _traced(self, effects: Sequence[Effect]) -> Mapping[tuple[UUID, int], str]:
        """Return from where the events came that owed these effects; a trace is a help, and holds nothing up."""
        events = {(one.tenant_id, one.event_seq) for one in effects if one.event_seq is not None}
        try:
            async with self._store.system("traces") as tx:
                return await self._store.traceparents(tx, sorted(events))
        except Transient as error:
            telemetry.loop_failures.labels("traces", type(error).__name__).inc()
            return {}

    def _begin(
        self, effects: Sequence[Effect], asked_at: float, traced: Mapping[tuple[UUID, int], str]
    ) -> None:
        reach(FaultPoint.WORKER_AFTER_CLAIM)
        self._empty.clear()
        # whoever slept through his lease may be given his own row again: the old run is over
        again = {effect.id for effect in effects}
        self._give_up([held for held in self._in_hand.values() if held.effect.id in again])
        loop = asyncio.get_running_loop()
        self._executing += len(effects)
        self._outside += sum(not self._is_inside(effect.kind) for effect in effects)
        for effect in effects:
            executor = self._executors[effect.kind]
            held = InHand(
                effect,
                trusted_until=asked_at + executor.kind.lease_seconds,
                traceparent=traced.get((effect.tenant_id, effect.event_seq or 0)),
            )
            self._in_hand[effect.claim_id] = held
            held.task = loop.create_task(self._handle(executor, held))
            held.task.add_done_callback(partial(self._ended, executor, held))
            _waited(effect.kind).observe(effect.waited_seconds)

    # executing ----------------------------------------------------------------------------------------------

    async def _handle(self, executor: Executor[H], held: InHand) -> Finished | None:
        """Return what came of it, with the settlement still to be written; None when it is not ours any more."""
        effect = held.effect
        buried = bury_crashed(effect, executor.kind)
        if buried is not None:
            return Finished(effect=effect, settlement=buried)
        if effect.down_seconds is not None:
            down = Deferred(f"target {effect.target} is down", after_seconds=effect.down_seconds)
            return Finished(effect=effect, settlement=self._resolve(executor, effect, down))
        try:
            with _span(held) if tracing.is_on() else _NO_SPAN:
                return await self._execute(executor, held)
        except LeaseLost:
            return None

    def _ended(self, executor: Executor[H], held: InHand, task: asyncio.Task[Finished | None]) -> None:
        """Whatever way a task ends, and were it before its first step: its slot is free, and its row is settled or let go."""
        self._executing -= 1
        self._outside -= not self._is_inside(held.effect.kind)
        if task.cancelled():
            finished = self._hand_back(executor, held) if self._closing else None
        elif (error := task.exception()) is not None:
            telemetry.loop_failures.labels("execute", type(error).__name__).inc()
            log.error("worker: %s cannot be settled: %s: %s", held.effect.id, type(error).__name__, error)
            failed = self._resolve(executor, held.effect, Failed(f"{type(error).__name__}: {error}"))
            finished = Finished(effect=held.effect, settlement=failed)
        else:
            finished = task.result()
        if finished is None or (finished.settlement is None and not held.effect.probe):
            self._let_go([held.effect])
        else:
            self._settler.submit(finished)
            self._tell_if_free()

    async def _execute(self, executor: Executor[H], held: InHand) -> Finished:
        """Run the executor; return what came of it. Of a target only external executors can tell: the others never were there."""
        effect, kind = held.effect, executor.kind
        match executor:
            case External():
                held.executed = True
                outcome = await self._run_external(executor, effect)
                reach(FaultPoint.WORKER_AFTER_EXECUTE)
                return Finished(
                    effect=effect,
                    settlement=self._resolve(executor, effect, outcome),
                    evidence=evidence_of(outcome),
                    put_off=put_off(effect, outcome, kind, random=random.random()),  # noqa: S311 - spreads a backoff
                )
            case Transactional():
                undone = await self._run_transactional(executor, effect)
                if undone is None:
                    return Finished(effect=effect, settlement=None)
                reach(FaultPoint.WORKER_AFTER_EXECUTE)
                return Finished(effect=effect, settlement=self._resolve(executor, effect, undone))
            case _:
                assert_never(executor)

    def _resolve(self, executor: Executor[H], effect: Effect, outcome: Outcome) -> Settlement:
        _attempts(effect.kind, type(outcome).__name__.lower()).inc()
        return resolve(effect, outcome, executor.kind, random=random.random())  # noqa: S311 - spreads a backoff

    async def _run_external(self, executor: External, effect: Effect) -> Outcome:
        try:
            if executor.kind.timeout_seconds is None:
                return checked(await executor.run(effect))
            async with asyncio.timeout(executor.kind.timeout_seconds):
                return checked(await executor.run(effect))
        except Exception as error:  # noqa: BLE001 - becomes the effect's outcome, which is counted
            return outcome_of(error)

    async def _run_transactional(self, executor: Transactional[H], effect: Effect) -> Outcome | None:
        """Run it and settle it in one transaction; return the outcome when that undid it, None when it committed."""
        async with self._transactions:
            for last in (*[False] * (_TRANSIENT_TRIES - 1), True):
                try:
                    await self._run_and_settle(executor, effect)
                except _Undo as undo:
                    return undo.outcome
                except LeaseLost:
                    raise
                except Transient as error:
                    if last:
                        return outcome_of(error)
                except Exception as error:  # noqa: BLE001 - becomes the effect's outcome, which is counted
                    return outcome_of(error)
                else:
                    break
        return None

    async def _run_and_settle(self, executor: Transactional[H], effect: Effect) -> None:
        async with self._open(effect.tenant_id) as tx:
            async with asyncio.timeout(executor.kind.timeout_seconds):
                outcome = checked(await executor.run(effect, tx))
            if not isinstance(outcome, Done | Dropped | Held):
                raise _Undo(outcome)
            reach(FaultPoint.WORKER_AFTER_EXECUTE)
            reach(FaultPoint.WORKER_BEFORE_SETTLE)
            settled = await self._store.settle(tx.handle, [self._resolve(executor, effect, outcome)])
            if settled.refused:
                raise LeaseLost(f"{effect.kind} {effect.key} is another's now; what was done here is undone")
        reach(FaultPoint.WORKER_AFTER_SETTLE)

    def _hand_back(self, executor: Executor[H], held: InHand) -> Finished:
        """Shutting down: what cannot have happened waits for another worker, what may have is said to be unknown."""
        buried = bury_crashed(held.effect, executor.kind)
        if buried is not None:  # not looked at yet: handed back, the next claim would not know of the crash
            return Finished(effect=held.effect, settlement=buried)
        acted = held.executed and not executor.kind.idempotent
        outcome: Outcome = (
            Unknown("cut short by a shutdown") if acted else Deferred("shutting down", after_seconds=0.0)
        )
        settlement = self._resolve(executor, held.effect, outcome)
        if held.executed:  # it may have happened, and its attempts say that there was one
            settlement = replace(settlement, plain=False)
        return Finished(effect=held.effect, settlement=settlement)

    def _let_go(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self._in_hand.pop(effect.claim_id, None)
        self._note_if_empty()
        self._tell_if_free()

    def _tell_if_free(self) -> None:
        if (
            (self._saturated or self._crowded)
            and self._free() > 0
            and (self._saturated or self._room_outside() > 0)
        ):
            self._saturated = self._crowded = False
            self._freed()

    def _note_if_empty(self) -> None:
        if not self._in_hand and not self._claiming:
            self._empty.set()

    # holding ------------------------------------------------------------------------------------------------

    async def renew(self) -> None:
        """Renew the claims of all that is in hand; cancel here what is lost, or what our own clock says may be."""
        loop = asyncio.get_running_loop()
        newest = {one.effect.id: one for one in self._in_hand.values()}
        held = [(one, self._executors[one.effect.kind].kind.lease_seconds) for one in newest.values()]
        if not held:
            return
        asked_at = loop.time()
        shortest = min(lease for _, lease in held)
        try:
            async with asyncio.timeout(shortest / 3):
                lost = await self._store.renew(
                    [(one.effect.tenant_id, one.effect.id, one.effect.claim_id, lease) for one, lease in held]
                )
        except Exception:
            # our own clock may only make us stop sooner: what may be another's by now is given up
            self._give_up([one for one, _ in held if loop.time() + shortest / 3 >= one.trusted_until])
            raise
        for one, lease in held:
            if one.effect.id not in lost:
                one.trusted_until = asked_at + lease
        self._give_up([one for one, _ in held if one.effect.id in lost])

    def _give_up(self, lost: list[InHand]) -> None:
        for one in lost:
            if one.effect.claim_id not in self._in_hand or one.task is None or one.task.done():
                continue
            telemetry.claims_lost.inc()
            one.task.cancel()

    @property
    def _closing(self) -> bool:
        return self._closed.is_set()

    def open(self) -> None:
        """Claim again after a stop."""
        self._closed.clear()

    def close(self) -> None:
        """Claim nothing more."""
        self._closed.set()

    async def stop(self, *, grace_seconds: float) -> None:
        """Finish what is in hand within the grace, then hand the rest back."""
        self.close()
        try:
            await asyncio.wait_for(self._empty.wait(), grace_seconds)
        except TimeoutError:
            for held in list(self._in_hand.values()):
                if held.task is not None:
                    held.task.cancel()
            try:
                await asyncio.wait_for(self._empty.wait(), max(grace_seconds, _HAND_BACK_SECONDS))
            except TimeoutError:
                await self._settler.stop()
                log.warning(
                    "worker: %d effects were not handed back; their leases will run out", len(self._in_hand)
                )
                ended = [one for one in self._in_hand.values() if one.task is None or one.task.done()]
                self._let_go([one.effect for one in ended])
