"""The desk: what an operator does with effects that gave up. Takes dead rows; leaves them owed again, or given up for good.

Nothing leaves the desk by itself. `plan` says what a replay would do and changes nothing; `replay` and `discard` act on rows
that are dead at that moment, with an event for each, in the caller's transaction: if it dies here, they are still dead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from mainspring.faultpoints import FaultPoint, reach
from mainspring.spine.effects import EffectRow, EffectState
from mainspring.spine.events import NewEvent
from mainspring.spine.ports import H, Outbox
from mainspring.spine.transaction import Transaction

CAUSE_LENGTH_MAX = 160
CAUSE_READ_MAX = 500  # how much of an error its cause is read from
# what differs between two failures of one cause: ids, digests, numbers, whatever word holds a digit, and what stands in quotes; but
# not the number that says what a failure is
_VARIABLE = re.compile(
    r"(?P<telling>\b(?:exit|status|code|signal|errno|answered|http(?:/\d(?:\.\d)?)?)[ :=]+\d{1,3}\b)"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|\b\w*\d\w*\b"
    r"|'[^']{1,200}'|\"[^\"]{1,200}\"",
    re.IGNORECASE,
)


def cause_of(outcome: str | None, error: str | None) -> str:
    """Return what failures of one kind have in common: the error's class and text without its ids, numbers and quotes. Pure."""
    line = next((line.strip() for line in (error or "")[:CAUSE_READ_MAX].splitlines() if line.strip()), "")
    text = " ".join(_VARIABLE.sub(lambda found: found["telling"] or "…", line).split())
    return (text or outcome or "no error was given")[:CAUSE_LENGTH_MAX].rstrip()


# What a replay would do ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligible:
    """A dead effect that would be owed again, and under which idempotency key."""

    row: EffectRow
    new_key: bool


@dataclass(frozen=True, slots=True)
class Skipped:
    """One that was asked for and would be left alone."""

    id: UUID
    because: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a replay would do, in this order."""

    eligible: tuple[Eligible, ...]
    skipped: tuple[Skipped, ...]


def plan(
    asked: Sequence[UUID],
    rows: Sequence[EffectRow],
    *,
    tried: Mapping[UUID, int],
    new_key: bool | None = None,
) -> Plan:
    """Return what replaying would do, oldest event first. Pure.

    Without `new_key`, only a definite failure at the one attempt gets a new idempotency key: whatever may have happened keeps its
    old one, so that whoever received it can tell. `tried`: how many attempts are recorded of each under its present key.
    """
    found = {row.id: row for row in rows}
    skipped = [
        Skipped(one, f"it is {found[one].state}, not dead" if one in found else "there is no such effect")
        for one in dict.fromkeys(asked)
        if one not in found or found[one].state is not EffectState.DEAD
    ]
    dead = sorted((found[one] for one in dict.fromkeys(asked) if _is_dead(found.get(one))), key=_age)
    chosen = [
        Eligible(row=row, new_key=surely_not_done(row, tried.get(row.id, 0)) if new_key is None else new_key)
        for row in dead
    ]
    return Plan(tuple(chosen), tuple(skipped))


def surely_not_done(row: EffectRow, tried: int) -> bool:
    """Tell whether a dead effect is known to have done nothing: only a definite failure says so, and only of its own attempt."""
    return row.outcome == "failed" and tried == 1 and row.crashes == 0 and row.deferrals == 0


def _is_dead(row: EffectRow | None) -> bool:
    return row is not None and row.state is EffectState.DEAD


def _age(row: EffectRow) -> tuple[bool, int, UUID]:
    return (row.event_seq is None, row.event_seq or 0, row.id)


# Doing it -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class By:
    """Who decides, as events name them."""

    actor_id: UUID | None
    actor: Mapping[str, Any]
    note: Mapping[str, Any] = field(default_factory=dict)


async def rows_of(outbox: Outbox[H], tx: Transaction[H], ids: Sequence[UUID]) -> list[EffectRow]:
    """Return those of the effects that exist."""
    return await outbox.effects_by_id(tx.handle, tx.tenant, set(ids)) if ids else []


async def replay(
    outbox: Outbox[H], tx: Transaction[H], ids: Sequence[UUID], *, new_key: bool | None, by: By
) -> Plan:
    """Owe the dead ones of these effects again, with fresh budgets; return what was done and what was left alone.

    Source of `effect.replayed`. Runs in the caller's transaction.
    """
    rows = await rows_of(outbox, tx, ids)
    tried = await outbox.tried(tx.handle, tx.tenant, [row.id for row in rows]) if rows else {}
    planned = plan(ids, rows, tried=tried, new_key=new_key)
    asked = [(one.row, one.new_key) for one in planned.eligible]
    moved = set(await outbox.replay(tx.handle, tx.tenant, asked)) if asked else set()
    tx.owed_again(moved)
    done = _only(planned, moved)
    for one in done.eligible:
        tx.append(_event("effect.replayed", one.row, by, new_key=one.new_key))
    reach(FaultPoint.DESK_AFTER_REPLAY)
    return done


async def discard(outbox: Outbox[H], tx: Transaction[H], ids: Sequence[UUID], *, reason: str, by: By) -> Plan:
    """Give the dead ones of these effects up, for a reason; return what was done and what was left alone.

    Source of `effect.discarded`. Runs in the caller's transaction.
    """
    planned = plan(ids, await rows_of(outbox, tx, ids), tried={})
    batch = sorted(one.row.id for one in planned.eligible)
    moved = set(await outbox.discard(tx.handle, tx.tenant, batch, reason=reason)) if batch else set()
    done = _only(planned, moved)
    for one in done.eligible:
        tx.append(_event("effect.discarded", one.row, by, reason=reason))
    return done


def _only(planned: Plan, moved: set[UUID]) -> Plan:
    """Return the plan as it came out: somebody else may have been quicker."""
    late = [one.row.id for one in planned.eligible if one.row.id not in moved]
    return Plan(
        tuple(one for one in planned.eligible if one.row.id in moved),
        planned.skipped + tuple(Skipped(one, "somebody else decided meanwhile") for one in late),
    )


def _event(kind: str, row: EffectRow, by: By, **more: Any) -> NewEvent:
    effect = {
        "id": str(row.id),
        "kind": row.kind,
        "key": row.key,
        "event_seq": row.event_seq,
        "outcome": row.outcome,
        "error": row.error,
    }
    return NewEvent(
        kind,
        subject=str(row.id),
        data={"effect": effect, "actor": dict(by.actor), **by.note, **more},
        actor_id=by.actor_id,
    )
