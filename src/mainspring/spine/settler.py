"""Outcomes to rows. Takes settlements as they come, leaves them written in batches, each fenced by its claim.

If it dies here the rows stay claimed until their lease runs out, and are claimed again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import groupby
from typing import Generic
from uuid import UUID

from mainspring import telemetry, tracing
from mainspring.faultpoints import FaultPoint, reach
from mainspring.spine.effects import Effect, Move, Settlement
from mainspring.spine.errors import OutcomeUnknown, Transient
from mainspring.spine.events import NO_CAUSE, Event, NewEvent
from mainspring.spine.judging import EVENT_KIND, UNTOLD
from mainspring.spine.ports import H, Store
from mainspring.spine.targets import Finished, Targets
from mainspring.spine.transaction import Transaction

log = logging.getLogger("mainspring.spine")

Settling = tuple[Effect, Settlement]
Write = Callable[[Sequence[Settling]], Awaitable[None]]
_RETRY_PAUSE_SECONDS = 0.5
_BURIALS_MAX = 4  # each holds a connection while it waits for its tenant's log


class Settler(Generic[H]):
    """Writes settlements: while one batch is on its way, the next one gathers.

    Args:
        open_transaction: opens a tenant's transaction, for burials, which append `effect.dead`.
        settled: called with the effects whose settlements were written or refused.
        reopened: called when a target that was down works again.
    """

    def __init__(
        self,
        store: Store[H],
        open_transaction: Callable[[UUID], AbstractAsyncContextManager[Transaction[H]]],
        settled: Callable[[Sequence[Effect]], None],
        reopened: Callable[[], None],
    ) -> None:
        self._store = store
        self._open = open_transaction
        self._settled = settled
        self._targets: Targets[H] = Targets(store, reopened)
        self._waiting: list[Finished] = []
        self._flushing: asyncio.Task[None] | None = None
        self._burying: set[asyncio.Task[None]] = set()
        self._graves = asyncio.Semaphore(_BURIALS_MAX)

    def submit(self, finished: Finished) -> None:
        """Have what came of an effect written soon."""
        self._waiting.append(finished)
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush(), name="mainspring settle")

    async def _flush(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._write(batch)
        finally:
            self._flushing = None

    async def _write(self, batch: Sequence[Finished]) -> None:
        reach(FaultPoint.WORKER_BEFORE_SETTLE)
        judged = await self._judged(batch)
        self._settled([one.effect for one in judged if one.settlement is None])
        with tracing.span("settle", effects=len(batch)):
            await self._settle_all(
                [(one.effect, one.settlement) for one in judged if one.settlement is not None]
            )
        reach(FaultPoint.WORKER_AFTER_SETTLE)

    async def _judged(self, batch: Sequence[Finished]) -> Sequence[Finished]:
        """Have the breakers of a batch's targets written; an outage is waited out, since it decides what the failures cost."""
        while True:
            try:
                return await self._targets.judge(batch)
            except (Transient, OutcomeUnknown) as error:
                telemetry.loop_failures.labels("breakers", type(error).__name__).inc()
                await asyncio.sleep(_RETRY_PAUSE_SECONDS)
            except Exception as error:  # noqa: BLE001 - a breaker is a help; without it the effects are settled all the same
                telemetry.loop_failures.labels("breakers", type(error).__name__).inc()
                log.error("settle: breakers cannot be written: %s: %s", type(error).__name__, error)
                return batch

    async def _settle_all(self, batch: Sequence[Settling]) -> None:
        # those that simply succeeded go by themselves: a store may have a shorter way for them
        plain = [finished for finished in batch if finished[1].plain]
        other = [
            finished for finished in batch if not finished[1].plain and finished[1].move is not Move.BURY
        ]
        dead = sorted((finished for finished in batch if finished[1].move is Move.BURY), key=_by_tenant)
        for alive in filter(None, (plain, other)):
            await self._until_written(alive, self._settle)
        for _, burials in groupby(dead, key=_by_tenant):
            # a burial waits for its tenant's log; nobody else's outcome waits with it
            task = asyncio.create_task(self._until_buried(list(burials)), name="mainspring bury")
            self._burying.add(task)
            task.add_done_callback(self._burying.discard)

    async def _until_buried(self, batch: Sequence[Settling]) -> None:
        async with self._graves:
            await self._until_written(batch, self._bury)

    async def _until_written(self, batch: Sequence[Settling], write: Write) -> None:
        """An outage is waited out: until another claims, a late settle is as good as an early one."""
        while True:
            try:
                await write(batch)
            except (Transient, OutcomeUnknown) as error:
                telemetry.loop_failures.labels("settle", type(error).__name__).inc()
                await asyncio.sleep(_RETRY_PAUSE_SECONDS)
            except Exception as error:  # noqa: BLE001 - counted in _one_by_one, where it is pinned to its row
                await self._one_by_one(batch, write, error)
                return
            else:
                self._settled([effect for effect, _ in batch])
                return

    async def _one_by_one(self, batch: Sequence[Settling], write: Write, error: Exception) -> None:
        """What cannot be written spoils no neighbour: it is let go by itself, and its lease runs out."""
        if len(batch) > 1:
            for one in batch:
                await self._until_written([one], write)
            return
        [(effect, _)] = batch
        telemetry.loop_failures.labels("settle", type(error).__name__).inc()
        if write == self._bury:
            # what cannot be told in its tenant's log is dead all the same
            log.error("settle: the end of %s cannot be told: %s: %s", effect.id, type(error).__name__, error)
            await self._until_written(batch, self._settle)
            return
        log.error(
            "settle: the outcome of %s cannot be stored: %s: %s", effect.id, type(error).__name__, error
        )
        self._settled([effect])

    async def stop(self) -> None:
        """Write no more of what was submitted until now; what is unwritten is left to its lease."""
        self._waiting.clear()
        tasks = [task for task in (self._flushing, *self._burying) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _settle(self, batch: Sequence[Settling]) -> None:
        async with self._store.system("settle") as tx:
            await self._store.settle(
                tx, sorted((settlement for _, settlement in batch), key=lambda row: row.id)
            )

    async def _bury(self, batch: Sequence[Settling]) -> None:
        """Settle the dead of one tenant, and say so in its log, in one transaction."""
        async with self._open(batch[0][0].tenant_id) as tx:
            settled = await self._store.settle(
                tx.handle, sorted((row for _, row in batch), key=lambda row: row.id)
            )
            buried = [finished for finished in batch if finished[0].id in settled.accepted]
            seqs = {effect.event_seq for effect, _ in buried if effect.event_seq is not None}
            causes = await self._store.events_at(tx.handle, tx.tenant, seqs) if seqs else {}
            for effect, settlement in buried:
                if effect.kind == EVENT_KIND.name and effect.payload.get(UNTOLD):
                    continue
                tx.append(dead_event(effect, settlement, causes.get(effect.event_seq or 0)))


def dead_event(effect: Effect, settlement: Settlement, cause: Event | None) -> NewEvent:
    """Return what is said of an effect that has just died; `cause` is the event that owed it."""
    facts = {
        "id": str(effect.id),
        "kind": effect.kind,
        "key": effect.key,
        "event_seq": effect.event_seq,
        "rule_id": str(effect.rule_id) if effect.rule_id else None,
        "attempts": settlement.attempts,
        "outcome": settlement.outcome,
        "error": settlement.error,
    }
    via = (effect.rule_id,) if effect.rule_id else ()
    return NewEvent(
        "effect.dead",
        subject=str(effect.id),
        data={"effect": facts},
        cause=NO_CAUSE if cause is None else cause.as_cause(via=via),
    )


def _by_tenant(finished: Settling) -> UUID:
    return finished[0].tenant_id
