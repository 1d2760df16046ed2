"""Log to outbox. Takes events past the cursors, leaves the effects that they owe, the cursors moved, in one transaction.

If it dies here nothing has happened: the cursors stand where they stood, and the next round reads the same events.
A second drain meanwhile takes other tenants, since cursors are locked and locked ones are skipped. A commit in this process says
whose log has grown, and that one is looked at; all of them are when the floor tick has found that any lags.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic
from uuid import UUID

from mainspring import telemetry, tracing
from mainspring.faultpoints import FaultPoint, reach
from mainspring.spine.effects import (
    Deferred,
    Done,
    Effect,
    EffectKind,
    Failed,
    NewEffect,
    Outcome,
    check_family,
)
from mainspring.spine.errors import Misuse, OutcomeUnknown, Transient
from mainspring.spine.events import Event
from mainspring.spine.executors import Transactional
from mainspring.spine.ports import Cursor, H, NotOwed, Obligation, Owes, Store
from mainspring.spine.transaction import Transaction

log = logging.getLogger("mainspring.spine")

# Raised, together with the schema's by a migration, whenever an older drain would make something else of a log: a new kind of event that
# owes, a new term, act or option of rules (tests/test_engine_version.py says what each version knows).
ENGINE_VERSION = 3
TENANTS_MAX = 200
EVENTS_MAX = 500
EVENTS_A_TENANT_MAX = 200
OWED_MAX = 5_000

EVENT_KIND = EffectKind(name="event", transactional=True, lease_seconds=10.0)
# In the payload of a row whose death no event tells: an obligation that breaks on every event would break on that one, too, and on
# the next, for ever.
UNTOLD = "untold"
_LEFT_SECONDS = 5.0  # until a newer process may have taken what this one might misjudge

Owed = list[tuple[UUID, NewEffect]]
Numbered = tuple[int, Event]  # an event, and its place in the round
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
                await self._store.advance(tx, moves(cursors, drained), engine_version=self._engine_version)
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
                judged = [
                    await self._judge(tx, obligation, list(enumerate(events)))
                    for obligation in self._obligations
                ]
                taken = within_limit(events, judged)
                return taken, await self._insert(tx, _owed_at(range(len(taken)), judged))
        except (Transient, OutcomeUnknown):
            raise
        except Exception as error:  # noqa: BLE001 - counted when it is pinned to its event, below
            log.warning("drain: looking for the event behind %s: %s", type(error).__name__, error)
        return await self._owe_around_poison(tx, events)

    async def _owe_around_poison(self, tx: H, events: Sequence[Event]) -> tuple[Sequence[Event], int]:
        """The same, where some event breaks some obligation: that one is to be asked again, and the others' rows stand."""
        judged = [await self._judge_apart(tx, obligation, events) for obligation in self._obligations]
        taken = within_limit(events, [owed for owed, _ in judged])
        new = 0
        for obligation, (owed, broken) in zip(self._obligations, judged, strict=True):
            new += await self._insert_apart(tx, obligation, taken, owed, broken)
        return taken, new

    async def _judge(self, tx: H, obligation: Obligation[H], events: Sequence[Numbered]) -> dict[int, Owed]:
        mine = [(n, event) for n, event in events if looks_at(obligation, event)]
        if not mine:
            return {}
        context = await obligation.load(tx, [event for _, event in mine])
        return {
            n: [
                (event.tenant_id, effect)
                for effect in owed_by(obligation, event, obligation.judge(event, context))
            ]
            for n, event in mine
        }

    async def _judge_apart(
        self, tx: H, obligation: Obligation[H], events: Sequence[Event]
    ) -> tuple[dict[int, Owed], dict[int, Exception]]:
        """Return what one obligation makes of these events, and what was raised about which; those are to be asked about again."""
        owed: dict[int, Owed] = {}

        async def judge(some: Sequence[Numbered]) -> None:
            owed.update(await self._judge(tx, obligation, some))

        broken = await self._apart(tx, list(enumerate(events)), judge)
        for n in broken:
            owed[n] = [(events[n].tenant_id, to_be_asked_again(obligation.name, events[n]))]
        return owed, broken

    async def _insert_apart(
        self,
        tx: H,
        obligation: Obligation[H],
        events: Sequence[Event],
        owed: Mapping[int, Owed],
        broken: Mapping[int, Exception],
    ) -> int:
        """Insert what one obligation owes for these events; what the store refuses has broken it, too."""
        new = 0

        async def insert(some: Sequence[Numbered]) -> None:
            nonlocal new
            new += await self._insert(tx, _owed_at((n for n, _ in some), [owed]))

        refused = await self._apart(tx, list(enumerate(events)), insert)
        again = [(events[n].tenant_id, to_be_asked_again(obligation.name, events[n])) for n in refused]
        new += await self._insert(tx, again)
        for n, event in enumerate(events):
            if (error := refused.get(n) or broken.get(n)) is not None:
                _say_poisoned(obligation.name, event, error)
        return new

    async def _apart(
        self, tx: H, events: Sequence[Numbered], do: Callable[[Sequence[Numbered]], Awaitable[None]]
    ) -> dict[int, Exception]:
        """Do it for these events; halve them until what breaks it stands alone, and return what was raised there."""
        if not events:
            return {}
        try:
            async with self._store.savepoint(tx):
                await do(events)
            return {}
        except (Transient, OutcomeUnknown):
            raise
        except Exception as error:  # noqa: BLE001 - counted in _say_poisoned
            if len(events) == 1:
                return {events[0][0]: error}
        half = len(events) // 2
        first = await self._apart(tx, events[:half], do)
        return first | await self._apart(tx, events[half:], do)

    async def _insert(self, tx: H, owed: Owed) -> int:
        if not owed:
            return 0
        whole = [(tenant, self._complete(effect)) for tenant, effect in owed]
        return await self._store.owe_drained(
            tx, sorted(whole, key=lambda row: (row[0], row[1].kind, row[1].key))
        )


def _owed_at(places: Iterable[int], judged: Sequence[Mapping[int, Owed]]) -> Owed:
    return [effect for n in places for verdicts in judged for effect in verdicts.get(n, ())]


def _say_poisoned(obligation: str, event: Event, error: Exception) -> None:
    telemetry.drain_poisoned.labels(obligation).inc()
    log.error("drain: %s cannot judge event %d: %s: %s", obligation, event.seq, type(error).__name__, error)


def to_be_asked_again(obligation: str, event: Event) -> NewEffect:
    """Return what an event owes that breaks an obligation: that this one is asked again about that one."""
    return NewEffect(
        EVENT_KIND.name,
        key=f"{event.seq}#{obligation}",
        event_seq=event.seq,
        payload={"obligation": obligation} | ({UNTOLD: True} if _is_of_poison(event) else {}),
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
                check_family(effect)
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


def within_limit(events: Sequence[Event], judged: Sequence[Mapping[int, Owed]]) -> Sequence[Event]:
    """Return the longest prefix that owes at most OWED_MAX rows; one event alone may owe more."""
    owed = 0
    for n in range(len(events)):
        owed += sum(len(verdicts.get(n, ())) for verdicts in judged)
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
