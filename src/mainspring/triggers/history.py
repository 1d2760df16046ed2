"""What every rule made of a row of events, whatever number of rules there are. Takes events; leaves the nearest verdicts on each.

It only reads: the versions for all the events together, page by page, each parsed once. They judge when the transaction is over,
by the same judgement as the drain's, and the event loop gets its turn in between. Of many rules those that missed by far are counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final
from uuid import UUID

from mainspring.db import Scope
from mainspring.spine.events import Event
from mainspring.triggers.explain import NOT_IN_FORCE, RuleVerdict, verdict_of
from mainspring.triggers.matcher import Failed, facts_of, first_failed
from mainspring.triggers.model import TERMS, RuleVersion
from mainspring.triggers.verbs import SQL, version_of

TOLD_MAX: Final = 200  # verdicts on one event that are told one by one; of fewer rules, all are
_PAGE: Final = 500
_AT_ONCE: Final = 500  # judgements before the event loop gets its turn
_LOWEST: Final = UUID(int=0)
_NEARNESS: Final[Mapping[str, int]] = {term: n for n, term in enumerate((*TERMS, "self_trigger", "depth"))}


@dataclass(frozen=True, slots=True)
class Told:
    """What rules made of one event: all that matched, those that missed by least, and how many more did not match."""

    verdicts: Sequence[RuleVerdict] = ()
    left_out: int = 0


@dataclass(slots=True)
class Rules:
    """The versions that judged any of some events, and the rules that are younger than some of them."""

    enabled: list[RuleVersion] = field(default_factory=list)
    disabled: list[RuleVersion] = field(default_factory=list)
    born: list[tuple[int, UUID, str]] = field(default_factory=list)

    async def judge(self, event: Event) -> Told:
        """Return what the rules in force at an event made of it. Reads nothing: no transaction need be open."""
        facts = facts_of(event)
        missed: dict[Failed, list[RuleVersion]] = {}
        told: list[RuleVerdict] = []
        number = 0
        for start in range(0, len(self.enabled), _AT_ONCE):
            for version in self.enabled[start : start + _AT_ONCE]:
                if not version.spans(facts.seq):
                    continue
                number += 1
                failed = first_failed(facts, version)
                if failed is None:
                    told.append(verdict_of(version, facts))
                else:
                    missed.setdefault(failed, []).append(version)
            await asyncio.sleep(0)
        idle = [version for version in self.disabled if version.spans(facts.seq)]
        young = [(rule_id, name) for born, rule_id, name in self.born if born >= facts.seq]
        room = max(0, TOLD_MAX - len(told))
        near = (one for failed in sorted(missed, key=_nearness, reverse=True) for one in missed[failed])
        others = chain(
            (verdict_of(version, facts) for version in near),
            (_out_of_force(one.rule_id, one.name, one.version, "disabled") for one in idle),
            (_out_of_force(one, name, None, f"created after event {facts.seq}") for one, name in young),
        )
        told += islice(others, room)
        number += len(idle) + len(young)
        return Told(sorted(told, key=lambda one: one.rule_id), number - len(told))


async def rules_over(
    scope: Scope, tenant: UUID, events: Sequence[Event], *, rule_id: UUID | None = None
) -> Rules:
    """Return the rules that were in force at any of these events, or made behind one; with `rule_id`, that one alone."""
    rules = Rules()
    if not events:
        return rules
    low, high = min(event.seq for event in events), max(event.seq for event in events)
    if rule_id is None:
        born = await scope.fetch(SQL["rules_born"], tenant, low)
    else:
        born = await scope.fetch(SQL["rule_born"], tenant, low, rule_id)
    rules.born = [(row["from_seq"], row["rule_id"], row["name"]) for row in born]
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


def _nearness(failed: Failed) -> int:
    """Terms are tried in this order: the later one failed, the nearer the rule was."""
    return _NEARNESS.get(failed, 0)


def _out_of_force(rule_id: UUID, name: str, version: int | None, why: str) -> RuleVerdict:
    return RuleVerdict(
        rule_id=rule_id,
        name=name,
        version=version,
        matched=False,
        failed_term=NOT_IN_FORCE,
        why_text=f"not in force: {why}",
    )
