"""Log to outbox. Takes events past the cursors, leaves the effects that they owe, the cursors moved, in one transaction.

If it dies here nothing has happened: the cursors stand where they stood, and the next round reads the same events.
A second drain meanwhile takes other tenants, since cursors are locked and locked ones are skipped. A commit in this process says
whose log has grown, and that one is looked at; all of them are when the floor tick has found that any lags.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic
from uuid import UUID

from mainspring import telemetry, tracing
from mainspring.faultpoints import FaultPoint, reach
from mainspring.spine.effects import Done, Effect, EffectKind, Failed, NewEffect, Outcome, check_executed
from mainspring.spine.errors import Misuse, OutcomeUnknown, Transient
from mainspring.spine.events import Event
from mainspring.spine.executors import Transactional
from mainspring.spine.ports import Cursor, H, NotOwed, Obligation, Owes, Store
from mainspring.spine.transaction import Transaction

log = logging.getLogger("mainspring.spine")

# Raised, together with the schema's by a migration, whenever an older drain would make something else of a log: a new kind of event that
# owes, a new term, act or option of rules (tests/test_engine_version.py says what each version knows).
ENGINE_VERSION = 2
TENANTS_MAX = 200
EVENTS_MAX = 500
EVENTS_A_TENANT_MAX = 200
OWED_MAX = 5_000

EVENT_KIND = EffectKind(name="event", transactional=True, lease_seconds=10.0)
# In the payload of a row whose death no event tells: an obligation that breaks on every event would break on that one, too, and on
# the next, for ever.
UNTOLD = "untold"

Owed = list[tuple[UUID, NewEffect]]
Complete = Callable[[NewEffect], NewEffect]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What one round came to."""

    events: int
    owed: int


class Drain(Generic[H]):
    """The step from the log to the outbox."""

    def __init__(
        self,
        store: Store[H],
        obligations: Sequence[Obligation[H]],
        *,
        engine_version: int = ENGINE_VERSION,
        complete: Complete = lambda effect: effect,
    ) -> None:
        """`complete` fills in what is the same for all effects of a kind."""
        self._store = store
        self._complete = complete
        self._obligations = obligations
        self._engine_version = engine_version
        self._after: UUID | None = None
        self._called: set[UUID] = set()
        self._everywhere = True

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
            raise
        self._everywhere = self._everywhere or (everywhere and drained.events > 0)
        return drained

    async def _round(self, called: Sequence[UUID] | None) -> Drained:
        """Drain one round, of all tenants where none called."""
        async with self._store.system("drain") as tx:
            cursors = await self._lock(tx, called)
            if not cursors:
                return Drained(events=0, owed=0)
            reach(FaultPoint.DRAIN_AFTER_LOCK)
            read = await self._store.read_lagging(
                tx, cursors, per_tenant=EVENTS_A_TENANT_MAX, limit=EVENTS_MAX
            )
            events = contiguous(cursors, read)
            with tracing.span("drain", links=[event.traceparent for event in events], events=len(events)):
                drained, owed = await self._owe(tx, events)
                reach(FaultPoint.DRAIN_AFTER_INSERT)
                await self._store.advance(tx, moves(cursors, drained))
            reach(FaultPoint.DRAIN_BEFORE_COMMIT)
        reach(FaultPoint.DRAIN_AFTER_COMMIT)
        if called is None:
            # the last one read, drained or not: tenants that stand still must not use up every round
            self._after = read[-1].tenant_id if read else cursors[-1].tenant_id
        else:
            # once more: what they have appended meanwhile, another drain has passed over while they were locked here
            self._called |= {event.tenant_id for event in events}
            if len(read) >= EVENTS_MAX:  # and those to which it did not come
                self._called |= {cursor.tenant_id for cursor in cursors} - {event.tenant_id for event in read}
        return Drained(events=len(drained), owed=owed)

    async def _lock(self, tx: H, called: Sequence[UUID] | None) -> Sequence[Cursor]:
        if called is None:
            return await self._store.lock_lagging(
                tx, after=self._after, limit=TENANTS_MAX, engine_version=self._engine_version
            )
        now, later = called[:TENANTS_MAX], called[TENANTS_MAX:]
        self._called.update(later)
        return await self._store.lock_called(tx, now, engine_version=self._engine_version)

    async def _owe(self, tx: H, events: Sequence[Event]) -> tuple[Sequence[Event], int]:
        """Owe what the events owe; return the events that were taken and how many effects are new."""
        try:
            async with self._store.savepoint(tx):
                judged: dict[int, Owed] = {}
                for obligation in self._obligations:
                    await self._judge(tx, obligation, events, judged)
                taken = within_limit(events, judged)
                owed = [effect for n in range(len(taken)) for effect in judged.get(n, ())]
                return taken, await self._insert(tx, owed)
        except (Transient, OutcomeUnknown):
            raise
        except Exception as error:  # noqa: BLE001 - counted when it is pinned to its event, below
            log.warning("drain: looking for the event behind %s: %s", type(error).__name__, error)
        new = 0
        for obligation in self._obligations:
            new += await self._isolate(tx, obligation, events)
        return events, new

    async def _judge(
        self, tx: H, obligation: Obligation[H], events: Sequence[Event], judged: dict[int, Owed]
    ) -> None:
        mine = [(n, event) for n, event in enumerate(events) if looks_at(obligation, event)]
        if not mine:
            return
        context = await obligation.load(tx, [event for _, event in mine])
        for n, event in mine:
            owed = owed_by(obligation, event, obligation.judge(event, context))
            judged.setdefault(n, []).extend((event.tenant_id, effect) for effect in owed)

    async def _isolate(self, tx: H, obligation: Obligation[H], events: Sequence[Event]) -> int:
        """Owe what one obligation makes of these events; halve them until the one that breaks it stands alone."""
        if not events:
            return 0
        try:
            async with self._store.savepoint(tx):
                judged: dict[int, Owed] = {}
                await self._judge(tx, obligation, events, judged)
                return await self._insert(tx, [effect for n in sorted(judged) for effect in judged[n]])
        except (Transient, OutcomeUnknown):
            raise
        except Exception as error:  # noqa: BLE001 - counted in _poison
            if len(events) == 1:
                return await self._poison(tx, obligation, events[0], error)
        half = len(events) // 2
        return await self._isolate(tx, obligation, events[:half]) + await self._isolate(
            tx, obligation, events[half:]
        )

    async def _poison(self, tx: H, obligation: Obligation[H], event: Event, error: Exception) -> int:
        telemetry.drain_poisoned.labels(obligation.name).inc()
        log.error(
            "drain: %s cannot judge event %d: %s: %s", obligation.name, event.seq, type(error).__name__, error
        )
        asked_again = NewEffect(
            EVENT_KIND.name,
            key=f"{event.seq}#{obligation.name}",
            event_seq=event.seq,
            payload={"obligation": obligation.name} | ({UNTOLD: True} if _is_of_poison(event) else {}),
        )
        return await self._insert(tx, [(event.tenant_id, asked_again)])

    async def _insert(self, tx: H, owed: Owed) -> int:
        if not owed:
            return 0
        whole = [(tenant, self._complete(effect)) for tenant, effect in owed]
        return await self._store.owe_drained(
            tx, sorted(whole, key=lambda row: (row[0], row[1].kind, row[1].key))
        )


