"""What every rule made of an event. Takes an event; leaves a verdict for each rule, by the same judgement as the drain's.

It only reads. What it says of an old event is what was decided then, since versions are kept with the seqs they judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias
from uuid import UUID

from mainspring.db import Scope
from mainspring.spine.events import Event
from mainspring.triggers.matcher import Facts, Failed, facts_of, failures, first_failed
from mainspring.triggers.model import DEPTH_MAX, RuleVersion
from mainspring.triggers.terms import carried_by, shown
from mainspring.triggers.verbs import SQL, version_of

_VERSIONS_AT = SQL["versions_at"]

NOT_IN_FORCE: Final = "not in force"
DISABLED: Final = "disabled"

Near: TypeAlias = tuple[int, ...]
MATCHES: Final[Near] = (0, 0, 0, 0, 0)
# of rules that miss by one term, that which misses by an earlier of these is the nearer: who wrote it meant this event, had the card
# or whoever moved it been otherwise; one that asks for another move was meant for that
_NEAREST: Final[tuple[Failed, ...]] = (
    "depth", "self_trigger", "min_trust", "agents", "actors", "changes", "fields", "labels_none", "labels_any", "labels_all",
    "boards", "channels", "labels_added", "from_states", "states", "to_states", "kinds",
)  # fmt: skip
_FARNESS: Final = {term: n for n, term in enumerate(_NEAREST)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleVerdict:
    """What one rule made of one event. `failed_term` is None when it matched; `version` when none judged the event.

    `missed_term` is what fails, or would fail were the rule in force as it is by now; `near` orders verdicts, the nearest to a match first.
    """

    rule_id: UUID
    name: str
    version: int | None
    matched: bool
    failed_term: str | None
    why_text: str
    missed_term: str | None
    near: Near

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as explain shows it."""
        return {
            "rule_id": str(self.rule_id),
            "name": self.name,
            "version": self.version,
            "matched": self.matched,
            "failed_term": self.failed_term,
            "missed_term": self.missed_term,
            "why": self.why_text,
        }


async def verdicts(scope: Scope, event: Event, *, rule_id: UUID | None = None) -> list[RuleVerdict]:
    """Return what each rule made of an event: those that judged it, those switched off, and those younger than it.

    With `rule_id`, what that rule made of it.
    """
    facts = facts_of(event)
    found = await scope.fetch(_VERSIONS_AT, event.tenant_id, event.seq, rule_id)
    if rule_id is None:
        behind = await scope.fetch(SQL["versions_behind"], event.tenant_id, event.seq)
    else:
        behind = await scope.fetch(SQL["versions_of_rule_behind"], event.tenant_id, event.seq, rule_id)
    now = changed([version_of(row) for row in behind], facts.seq)
    judged = (version_of(row) for row in found)
    return sorted((verdict_at(one, facts, now.get(one.rule_id.int)) for one in judged), key=order)


def changed(versions: Iterable[RuleVersion], seq: int) -> dict[int, RuleVersion]:
    """Return, of rules that were changed at or behind an event and are enabled, what they say by now; by the id's number."""
    return {
        one.rule_id.int: one
        for one in versions
        if one.from_seq >= seq and one.version > 1 and one.until_seq is None and one.enabled
    }


def order(verdict: RuleVerdict) -> tuple[Near, int]:
    """Return what verdicts are sorted by: those that matched, as they are carried out, then those that missed by least."""
    return (() if verdict.matched else verdict.near), verdict.rule_id.int


def verdict_at(version: RuleVersion, facts: Facts, now: RuleVersion | None = None) -> RuleVerdict:
    """Return what came of a rule at an event: of the version that was there, or, of a younger rule, of its first.

    `now` is what the rule says by now, where it was changed since: that this would have matched is part of the verdict.
    """
    verdict = _verdict_at(version, facts)
    if now is None or verdict.missed_term is None or first_failed(facts, now) is not None:
        return verdict
    would = replace(verdict, missed_term=None, near=MATCHES)
    if verdict.version is None:
        return would
    if verdict.failed_term == NOT_IN_FORCE:
        return replace(would, version=now.version, why_text=f"not in force: changed after event {facts.seq}")
    return replace(
        would,
        why_text=f"{verdict.why_text}; v{now.version} would have matched, and was made after event {facts.seq}",
    )


def _verdict_at(version: RuleVersion, facts: Facts) -> RuleVerdict:
    if not version.spans(facts.seq):
        return _not_in_force(version, facts, f"created after event {facts.seq}", number=None)
    if not version.enabled:
        return _not_in_force(version, facts, DISABLED, number=version.version)
    return verdict_of(version, facts)


def nearness(version: RuleVersion, facts: Facts, failed: Failed | None) -> Near:
    """Return how near a version is to matching, were it in force: the least is the nearest."""
    if failed is None:
        return MATCHES
    if failed == "kinds":
        return (1, 0, 0, 0, 0)
    missing, holding = failures(facts, version)
    untold = failed in version.terms.asked and failed not in facts.carried
    return (0, int(untold), missing, _FARNESS[failed], -holding)


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
        missed_term=failed,
        near=nearness(version, facts, failed),
    )


def _not_in_force(version: RuleVersion, facts: Facts, because: str, *, number: int | None) -> RuleVerdict:
    failed = first_failed(facts, version)
    return RuleVerdict(
        rule_id=version.rule_id,
        name=version.name,
        version=number,
        matched=False,
        failed_term=NOT_IN_FORCE,
        why_text=f"not in force: {because}",
        missed_term=failed,
        near=nearness(version, facts, failed),
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


def _channel_told(facts: Facts) -> str:
    if facts.is_hidden:
        return "it was said in a shared channel, and rules look at open ones alone"
    return f"it was said in {facts.channel}" if facts.channel else "there is no channel"


def _told(failed: Failed, facts: Facts, version: RuleVersion) -> str:
    labels = ", ".join(sorted(facts.labels))
    told: Mapping[Failed, str] = {
        "boards": f"the card is on {facts.board}" if facts.board else "there is no card",
        "channels": _channel_told(facts),
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
