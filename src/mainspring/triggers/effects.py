"""What events owe because of rules: a launch, promotion or webhook for each rule that matches; and how all of this room is done.

The obligation takes events from the drain and leaves rows; the executors (`launch.py`, `promote.py`) take a claimed row and leave it
done and settled in one transaction: if one dies, none of it happened, and the next claim does it. What goes out into the world is in
`webhooks/`, what pins owe in `dispatch.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import UUID

from asyncpg import Record

from mainspring.db import Database, Scope
from mainspring.rooms import ServerSpine
from mainspring.spine.effects import NewEffect
from mainspring.spine.events import Event
from mainspring.spine.executors import External, Transactional
from mainspring.spine.ports import NotOwed, Owes, Verdict
from mainspring.triggers import dispatch, limits, stray
from mainspring.triggers.launch import LAUNCH, LAUNCHES_PER_HOUR_MAX, Launcher
from mainspring.triggers.matcher import RuleIndex, card_of, facts_of
from mainspring.triggers.model import DEPTH_MAX, Cards, RuleVersion, Runs, Webhook
from mainspring.triggers.promote import PROMOTE, Promoter
from mainspring.triggers.terms import carried_by
from mainspring.triggers.verbs import SQL, version_of
from mainspring.triggers.webhooks import effects as webhooks
from mainspring.triggers.webhooks.outbound import Outbound

_VERSIONS_FOR = SQL["versions_for"]

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
        return webhooks.owed_by(event, version)
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


def register(
    spine: ServerSpine,
    db: Database,
    cards: Cards,
    runs: Runs,
    *,
    launches_per_hour_max: int = LAUNCHES_PER_HOUR_MAX,
    webhook_allow_private: bool = False,
) -> None:
    """Tell the engine what rules and pins owe and how it is done; `build.py` calls it once.

    Args:
        launches_per_hour_max: how often one agent may be launched within an hour, whatever launches it.
        webhook_allow_private: let webhooks call addresses that are not of the public internet.
    """
    launcher = Launcher(spine.store, cards, runs, per_hour_max=launches_per_hour_max)
    spine.register_obligation(RuleEffects())
    spine.register_obligation(dispatch.Dispatch())
    spine.register_executor(Transactional(kind=LAUNCH, run=launcher))
    spine.register_executor(Transactional(kind=PROMOTE, run=Promoter(spine.store, cards, runs)))
    caller = webhooks.Caller(spine, cards, Outbound(allow_private=webhook_allow_private))
    spine.register_executor(External(kind=webhooks.WEBHOOK, run=caller))
    horizon_seconds = spine.settings.done_days * _DAY_SECONDS * 6 / 7

    async def sweep() -> bool:
        return await dispatch.dispatch_sweep(spine, db, horizon_seconds=horizon_seconds) > 0

    async def forget() -> bool:
        async with db.system("trim firings") as scope:
            return await limits.trim_firings(scope)

    async def free() -> bool:
        return await stray.free_stray(spine, db) > 0

    spine.register_loop(dispatch.SWEEP, sweep, every_seconds=dispatch.SWEEP_SECONDS)
    spine.register_loop(stray.LOOP, free, every_seconds=stray.EVERY_SECONDS)
    spine.register_loop("firings", forget, every_seconds=limits.TRIM_SECONDS)
