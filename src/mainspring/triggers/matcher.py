"""Which rules an event matches, and what the first term is that fails. Pure.

Takes an event and the rule versions in force; leaves a verdict for each. The drain asks the index, explain asks rule by
rule, and both ask the same `first_failed`: what explain says about an event of last month is what the drain decided then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from mainspring.boards.model import Card, fold
from mainspring.spine.events import Event, Trust
from mainspring.triggers.model import DEPTH_MAX, RuleVersion
from mainspring.triggers.terms import ACTOR_CLASSES, EVERYONE, TermName, Terms, carried_by

Failed: TypeAlias = TermName | Literal["self_trigger", "depth"]

_ANY: Final = ""  # no board and no label is empty
_BUCKETS_MAX: Final = 256  # of one rule: beyond it, its boards are left to the terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What rules look at in an event, folded once. None and empty stand for what this event does not tell.

    `carried` are the terms that events of its kind can tell.
    """

    seq: int
    kind: str
    carried: frozenset[TermName]
    board: str | None
    channel: str | None
    is_hidden: bool  # said where its members alone are told of it: a rule looks at nothing of that
    state: str | None
    labels: frozenset[str]
    from_state: str | None
    to_state: str | None
    added: frozenset[str]
    fields: Mapping[str, Any]
    change: str | None
    actor_kind: str | None
    actor_handle: str | None
    agent: str | None
    via: tuple[UUID, ...]
    depth: int
    trust: Trust


def facts_of(event: Event) -> Facts:
    """Read an event's snapshot."""
    card, actor, run = (_part(event.data, name) for name in ("card", "actor", "run"))
    channel = _channel_of(event)
    board = _folded(card.get("board"))
    return Facts(
        seq=event.seq,
        kind=event.kind,
        carried=carried_by(event.kind),
        board=board.upper() if board is not None else None,
        channel=_folded(channel.get("name")),
        is_hidden=channel.get("visibility") == "shared",
        state=_folded(card.get("state")),
        labels=_all_folded(card.get("labels")),
        from_state=_folded(event.data.get("from")),
        to_state=_folded(event.data.get("to")),
        added=_all_folded(event.data.get("added")),
        fields=_part(card, "fields"),
        change=_folded(event.data.get("change")),
        actor_kind=_folded(actor.get("kind")),
        actor_handle=_folded(actor.get("handle")),
        agent=_folded(run.get("agent")),
        via=event.via,
        depth=event.depth,
        trust=event.trust,
    )


def card_of(event: Event) -> Mapping[str, Any] | None:
    """Return the card that an event tells of; None when it tells of none, or of something that is none."""
    card = event.data.get("card")
    return card if isinstance(card, Mapping) and "id" in card and "key" in card else None


def _channel_of(event: Event) -> Mapping[str, Any]:
    """Return the name and the visibility of the channel that an event tells of."""
    message = _part(event.data, "message")
    if message:
        return {"name": message.get("channel"), "visibility": message.get("visibility")}
    return _part(event.data, "channel")


