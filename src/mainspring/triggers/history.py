"""What every rule made of a row of events, whatever number of rules there are. Takes events; leaves the nearest verdicts on each.

It only reads: the versions for all the events together, page by page, each parsed once. They judge when the transaction is over,
by the same judgement as the drain's, and the event loop gets its turn in between. Of many rules those that missed by far are counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from mainspring.db import Scope
from mainspring.spine.events import Event
from mainspring.triggers.explain import MATCHES, Near, RuleVerdict, changed, nearness, order, verdict_at
from mainspring.triggers.matcher import facts_of, first_failed
from mainspring.triggers.model import RuleVersion
from mainspring.triggers.verbs import SQL, version_of

TOLD_MAX: Final = 200  # verdicts on one event that are told one by one; of fewer rules, all are
_PAGE: Final = 500
_AT_ONCE: Final = 500  # judgements before the event loop gets its turn
_LOWEST: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Told:
    """What rules made of one event: all that matched, those that missed by least, and how many more did not match."""

    verdicts: Sequence[RuleVerdict] = ()
    left_out: int = 0


@dataclass(slots=True)
class Rules:
    """The versions that judged any of some events; and `behind` them, the first of younger rules, and what changed ones say by now."""

    enabled: list[RuleVersion] = field(default_factory=list)
    disabled: list[RuleVersion] = field(default_factory=list)
    behind: list[RuleVersion] = field(default_factory=list)

    async def judge(self, event: Event) -> Told:
        """Return what rules made of an event, and would have made of it. Reads nothing: no transaction need be open.

        Those that matched come first, in the order in which they are carried out; then those that missed, the nearest first.
        """
        facts = facts_of(event)
        matched: list[RuleVersion] = []
        missed: list[tuple[Near, int, RuleVersion]] = []
        everyone = [
            *self.enabled,
            *self.disabled,
            *(one for one in self.behind if one.version == 1 and one.from_seq >= facts.seq),
        ]
        young = len(self.enabled) + len(self.disabled)
        now = changed(self.behind, facts.seq)
        for start in range(0, len(everyone), _AT_ONCE):
            for n, version in enumerate(everyone[start : start + _AT_ONCE], start):
                if n < young and not version.spans(facts.seq):
                    continue
                failed = first_failed(facts, version)
                if failed is None and n < len(self.enabled):
                    matched.append(version)
                else:
                    later = now.get(version.rule_id.int)
                    would = later is not None and first_failed(facts, later) is None
                    missed.append((MATCHES if would else nearness(version, facts, failed), n, version))
            await asyncio.sleep(0)
        missed.sort(key=lambda one: one[:2])
        near = [version for _, _, version in missed[: max(0, TOLD_MAX - len(matched))]]
        told = [verdict_at(one, facts, now.get(one.rule_id.int)) for one in (*matched, *near)]
        return Told(sorted(told, key=order), len(missed) - len(near))


async def rules_over(
    scope: Scope, tenant: UUID, events: Sequence[Event], *, rule_id: UUID | None = None
) -> Rules:
    """Return the rules that were in force at any of these events, or made behind one; with `rule_id`, that one alone."""
    rules = Rules()
    if not events:
        return rules
    low, high = min(event.seq for event in events), max(event.seq for event in events)
    if rule_id is None:
        behind = await scope.fetch(SQL["versions_behind"], tenant, low)
    else:
        behind = await scope.fetch(SQL["versions_of_rule_behind"], tenant, low, rule_id)
    rules.behind = [version_of(row) for row in behind]
    place, number = rule_id or _LOWEST, 0
    while True:
        if rule_id is None:
            page = await scope.fetch(SQL["versions_over"], tenant, low, high, place, number, _PAGE)
        else:
            page = await scope.fetch(SQL["versions_of_rule_over"], tenant, low, high, rule_id, number, _PAGE)
        for row in page:
            version = version_of(row)
            (rules.enabled if version.enabled else rules.disabled).append(version)
        if len(page) < _PAGE:
            return rules
        place, number = page[-1]["rule_id"], page[-1]["version"]
