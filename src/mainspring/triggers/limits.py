"""What a rule's limits make of a launch, and how they are counted.

The decisions are pure; what they are made of is counted under the locks that the caller holds: the rule's for what fired
before, the card's for runs that have not ended. What is noted here commits with the launch: if it dies here, it never fired.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from mainspring.db import Scope
from mainspring.rooms import Tx
from mainspring.spine.effects import Effect
from mainspring.sql import Queries
from mainspring.triggers.model import Options

SQL: Final = Queries("mainspring.triggers.sql")
_PACE = SQL["pace"]
_WAS_REPLAYED = SQL["was_replayed"]
_ANY_SEQ = 2**63 - 1
_LATER_ON_CARD = SQL["later_launch_on_card"]
_LATER_WITHOUT_CARD = SQL["later_launch_without_card"]
_LIVE_RUN_OF_RULE = SQL["live_run_of_rule"]
_LAUNCHES_OF_AGENT = SQL["launches_of_agent"]
_LOCK_AGENT = SQL["lock_agent_for_launch"]
_NOTE_FIRING = SQL["note_firing"]
_TRIM_FIRINGS = SQL["trim_firings"]

HOUR_SECONDS: Final = 3_600.0
CEILING_WAIT_SECONDS_MIN: Final = 5.0
CEILING_WAIT_SECONDS_MAX: Final = 300.0
TRIM_SECONDS: Final = 600.0
_TRIM_MAX: Final = 10_000
_AT_ONCE_MAX: Final = 200  # more launches of one agent than any number of processes carries out at one moment


# Deciding -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How old an event is, and what its rule did before.

    Args:
        event_age_seconds: since the event.
        rested_seconds: since the rule last fired on this card (or, without one, at all); None when longer than its cooldown.
        fired: how often it fired within the hour, for events that no resume has waived.
    """

    event_age_seconds: float = 0.0
    rested_seconds: float | None = None
    fired: int = 0


@dataclass(frozen=True, slots=True)
class Pass:
    """No limit stands in the way."""


@dataclass(frozen=True, slots=True)
class TooOld:
    """The event was too long ago."""

    reason: str


@dataclass(frozen=True, slots=True)
class Resting:
    """The rule fired on this card too lately."""

    reason: str


@dataclass(frozen=True, slots=True)
class TooOften:
    """The rule has fired as often as it may within the hour: it is to be paused."""

    because: str


Limit: TypeAlias = Pass | TooOld | Resting | TooOften


def paced(options: Options, pace: Pace, *, card: str | None = None, waived: bool = False) -> Limit:
    """Decide whether age and cooldown let a rule fire. `waived`: a resume has told it to run however old it is."""
    oldest, rest = options.max_event_age_seconds, options.cooldown_seconds
    if oldest is not None and not waived and pace.event_age_seconds > oldest:
        return TooOld(
            f"max_event_age_seconds: the event was {pace.event_age_seconds:.0f} s old, and the rule takes {oldest:g} s"
        )
    if rest is not None and pace.rested_seconds is not None and pace.rested_seconds < rest:
        on = f" on {card}" if card else ""
        return Resting(
            f"cooldown_seconds: the rule fired{on} {pace.rested_seconds:.0f} s ago, and rests {rest:g} s"
        )
    return Pass()


def rated(options: Options, pace: Pace, *, waived: bool = False) -> Limit:
    """Decide whether the rule may fire once more within the hour; asked last, of what would fire indeed."""
    most = options.max_per_hour
    if most is not None and not waived and pace.fired >= most:
        return TooOften(
            f"max_per_hour: it fired {times(pace.fired)} within the hour, and {most} {'is' if most == 1 else 'are'} allowed"
        )
    return Pass()


def times(count: int) -> str:
    """Return how often something was, for people."""
    return "once" if count == 1 else f"{count} times"


# Counting -------------------------------------------------------------------------------------------------------