def _part(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = data.get(name)
    return part if isinstance(part, Mapping) else {}


def _folded(value: Any) -> str | None:
    return fold(value) if isinstance(value, str) else None


def _all_folded(values: Any) -> frozenset[str]:
    return frozenset(fold(value) for value in values if isinstance(value, str)) if values else frozenset()


# One rule ------------------------------------------------------------------------------------------------------


def _by_actors(facts: Facts, terms: Terms) -> bool:
    asked = terms.actors
    return (
        EVERYONE in asked
        or facts.actor_handle in asked
        or any(ACTOR_CLASSES.get(one) == facts.actor_kind for one in asked if one in ACTOR_CLASSES)
    )


# what each term means; a term that asks nothing is not tried
_HOLDS: Final[Mapping[TermName, Callable[[Facts, Terms], bool]]] = {
    "kinds": lambda facts, terms: facts.kind in terms.kinds,
    "boards": lambda facts, terms: facts.board in terms.boards,
    "channels": lambda facts, terms: facts.channel in terms.channels,
    "from_states": lambda facts, terms: facts.from_state in terms.from_states,
    "to_states": lambda facts, terms: facts.to_state in terms.to_states,
    "states": lambda facts, terms: facts.state in terms.states,
    "labels_all": lambda facts, terms: terms.labels_all <= facts.labels,
    "labels_any": lambda facts, terms: not terms.labels_any.isdisjoint(facts.labels),
    "labels_none": lambda facts, terms: terms.labels_none.isdisjoint(facts.labels),
    "labels_added": lambda facts, terms: not terms.labels_added.isdisjoint(facts.added),
    "fields": lambda facts, terms: all(one.holds(facts.fields) for one in terms.fields),
    "changes": lambda facts, terms: facts.change in terms.changes,
    "actors": _by_actors,
    "agents": lambda facts, terms: facts.agent in terms.agents,
    "min_trust": lambda facts, terms: trusted(facts.trust, terms.trust_needed),
}


def trusted(trust: Trust, needed: Trust) -> bool:
    """Tell whether what happened is trusted as far as is needed."""
    return trust.rank >= needed.rank


def first_failed(facts: Facts, version: RuleVersion) -> Failed | None:
    """Return the first term of a rule that an event does not fulfil, or None when it matches.

    Whether the version is in force at the event's seq is not asked here.
    """
    terms = version.terms
    if facts.kind not in terms.looked_at:
        return "kinds"
    if facts.is_hidden:
        return "channels"
    for term in terms.asked:
        if term not in facts.carried or not _HOLDS[term](facts, terms):
            return term
    if not trusted(facts.trust, terms.trust_needed):  # asked of every event, whether the rule says so or not
        return "min_trust"
    if not version.options.self_trigger and version.rule_id in facts.via:
        return "self_trigger"
    return "depth" if facts.depth >= DEPTH_MAX else None


def failures(facts: Facts, version: RuleVersion) -> tuple[int, int]:
    """Return how many of a rule's terms an event fails that is of a kind it looks at, and how many hold."""
    terms, holding, failing = version.terms, 0, 0
    for term in terms.asked:
        if term in facts.carried and _HOLDS[term](facts, terms):
            holding += 1
        else:
            failing += 1
    failing += facts.is_hidden
    failing += terms.min_trust is None and not trusted(facts.trust, terms.trust_needed)
    failing += not version.options.self_trigger and version.rule_id in facts.via
    failing += facts.depth >= DEPTH_MAX
    return failing, holding


# which of a rule's terms speak of the card itself, and what they ask of it later
_HOLDS_NOW: Final[Mapping[TermName, Callable[[Card, Terms], bool]]] = {
    "boards": lambda card, terms: card.board.key in terms.boards,
    "to_states": lambda card, terms: card.state in terms.to_states,
    "states": lambda card, terms: card.state in terms.states,
    "labels_all": lambda card, terms: terms.labels_all <= card.labels,
    "labels_any": lambda card, terms: not terms.labels_any.isdisjoint(card.labels),
    "labels_none": lambda card, terms: terms.labels_none.isdisjoint(card.labels),
    "labels_added": lambda card, terms: not terms.labels_added.isdisjoint(card.labels),
    "fields": lambda card, terms: all(one.holds(card.fields) for one in terms.fields),
}


def first_failed_now(terms: Terms, card: Card) -> TermName | None:
    """Return the first term that a card, as it is now, does not fulfil any more, or None.

    Where it came from and who did it are past, and are not asked again.
    """
    return next(
        (term for term in terms.asked if term in _HOLDS_NOW and not _HOLDS_NOW[term](card, terms)), None
    )


# Many rules ----------------------------------------------------------------------------------------------------

_Bucket: TypeAlias = tuple[str, str, str]  # kind, board, label


class RuleIndex:
    """The enabled versions of one tenant's rules, laid out so that an event meets those alone that it could match.

    A version stands in one bucket for each (kind, board, label) without which it cannot match; where it asks no board or
    no label, under any. All versions of a rule may stand in it: each judges the seqs that it spans.
    """

    __slots__ = ("_at", "_buckets", "_rarity", "_versions", "closed")

    def __init__(self, versions: Iterable[RuleVersion] = ()) -> None:
        self._versions: list[RuleVersion] = []
        self._at: dict[tuple[UUID, int], int] = {}
        self._buckets: dict[_Bucket, list[int]] = {}
        self._rarity: Counter[str] = Counter()
        self.closed = 0  # how many judge no event to come
        versions = tuple(versions)
        for version in versions:
            self._rarity.update(version.terms.labels_all)
        for version in versions:
            self.put(version)

    def __len__(self) -> int:
        return len(self._versions)

    def put(self, version: RuleVersion) -> None:
        """Add a version, or note where one that is here ends.

        Whoever judges events by this index at that moment is not disturbed: a change of rules comes after their events.
        """
        if not version.enabled:
            return
        n = self._at.get((version.rule_id, version.version))
        if n is None:
            n = self._at[version.rule_id, version.version] = len(self._versions)
            self._versions.append(version)
            for bucket in _buckets(version.terms, self._rarity):
                self._buckets.setdefault(bucket, []).append(n)
        elif self._versions[n].until_seq is not None or version.until_seq is None:
            return  # an end is final, whoever read it first
        else:
            self._versions[n] = version
        self.closed += version.until_seq is not None

    def candidates(self, facts: Facts) -> list[RuleVersion]:
        """Return the versions in force that could match, ordered by rule: a superset of those that do."""
        boards = (_ANY,) if facts.board is None else (_ANY, facts.board)
        labels = (_ANY, *(facts.labels | facts.added))
        found: set[int] = set()
        for bucket in product((facts.kind,), boards, labels):
            found.update(self._buckets.get(bucket, ()))
        versions = [self._versions[n] for n in found if self._versions[n].spans(facts.seq)]
        # by the number of the id, which orders alike: ids themselves are compared in Python, at ten times the price
        return sorted(versions, key=lambda version: (version.rule_id.int, version.version))

    def judged(self, facts: Facts) -> Iterator[tuple[RuleVersion, Failed | None]]:
        """Yield each candidate with the first term that fails, None for those that match."""
        for version in self.candidates(facts):
            yield version, first_failed(facts, version)


def _buckets(terms: Terms, rarity: Mapping[str, int]) -> Iterator[_Bucket]:
    if terms.labels_all:
        # one of them is enough to find it by: the one that the fewest rules ask for
        labels = frozenset({min(terms.labels_all, key=lambda label: (rarity[label], label))})
    else:
        labels = terms.labels_added or terms.labels_any or frozenset({_ANY})
    kinds, boards = terms.firing_kinds, terms.boards or frozenset({_ANY})
    if len(kinds) * len(boards) * len(labels) > _BUCKETS_MAX:
        boards = frozenset({_ANY})
    return product(kinds, boards, labels)
