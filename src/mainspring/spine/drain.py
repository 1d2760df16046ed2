"""Log to outbox. Takes events past the cursors, leaves the effects that they owe, the cursors moved, in one transaction.

If it dies here nothing has happened: the cursors stand where they stood, and the next round reads the same events.
A second drain meanwhile takes other tenants, since cursors are locked and locked ones are skipped. A commit in this process says
whose log has grown, and that one is looked at; all of them are when the floor tick has found that any lags.

One tenant may have any number of rules that match. So a round ends when it owes enough or has judged for long enough (`judging`): what
it has is committed, and the next one begins behind the tenant at which it ended. What fails all the same is tried again with half as
much, behind the tenant that came first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic
from uuid import UUID

from mainspring import telemetry, tracing
from mainspring.faultpoints import FaultPoint, reach
from mainspring.spine.effects import (
    Deferred,
    Done,
    Effect,
    Failed,
    NewEffect,
    Outcome,
)
from mainspring.spine.errors import OutcomeUnknown, Transient
from mainspring.spine.events import Event
from mainspring.spine.executors import Transactional
from mainspring.spine.judging import EVENT_KIND, OWED_MAX, Asked, Judging, Numbered, Owed, owed_at, owed_by
from mainspring.spine.ports import Cursor, H, Obligation, Store
from mainspring.spine.transaction import Transaction

log = logging.getLogger("mainspring.spine")

# Raised, together with the schema's by a migration, whenever an older drain would make something else of a log: a new kind of event that
# owes, a new term, act or option of rules (tests/test_engine_version.py says what each version knows).
ENGINE_VERSION = 3
TENANTS_MAX = 200
EVENTS_MAX = 500
EVENTS_A_TENANT_MAX = 200
_HALVINGS_MAX = 9  # until a round takes one event
_LEFT_SECONDS = 5.0  # until a newer process may have taken what this one might misjudge

Complete = Callable[[NewEffect], NewEffect]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What one round came to; `reached` is, by tenant, up to where its log is drained."""

    events: int
    owed: int
    reached: Mapping[UUID, int] = field(default_factory=dict)


