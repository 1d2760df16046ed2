"""What every rule made of an event. Takes an event; leaves a verdict for each rule, by the same judgement as the drain's.

It only reads. What it says of an old event is what was decided then, since versions are kept with the seqs they judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from asyncpg import Record

from mainspring.db import Scope
from mainspring.spine.events import Event
from mainspring.triggers.matcher import Facts, Failed, facts_of, first_failed
from mainspring.triggers.model import DEPTH_MAX, RuleVersion
from mainspring.triggers.terms import carried_by, shown
from mainspring.triggers.verbs import SQL, version_of

_VERSIONS_AT = SQL["versions_at"]

NOT_IN_FORCE: Final = "not in force"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleVerdict:
    """What one rule made of one event. `failed_term` is None when it matched; `version` when none judged the event."""

    rule_id: UUID
    name: str
    version: int | None
    matched: bool
    failed_term: str | None
    why_text: str

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as explain shows it."""
        return {
            "rule_id": str(self.rule_id),
            "name": self.name,
            "version": self.version,
            "matched": self.matched,
            "failed_term": self.failed_term,
            "why": self.why_text,
        }


async def verdicts(scope: Scope, event: Event, *, rule_id: UUID | None = None) -> list[RuleVerdict]:
    """Return what each rule made of an event: those that judged it, those switched off, and those younger than it.

    With `rule_id`, what that rule made of it.
    """
    facts = facts_of(event)
    found = await scope.fetch(_VERSIONS_AT, event.tenant_id, event.seq, rule_id)
    return [_verdict(row, facts) for row in found]


def _verdict(row: Record, facts: Facts) -> RuleVerdict:
    if row["version"] is None:
        return _not_in_force(row, f"not in force: created after event {facts.seq}")
    version = version_of(row)
    return verdict_of(version, facts) if version.enabled else _not_in_force(row, "not in force: disabled")


def verdict_of(version: RuleVersion, facts: Facts) -> RuleVerdict:
    """Return what a version makes of an event, whether or not it is in force at its seq."""
    failed = first_failed(facts, version)
    return RuleVerdict(
        rule_id=version.rule_id,
        name=version.name,
        version=version.version,
        matched=failed is None,
        failed_term=failed,
        why_text="matched" if failed is None else why(failed, facts, version),
    )


def _not_in_force(row: Record, why_text: str) -> RuleVerdict:
    return RuleVerdict(
        rule_id=row["rule_id"],
        name=row["name"],
        version=row["version"],
        matched=False,
        failed_term=NOT_IN_FORCE,
        why_text=why_text,
    )


def why(failed: Failed, facts: Facts, version: RuleVersion) -> str:
    """Return in a sentence why a rule's first failed term does not hold."""
    if failed == "depth":
        return f"depth: {facts.depth} causes deep, and from {DEPTH_MAX} on no rule acts"
    if failed == "self_trigger":
        return "self_trigger: the rule's own effects led to this event"
    asked = version.terms.told(failed)
    if failed == "kinds":
        named = asked or "card.* and run.*"
        return f"kinds: it is {facts.kind}, the rule looks at {named}"
    if failed not in carried_by(facts.kind):
        return f"{failed}: {facts.kind} does not tell it, the rule asks for {asked}"
    return (
        f"{failed}: {_told(failed, facts, version)}, the rule asks for {_QUANTIFIED.get(failed, '')}{asked}"
    )


_QUANTIFIED: Final[Mapping[Failed, str]] = {
    "labels_all": "all of ",
    "labels_any": "any of ",
    "labels_none": "none of ",
}


def _told(failed: Failed, facts: Facts, version: RuleVersion) -> str:
    labels = ", ".join(sorted(facts.labels))
    told: Mapping[Failed, str] = {
        "boards": f"the card is on {facts.board}" if facts.board else "there is no card",
        "from_states": f"it came from {facts.from_state}",
        "to_states": f"it went to {facts.to_state}",
        "states": f"the card is in {facts.state}" if facts.state else "there is no card",
        "labels_all": f"the card bears {labels}" if labels else "the card bears no label",
        "labels_any": f"the card bears {labels}" if labels else "the card bears no label",
        "labels_none": f"the card bears {labels}",
        "labels_added": f"added was {', '.join(sorted(facts.added)) or 'none'}",
        "fields": "the card has "
        + ", ".join(
            f"{one.name} = {shown(facts.fields.get(one.name))}"
            for one in version.terms.fields
            if not one.holds(facts.fields)
        ),
        "changes": f"the rule was {facts.change or 'changed'}",
        "min_trust": f"it is trusted as {facts.trust}",
        "actors": f"{facts.actor_handle or 'nobody'} ({facts.actor_kind or 'unknown'}) did it",
        "agents": f"it is a run of {facts.agent or 'nobody'}",
    }
    return told[failed]
