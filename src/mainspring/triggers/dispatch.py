"""Dispatch: the launch of a pinned card's agent, owed when the card has become eligible, once for each time that it has.

Takes events from the drain and leaves a `launch` row whose key is the eligibility's own; a sweep looks for eligible cards that no
launch was owed for, and owes the same row. If it dies anywhere, the next round finds the same cards.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final
from uuid import UUID

from asyncpg import Record

from mainspring import telemetry
from mainspring.db import Database, Scope
from mainspring.rooms import ServerSpine
from mainspring.spine.effects import NewEffect, Owed
from mainspring.spine.events import Event, Trust
from mainspring.spine.ports import NotOwed, Owes, Verdict
from mainspring.sweeps import Sweep
from mainspring.triggers.launch import LAUNCH
from mainspring.triggers.matcher import trusted
from mainspring.triggers.model import DEPTH_MAX
from mainspring.triggers.terms import MIN_TRUST
from mainspring.triggers.verbs import SQL

log = logging.getLogger("mainspring.triggers")

_UNDISPATCHED = SQL["undispatched"]

# how far an event must be trusted to dispatch its card
TRUSTED: Final = tuple(str(one) for one in Trust if trusted(one, MIN_TRUST))
SWEEP: Final = "dispatch sweep"
SWEEP_SECONDS: Final = 30.0
_SWEEP_BATCH: Final = 200
_NET: Final = Sweep(loop=SWEEP, log=log, told=f"{SWEEP}: of tenant %s")


class Dispatch:
    """What an event owes because it made a pinned card eligible: one launch of its agent, for this eligibility once."""

    name: Final = "dispatch"
    kinds: Final = frozenset({"card.created", "card.moved", "card.promoted", "card.assigned", "card.updated"})

    async def load(self, scope: Scope, events: Sequence[Event]) -> None:
        """Nothing is to be known: the snapshot says since which version the card has been eligible."""

    def judge(self, event: Event, _context: None) -> Verdict:
        """Owe the launch where the event's own version is the one at which the card became eligible."""
        card = event.data["card"]
        if card["eligible_version"] is None:
            return NotOwed("eligible")
        if card["eligible_version"] != card["version"]:
            return NotOwed("dispatched before")
        if not trusted(event.trust, MIN_TRUST):
            return NotOwed("min_trust")
        if event.depth >= DEPTH_MAX:
            return NotOwed("depth")
        return Owes(
            _dispatch_of(UUID(card["id"]), UUID(card["agent_id"]), card["eligible_version"], event.seq)
        )


def _dispatch_of(card_id: UUID, agent_id: UUID, eligible_version: int, event_seq: int) -> NewEffect:
    """The drain and the sweep owe the very same row: the payload is all of the key's making."""
    return NewEffect(
        LAUNCH.name,
        key=f"dispatch:{card_id}:{eligible_version}",
        payload={"card_id": str(card_id), "agent_id": str(agent_id), "eligible_version": eligible_version},
        event_seq=event_seq,
    )


async def dispatch_sweep(spine: ServerSpine, db: Database, *, horizon_seconds: float) -> int:
    """Owe the dispatches that no drain has owed, and return how many those were.

    One transaction a tenant; what stands in the way of one holds up no other's, and is tried again in the next round.

    Args:
        horizon_seconds: how old an eligibility may be; shorter than finished effects are kept, since the row of a launch
            that was done, or dropped by an operator, is what says that it was owed.
    """

    async def missed(but: Sequence[UUID]) -> Sequence[Record]:
        async with db.system(SWEEP) as scope:
            return await scope.fetch(_UNDISPATCHED, DEPTH_MAX, horizon_seconds, _SWEEP_BATCH, TRUSTED, but)

    return await _NET.over_tenants(missed, partial(_owe_missed, spine), batch=_SWEEP_BATCH)


async def _owe_missed(spine: ServerSpine, tenant: UUID, missed: Sequence[Record]) -> int:
    owed = 0
    async with spine.open(tenant) as tx:
        for row in missed:
            effect = _dispatch_of(row["id"], row["agent_id"], row["eligible_version"], row["eligible_seq"])
            owed += isinstance(await tx.owe(effect), Owed)
    if owed:
        telemetry.sweep_repaired.labels("dispatch").inc(owed)
    return owed