class Drain(Generic[H]):
    """The step from the log to the outbox."""

    def __init__(
        self,
        store: Store[H],
        obligations: Sequence[Obligation[H]],
        *,
        engine_version: int = ENGINE_VERSION,
        complete: Complete = lambda effect: effect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`complete` fills in what is the same for all effects of a kind; `clock` says, in seconds, for how long was judged."""
        self._store = store
        self._complete = complete
        self._judging = Judging(obligations, store.savepoint, clock=clock)
        self._engine_version = engine_version
        self._after: UUID | None = None
        self._called: set[UUID] = set()
        self._everywhere = True
        self._halvings = 0

    def call(self, tenant: UUID) -> None:
        """Note that a tenant's log has just grown; the next round looks at it."""
        self._called.add(tenant)

    def look_everywhere(self) -> None:
        """Have the next round look at all tenants, and those after it until nothing lags."""
        self._everywhere = True

    async def run_once(self) -> Drained:
        """Drain one round: of the tenants that called, or of all that lag, starting behind the last one served."""
        called, self._called = self._called, set()
        everywhere, self._everywhere = self._everywhere or not called, False
        try:
            drained = await self._round(None if everywhere else sorted(called))
        except BaseException:
            self._everywhere = True
            self._halvings = min(self._halvings + 1, _HALVINGS_MAX)
            raise
        self._halvings = max(self._halvings - 1, 0)
        self._everywhere = self._everywhere or (everywhere and drained.events > 0)
        return drained

    async def _round(self, called: Sequence[UUID] | None) -> Drained:
        """Drain one round, of all tenants where none called."""
        async with self._store.system("drain") as tx:
            cursors = await self._lock(tx, called)
            if not cursors:
                return Drained(events=0, owed=0)
            reach(FaultPoint.DRAIN_AFTER_LOCK)
            self._after = cursors[0].tenant_id  # if this round fails, the next begins with another tenant
            limit = self._less(EVENTS_MAX)
            read = await self._store.read_lagging(
                tx, cursors, per_tenant=self._less(EVENTS_A_TENANT_MAX), limit=limit
            )
            events = contiguous(cursors, read)
            with tracing.span("drain", links=[event.traceparent for event in events], events=len(events)):
                drained, owed = await self._owe(tx, events)
                reach(FaultPoint.DRAIN_AFTER_INSERT)
                await self._store.advance(tx, moves(cursors, drained), engine_version=self._engine_version)
            reach(FaultPoint.DRAIN_BEFORE_COMMIT)
        reach(FaultPoint.DRAIN_AFTER_COMMIT)
        if len(drained) < len(events):
            # it had enough there, whatever is left: now it is the others' turn
            self._after = drained[-1].tenant_id
        elif called is None:
            # the last one read, drained or not: tenants that stand still must not use up every round
            self._after = read[-1].tenant_id if read else cursors[-1].tenant_id
        if called is not None:
            # once more: what they have appended meanwhile, another drain has passed over while they were locked here
            self._called |= {event.tenant_id for event in events}
            if len(read) >= limit:  # and those to which it did not come
                self._called |= {cursor.tenant_id for cursor in cursors} - {event.tenant_id for event in read}
        reached = {event.tenant_id: event.seq for event in drained}  # in the order of their seqs
        return Drained(events=len(drained), owed=owed, reached=reached)

    def _less(self, most: int) -> int:
        """Return how much of something a round may take now: half as much for each that failed, and not nothing."""
        return max(1, most >> self._halvings)

    async def _lock(self, tx: H, called: Sequence[UUID] | None) -> Sequence[Cursor]:
        if called is None:
            return await self._store.lock_lagging(
                tx, after=self._after, limit=TENANTS_MAX, engine_version=self._engine_version
            )
        called = sorted(called, key=self._turn)
        now, later = called[:TENANTS_MAX], called[TENANTS_MAX:]
        self._called.update(later)
        cursors = await self._store.lock_called(tx, now, engine_version=self._engine_version)
        return sorted(cursors, key=lambda cursor: self._turn(cursor.tenant_id))

    def _turn(self, tenant: UUID) -> tuple[bool, UUID]:
        """Order tenants, beginning behind the one at which the last round ended."""
        return self._after is not None and tenant <= self._after, tenant

    async def _owe(self, tx: H, events: Sequence[Event]) -> tuple[Sequence[Event], int]:
        """Owe what the events owe; return the events that were taken and how many effects are new."""
        try:
            async with self._store.savepoint(tx):
                numbered = list(enumerate(events))
                asked = await self._judging.load(tx, numbered)
                taken = await self._judging.judge(numbered, asked, owed_max=self._less(OWED_MAX))
                return events[: len(taken)], await self._insert(tx, owed_at(range(len(taken)), asked))
        except (Transient, OutcomeUnknown):
            raise
        except Exception as error:  # noqa: BLE001 - counted when it is pinned to its event, below
            log.warning("drain: looking for the event behind %s: %s", type(error).__name__, error)
        return await self._owe_around_poison(tx, events)

    async def _owe_around_poison(self, tx: H, events: Sequence[Event]) -> tuple[Sequence[Event], int]:
        """The same, where some event breaks some obligation: that one is to be asked again, and the others' rows stand."""
        numbered = list(enumerate(events))
        asked = await self._judging.load_apart(tx, numbered)
        taken = await self._judging.judge(numbered, asked, owed_max=self._less(OWED_MAX), around_poison=tx)
        new = 0
        for one in asked:
            new += await self._insert_apart(tx, one, taken)
        return events[: len(taken)], new

    async def _insert_apart(self, tx: H, one: Asked[H], events: Sequence[Numbered]) -> int:
        """Insert what one obligation owes for these events; what the store refuses has broken it, too."""
        new = 0

        async def insert(some: Sequence[Numbered]) -> None:
            nonlocal new
            new += await self._insert(tx, owed_at((n for n, _ in some), [one]))

        refused = await self._judging.apart(tx, events, insert)
        for n, event in events:
            if n in refused:
                one.breaks(n, event, refused[n])
        new += await self._insert(tx, owed_at(refused, [one]))
        for n, event in events:
            if (error_at := one.broken.get(n)) is not None:
                _say_poisoned(one.obligation.name, event, error_at)
        return new

    async def _insert(self, tx: H, owed: Owed) -> int:
        if not owed:
            return 0
        whole = [(tenant, self._complete(effect)) for tenant, effect in owed]
        return await self._store.owe_drained(
            tx, sorted(whole, key=lambda row: (row[0], row[1].kind, row[1].key))
        )


def _say_poisoned(obligation: str, event: Event, error: Exception) -> None:
    telemetry.drain_poisoned.labels(obligation).inc()
    log.error("drain: %s cannot judge event %d: %s: %s", obligation, event.seq, type(error).__name__, error)


def contiguous(cursors: Sequence[Cursor], events: Sequence[Event]) -> list[Event]:
    """Return the events that follow their cursor without a hole; a tenant with one is left where it stands, and counted."""
    expected = {cursor.tenant_id: cursor.position + 1 for cursor in cursors}
    kept: list[Event] = []
    broken: set[UUID] = set()
    for event in events:
        if event.tenant_id in broken:
            continue
        if event.seq != expected[event.tenant_id]:
            broken.add(event.tenant_id)
            telemetry.log_holes.inc()
            log.error("drain: log of %s has a hole before %d; it is not drained", event.tenant_id, event.seq)
            continue
        expected[event.tenant_id] += 1
        kept.append(event)
    return kept


def moves(cursors: Sequence[Cursor], drained: Iterable[Event]) -> list[tuple[Cursor, int]]:
    """Return where each cursor goes; those whose events were not taken stay and are left out."""
    last: dict[UUID, int] = {}
    for event in drained:
        last[event.tenant_id] = event.seq
    return [(cursor, last[cursor.tenant_id]) for cursor in cursors if cursor.tenant_id in last]


def ask_again(
    store: Store[H],
    obligations: Sequence[Obligation[H]],
    *,
    complete: Complete,
    engine_version: int = ENGINE_VERSION,
) -> Transactional[H]:
    """Make the executor of kind `event`: it asks one obligation about one event again, and fails for good when that fails.

    Like the drain, it judges nothing for a schema that asks for a newer one: that is left to the newer.
    """

    async def run(effect: Effect, tx: Transaction[H]) -> Outcome:
        asked_for = await store.required_engine_version(tx.handle)
        if asked_for > engine_version:
            reason = (
                f"left to a newer server: the engine version is {asked_for}, and this one's {engine_version}"
            )
            return Deferred(reason, after_seconds=_LEFT_SECONDS)
        name = effect.payload["obligation"]
        obligation = next((known for known in obligations if known.name == name), None)
        if obligation is None or effect.event_seq is None:
            return Failed(f"no obligation is named {name}")
        found = await store.events_at(tx.handle, effect.tenant_id, [effect.event_seq])
        event = found.get(effect.event_seq)
        if event is None:
            return Failed(f"event {effect.event_seq} is not kept any more")
        try:
            context = await obligation.load(tx.handle, [event])
            owed = owed_by(obligation, event, obligation.judge(event, context))
            if owed:
                new = await store.owe_absent(tx.handle, [(tx.tenant, complete(effect)) for effect in owed])
                tx.owed_again(new)
        except (Transient, OutcomeUnknown):
            raise
        except Exception as error:  # noqa: BLE001 - becomes the row's outcome
            return Failed(f"{type(error).__name__}: {error}")
        return Done()

    return Transactional(EVENT_KIND, run)