def _is_of_poison(event: Event) -> bool:
    """Tell whether an event says what became of an event that broke an obligation."""
    said = event.data.get("effect") if event.kind.startswith("effect.") else None
    return isinstance(said, Mapping) and said.get("kind") == EVENT_KIND.name


def looks_at(obligation: Obligation[H], event: Event) -> bool:
    """Tell whether an obligation looks at events of this kind."""
    return obligation.kinds is None or event.kind in obligation.kinds


def owed_by(obligation: Obligation[H], event: Event, verdict: object) -> tuple[NewEffect, ...]:
    """Return the effects of a verdict, each of its event; raise Misuse when it is none: None does not mean that nothing is owed."""
    match verdict:
        case Owes(effects):
            for effect in effects:
                check_executed(effect)
            return tuple(
                effect if effect.event_seq is not None else replace(effect, event_seq=event.seq)
                for effect in effects
            )
        case NotOwed():
            return ()
        case _:
            raise Misuse(f"obligation {obligation.name} answers Owes or NotOwed, not {verdict!r:.200}")


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


def within_limit(events: Sequence[Event], judged: dict[int, Owed]) -> Sequence[Event]:
    """Return the longest prefix that owes at most OWED_MAX rows; one event alone may owe more."""
    owed = 0
    for n in range(len(events)):
        owed += len(judged.get(n, ()))
        if owed > OWED_MAX and n > 0:
            return events[:n]
    return events


def moves(cursors: Sequence[Cursor], drained: Iterable[Event]) -> list[tuple[Cursor, int]]:
    """Return where each cursor goes; those whose events were not taken stay and are left out."""
    last: dict[UUID, int] = {}
    for event in drained:
        last[event.tenant_id] = event.seq
    return [(cursor, last[cursor.tenant_id]) for cursor in cursors if cursor.tenant_id in last]


def ask_again(
    store: Store[H], obligations: Sequence[Obligation[H]], *, complete: Complete
) -> Transactional[H]:
    """Make the executor of kind `event`: it asks one obligation about one event again, and fails for good when that fails."""

    async def run(effect: Effect, tx: Transaction[H]) -> Outcome:
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
                await store.owe_drained(tx.handle, [(event.tenant_id, complete(effect)) for effect in owed])
        except (Transient, OutcomeUnknown):
            raise
        except Exception as error:  # noqa: BLE001 - becomes the row's outcome
            return Failed(f"{type(error).__name__}: {error}")
        return Done()

    return Transactional(EVENT_KIND, run)
