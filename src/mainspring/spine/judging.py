"""Events to what they owe. Takes events and obligations, on an open transaction; leaves every verdict, and whatever broke one.

Reads what the obligations load, and writes nothing: if it dies here nothing has happened. The drain judges so, and whoever asks later
whether the drain has left what it should.

One tenant may have any number of rules that match. So it judges event by event, gives the process's other tasks their turn
meanwhile, and stops when the events owe enough or it has judged for long enough: its caller then says something to the database, which
ends a transaction that has been idle for too long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Generic
from uuid import UUID

from mainspring.spine.effects import EffectKind, NewEffect, check_family
from mainspring.spine.errors import Misuse, OutcomeUnknown, Transient
from mainspring.spine.events import Event
from mainspring.spine.ports import H, NotOwed, Obligation, Owes

OWED_MAX = 5_000
# A transaction that is idle for 5 seconds is ended by the database: however long one round could judge, it stops well before.
JUDGING_SECONDS_MAX = 1.0
TURN_SECONDS = 0.02  # of judging, until the others on this loop, renewals among them, have their turn

EVENT_KIND = EffectKind(name="event", transactional=True, lease_seconds=10.0)
# In the payload of a row whose death no event tells: an obligation that breaks on every event would break on that one, too, and on
# the next, for ever.
UNTOLD = "untold"

Owed = list[tuple[UUID, NewEffect]]
Numbered = tuple[int, Event]  # an event, and its place in the round
Savepoint = Callable[[H], AbstractAsyncContextManager[None]]


@dataclass(slots=True)
class Asked(Generic[H]):
    """An obligation in a round, all by an event's place: what it knows of each it looks at, what those owe, and which broke it."""

    obligation: Obligation[H]
    contexts: dict[int, Any] = field(default_factory=dict)
    owed: dict[int, Owed] = field(default_factory=dict)
    broken: dict[int, Exception] = field(default_factory=dict)

    async def load(self, tx: H, events: Sequence[Numbered]) -> None:
        """Let the obligation read what it needs to know of those of these events that it looks at."""
        mine = [(n, event) for n, event in events if looks_at(self.obligation, event)]
        if mine:
            context = await self.obligation.load(tx, [event for _, event in mine])
            self.contexts.update((n, context) for n, _ in mine)

    def judge(self, n: int, event: Event) -> int:
        """Judge an event, and return how many rows it owes."""
        if n in self.contexts:
            verdict = self.obligation.judge(event, self.contexts[n])
            self.owed[n] = [(event.tenant_id, effect) for effect in owed_by(self.obligation, event, verdict)]
        return len(self.owed.get(n, ()))

    def breaks(self, n: int, event: Event, error: Exception) -> None:
        """Note that an event breaks it: it is to be asked about that one again."""
        self.contexts.pop(n, None)
        self.broken[n] = error
        self.owed[n] = [(event.tenant_id, to_be_asked_again(self.obligation.name, event))]


class Judging(Generic[H]):
    """Asks obligations about events."""

    def __init__(
        self,
        obligations: Sequence[Obligation[H]],
        savepoint: Savepoint[H],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`savepoint` undoes a block alone when it raises; `clock` says, in seconds, for how long was judged."""
        self._obligations = obligations
        self._savepoint = savepoint
        self._clock = clock

    async def load(self, tx: H, events: Sequence[Numbered]) -> Sequence[Asked[H]]:
        """Let every obligation read what it needs to know of these events."""
        asked = [Asked(obligation) for obligation in self._obligations]
        for one in asked:
            await one.load(tx, events)
        return asked

    async def load_apart(self, tx: H, events: Sequence[Numbered]) -> Sequence[Asked[H]]:
        """The same, where reading for some event may break an obligation."""
        asked = [Asked(obligation) for obligation in self._obligations]
        for one in asked:

            async def load(some: Sequence[Numbered], one: Asked[H] = one) -> None:
                await one.load(tx, some)

            refused = await self.apart(tx, events, load)
            for n, event in events:
                if n in refused:
                    one.breaks(n, event, refused[n])
        return asked

    async def judge(
        self,
        events: Sequence[Numbered],
        asked: Sequence[Asked[H]],
        *,
        owed_max: int = OWED_MAX,
        around_poison: H | None = None,
    ) -> Sequence[Numbered]:
        """Judge the events in order until they owe enough for a round, or it has judged for long enough; return those to be taken.

        The first is judged in any case, and one event more than is taken, at most. Others on this loop have their turns meanwhile.
        """
        owed = 0
        begun = turned = self._clock()
        for place, (n, event) in enumerate(events):
            for one in asked:
                owed += await self._judge_one(one, n, event, around_poison)
            now = self._clock()
            if owed > owed_max or now - begun >= JUDGING_SECONDS_MAX:
                events = events[: place + 1]
                break
            if now - turned >= TURN_SECONDS:
                await asyncio.sleep(0)
                turned = self._clock()
        return within_limit(events, [one.owed for one in asked], owed_max)

    async def _judge_one(self, one: Asked[H], n: int, event: Event, around_poison: H | None) -> int:
        try:
            return one.judge(n, event)
        except (Transient, OutcomeUnknown):
            raise
        except Exception:
            if around_poison is None:
                raise
        return await self._judge_alone(around_poison, one, n, event)

    async def _judge_alone(self, tx: H, one: Asked[H], n: int, event: Event) -> int:
        """Judge what broke among others by itself: it may have been another event for which was read."""

        async def judge(some: Sequence[Numbered]) -> None:
            await one.load(tx, some)
            one.judge(n, event)

        for error in (await self.apart(tx, [(n, event)], judge)).values():
            one.breaks(n, event, error)
        return len(one.owed[n])

    async def apart(
        self, tx: H, events: Sequence[Numbered], do: Callable[[Sequence[Numbered]], Awaitable[None]]
    ) -> dict[int, Exception]:
        """Do it for these events; halve them until what breaks it stands alone, and return what was raised there."""
        if not events:
            return {}
        try:
            async with self._savepoint(tx):
                await do(events)
            return {}
        except (Transient, OutcomeUnknown):
            raise
        except Exception as error:  # noqa: BLE001 - the caller counts it, or tells it
            if len(events) == 1:
                return {events[0][0]: error}
        half = len(events) // 2
        first = await self.apart(tx, events[:half], do)
        return first | await self.apart(tx, events[half:], do)


def owed_at(places: Iterable[int], asked: Sequence[Asked[H]]) -> Owed:
    """Return what the events at these places owe, all obligations together."""
    return [effect for n in places for one in asked for effect in one.owed.get(n, ())]


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


def within_limit(
    events: Sequence[Numbered], judged: Sequence[Mapping[int, Owed]], owed_max: int = OWED_MAX
) -> Sequence[Numbered]:
    """Return the longest prefix that owes at most `owed_max` rows; one event alone may owe more."""
    owed = 0
    for place, (n, _) in enumerate(events):
        owed += sum(len(verdicts.get(n, ())) for verdicts in judged)
        if owed > owed_max and place > 0:
            return events[:place]
    return events
