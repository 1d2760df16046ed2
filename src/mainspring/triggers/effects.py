"""What events owe because of rules and pins: launches, promotions and webhooks.

Two obligations take events from the drain: `rules` leaves a `launch`, `promote` or `webhook` row for each rule that matches, `dispatch` a
`launch` for a card that has become eligible. The executors (`launch.py`, `promote.py`) take a claimed row and leave it done and
settled in one transaction: if one dies, none of it happened, and the next claim does it. A sweep looks for eligible cards that
no launch was owed for, and owes the same row under the same key; another forgets what no limit counts any more.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeAlias
from uuid import UUID

from asyncpg import Record

from mainspring import telemetry
from mainspring.db import Database, Scope
from mainspring.rooms import ServerSpine
from mainspring.spine.effects import EffectKind, NewEffect, Owed
from mainspring.spine.events import Event, Trust
from mainspring.spine.executors import External, Transactional
from mainspring.spine.ports import NotOwed, Owes, Verdict
from mainspring.triggers import limits, stray, webhook
from mainspring.triggers.launch import LAUNCHES_PER_HOUR_MAX, Launcher
from mainspring.triggers.matcher import RuleIndex, card_of, facts_of, trusted
from mainspring.triggers.model import DEPTH_MAX, Cards, RuleVersion, Runs, Webhook
from mainspring.triggers.outbound import Outbound
from mainspring.triggers.promote import Promoter
from mainspring.triggers.terms import MIN_TRUST, carried_by
from mainspring.triggers.verbs import SQL, version_of

log = logging.getLogger("mainspring.triggers")

_VERSIONS_FOR = SQL["versions_for"]
_UNDISPATCHED = SQL["undispatched"]

LAUNCH: Final = EffectKind(name="launch", transactional=True, lease_seconds=10)
PROMOTE: Final = EffectKind(name="promote", transactional=True, lease_seconds=10)
# how far an event must be trusted to dispatch its card
TRUSTED: Final = tuple(str(one) for one in Trust if trusted(one, MIN_TRUST))
SWEEP: Final = "dispatch sweep"
SWEEP_SECONDS: Final = 30.0
_SWEEP_BATCH: Final = 200
_DAY_SECONDS: Final = 86_400.0
_TENANTS_KEPT: Final = 1_000
_CLOSED_KEPT: Final = 1_000


# Rules ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Kept:
    """One tenant's versions that judge anything from `low` on, as they stood when its last rule event was `rules_seq`."""

    low: int
    rules_seq: int = -1
    index: RuleIndex = field(default_factory=RuleIndex)

    @property
    def is_worn(self) -> bool:
        """Whether most of it judges nothing to come."""
        return self.index.closed > _CLOSED_KEPT + len(self.index) // 2


RuleContext: TypeAlias = Mapping[UUID, RuleIndex]


class RuleEffects:
    """What an event owes because of rules: one launch or promotion for each rule that it matches."""

    name: Final = "rules"
    kinds: Final = None  # rules may name kinds that others make up

    def __init__(self) -> None:
        self._kept: OrderedDict[UUID, _Kept] = OrderedDict()

    async def load(self, scope: Scope, events: Sequence[Event]) -> RuleContext:
        """Return, for each tenant of the events, the rule versions that judge them.

        The events were read before, so whatever rule event stands at or below theirs is committed and is seen here. What
        is kept in memory is brought up to date by one statement, which returns what has changed since, as a rule none.
        """
        kept = {tenant: self._kept_from(tenant, low) for tenant, low in _lows(events).items()}
        tenants = sorted(kept)
        low = [kept[tenant].low for tenant in tenants]
        known = [seq if (seq := kept[tenant].rules_seq) >= 0 else None for tenant in tenants]
        found: dict[UUID, list[Record]] = {tenant: [] for tenant in tenants}
        for row in await scope.fetch(_VERSIONS_FOR, tenants, low, known):
            found[row["tenant_id"]].append(row)
        for tenant, rows in found.items():
            mine = kept[tenant]
            versions = [version_of(row) for row in rows if row["rule_id"] is not None]
            if mine.rules_seq < 0:
                mine.index = RuleIndex(versions)
            else:
                for version in versions:
                    mine.index.put(version)
            # two loads at once may come back in either order
            mine.rules_seq = max(mine.rules_seq, rows[0]["rules_seq"])
            self._kept[tenant] = mine
            self._kept.move_to_end(tenant)
        while len(self._kept) > _TENANTS_KEPT:
            self._kept.popitem(last=False)
        return {tenant: mine.index for tenant, mine in kept.items()}

    def _kept_from(self, tenant: UUID, low: int) -> _Kept:
        """Return what is kept of a tenant, if it reaches back to `low`; else the empty beginning of it."""
        kept = self._kept.get(tenant)
        return kept if kept is not None and kept.low <= low and not kept.is_worn else _Kept(low)

    def judge(self, event: Event, context: RuleContext) -> Verdict:
        """Owe what each rule that matches does; else name the first term that failed of the first that could have."""
        if not carried_by(event.kind):
            return NotOwed("kinds")
        if event.depth >= DEPTH_MAX:
            return NotOwed("depth")
        owed: list[NewEffect] = []
        term: str = "no rule"
        for version, failed in context[event.tenant_id].judged(facts_of(event)):
            if failed is None:
                owed.append(_owed_by(event, version))
            elif term == "no rule":
                term = failed
        return Owes(*owed) if owed else NotOwed(term)