async def pace_of(
    scope: Scope,
    tenant: UUID,
    rule_id: UUID,
    options: Options,
    *,
    event_seq: int,
    card_id: UUID | None,
    waived_seq: int,
    effect_id: UUID,
) -> Pace:
    """Count what a rule did before this effect. What it says stays true only under the rule's lock."""
    if options.max_event_age_seconds is None and not options.is_limited:
        return Pace()
    row = await scope.fetchrow(
        _PACE, tenant, rule_id, card_id, event_seq, options.cooldown_seconds or 0.0, waived_seq, effect_id
    )
    assert row is not None
    if row["has_begun"]:  # it passed its limits then, and what has fired meanwhile came behind it
        return Pace()
    return Pace(
        event_age_seconds=row["event_age_seconds"] or 0.0,
        rested_seconds=row["rested_seconds"],
        fired=row["fired"],
    )


async def was_replayed(tx: Tx, effect: Effect) -> bool:
    """Tell whether an operator has replayed this effect: age, cooldown and rate are waived then."""
    return bool(await tx.handle.fetchval(_WAS_REPLAYED, tx.tenant, str(effect.id)))


async def has_later(tx: Tx, effect: Effect, card_id: UUID | None, *, waived_seq: int) -> bool:
    """Tell whether its rule has launched later on the same card, or owes a launch there that may as well: that one covers this one.

    One that is only owed yet may still be dropped. So it covers what nothing but its own end would spare: a launch of the same version,
    and of those that were told to run come what may, none that was not.
    """
    tenant, rule, version, seq = tx.tenant, effect.rule_id, effect.rule_version, effect.event_seq
    assert seq is not None
    through = _ANY_SEQ if seq > waived_seq else waived_seq
    if await was_replayed(tx, effect):
        through = 0
    async with tx.handle.as_system("later launches"):
        if card_id is None:
            return bool(await tx.handle.fetchval(_LATER_WITHOUT_CARD, tenant, rule, seq, version, through))
        asked = (tenant, rule, card_id, str(card_id), seq, version, through)
        return bool(await tx.handle.fetchval(_LATER_ON_CARD, *asked))


async def live_run_of_rule(scope: Scope, tenant: UUID, rule_id: UUID, agent_id: UUID) -> bool:
    """Tell whether a run without a card that this rule launched has not ended."""
    return bool(await scope.fetchval(_LIVE_RUN_OF_RULE, tenant, rule_id, agent_id))


async def ceiling_wait_seconds(scope: Scope, tenant: UUID, agent_id: UUID, most: int) -> float | None:
    """Return how long an agent's next launch waits for its hourly ceiling; None when it need not. Counts, and no more."""
    row = await scope.fetchrow(_LAUNCHES_OF_AGENT, tenant, agent_id, most)
    assert row is not None
    if row["launches"] < most:
        return None
    frees_seconds: float = row["frees_seconds"]
    return min(CEILING_WAIT_SECONDS_MAX, max(CEILING_WAIT_SECONDS_MIN, frees_seconds))


async def room_for(tx: Tx, agent_id: UUID, most: int) -> float | None:
    """Return how long a launch of this agent must wait for its hourly ceiling; None when it may go ahead.

    Near the ceiling the agent is locked and counted again, so that it is never passed; far from it, launches of one agent
    do not wait for each other. Comes before the card's lock.
    """
    near = most - max(_AT_ONCE_MAX, most // 2)
    if near > 0 and await ceiling_wait_seconds(tx.handle, tx.tenant, agent_id, near) is None:
        return None
    await tx.handle.fetchval(_LOCK_AGENT, tx.tenant, agent_id)
    return await ceiling_wait_seconds(tx.handle, tx.tenant, agent_id, most)


async def note_firing(
    tx: Tx,
    effect: Effect,
    *,
    agent_id: UUID | None,
    card_id: UUID | None,
    options: Options | None = None,
) -> None:
    """Note that a rule's effect, or a pin's, is carried out, for as long as a limit counts it or it is still owed."""
    rest = (options.cooldown_seconds if options else None) or 0.0
    await tx.handle.execute(
        _NOTE_FIRING, tx.tenant, effect.id, effect.kind, effect.rule_id, card_id, agent_id,
        effect.event_seq, max(HOUR_SECONDS, rest),
    )  # fmt: skip


async def trim_firings(scope: Scope) -> bool:
    """Forget what no limit counts any more; True when more may be left. Runs in a system scope."""
    return await scope.execute(_TRIM_FIRINGS, _TRIM_MAX) == _TRIM_MAX