def _lows(events: Sequence[Event]) -> dict[UUID, int]:
    low: dict[UUID, int] = {}
    for event in events:
        low[event.tenant_id] = min(event.seq, low.get(event.tenant_id, event.seq))
    return low


def _owed_by(event: Event, version: RuleVersion) -> NewEffect:
    if isinstance(version.action, Webhook):
        return webhook.owed_by(event, version)
    card = card_of(event)
    return NewEffect(
        version.action.kind,
        key=f"{event.seq}:{version.rule_id}",
        payload={
            "agent": version.action.agent,
            "card_id": card["id"] if card else None,
            "card": card["key"] if card else None,
        },
        event_seq=event.seq,
        rule_id=version.rule_id,
        rule_version=version.version,
    )


# Dispatch -------------------------------------------------------------------------------------------------------


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
    repaired, failed = 0, set[UUID]()
    while True:
        async with db.system(SWEEP) as scope:
            missed = await scope.fetch(
                _UNDISPATCHED, DEPTH_MAX, horizon_seconds, _SWEEP_BATCH, TRUSTED, list(failed)
            )
        for tenant, rows in groupby(missed, key=itemgetter("tenant_id")):
            try:
                repaired += await _owe_missed(spine, tenant, list(rows))
            except Exception as error:  # noqa: BLE001 - counted and logged; the next round tries this tenant again
                telemetry.loop_failures.labels(SWEEP, type(error).__name__).inc()
                log.warning("%s: of tenant %s: %s: %s", SWEEP, tenant, type(error).__name__, error)
                failed.add(tenant)
        if len(missed) < _SWEEP_BATCH:
            return repaired


async def _owe_missed(spine: ServerSpine, tenant: UUID, missed: Sequence[Record]) -> int:
    owed = 0
    async with spine.open(tenant) as tx:
        for row in missed:
            effect = _dispatch_of(row["id"], row["agent_id"], row["eligible_version"], row["eligible_seq"])
            owed += isinstance(await tx.owe(effect), Owed)
    if owed:
        telemetry.sweep_repaired.labels("dispatch").inc(owed)
    return owed


def register(
    spine: ServerSpine,
    db: Database,
    cards: Cards,
    runs: Runs,
    *,
    launches_per_hour_max: int = LAUNCHES_PER_HOUR_MAX,
    webhook_allow_private: bool = False,
) -> None:
    """Tell the engine what rules and pins owe and how it is done; `wiring.py` calls it once.

    Args:
        launches_per_hour_max: how often one agent may be launched within an hour, whatever launches it.
        webhook_allow_private: let webhooks call addresses that are not of the public internet.
    """
    launcher = Launcher(spine.store, cards, runs, per_hour_max=launches_per_hour_max)
    spine.register_obligation(RuleEffects())
    spine.register_obligation(Dispatch())
    spine.register_executor(Transactional(kind=LAUNCH, run=launcher))
    spine.register_executor(Transactional(kind=PROMOTE, run=Promoter(spine.store, cards, runs)))
    caller = webhook.Caller(spine, cards, Outbound(allow_private=webhook_allow_private))
    spine.register_executor(External(kind=webhook.WEBHOOK, run=caller))
    horizon_seconds = spine.settings.done_days * _DAY_SECONDS * 6 / 7

    async def sweep() -> bool:
        return await dispatch_sweep(spine, db, horizon_seconds=horizon_seconds) > 0

    async def forget() -> bool:
        async with db.system("trim firings") as scope:
            return await limits.trim_firings(scope)

    async def free() -> bool:
        return await stray.free_stray(spine, db) > 0

    spine.register_loop(SWEEP, sweep, every_seconds=SWEEP_SECONDS)
    spine.register_loop(stray.LOOP, free, every_seconds=stray.EVERY_SECONDS)
    spine.register_loop("firings", forget, every_seconds=limits.TRIM_SECONDS)
