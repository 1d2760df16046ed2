"""What matches: each term on its own, and the index against a scan of all rules."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.boards.model import Board, BoardState, Card
from mainspring.ids import new_id
from mainspring.spine.events import Trust
from mainspring.triggers.matcher import RuleIndex, facts_of, first_failed, first_failed_now
from mainspring.triggers.model import DEPTH_MAX, Options, RuleVersion
from mainspring.triggers.terms import DEFAULT_KINDS, RULE_KINDS, Terms

from .values import card, event, rule

RUN = {"id": "x", "agent": "Echo "}


def failed(version: RuleVersion, kind: str = "card.moved", **data: Any) -> str | None:
    return first_failed(facts_of(event(kind, **data)), version)


@pytest.mark.parametrize(
    ("terms", "data", "term"),
    [
        ({}, {}, None),
        ({"kinds": ["card.moved"]}, {}, None),
        ({"kinds": ["card.created", "run.done"]}, {}, "kinds"),
        ({"boards": ["OPS", "WEB"]}, {"card": card(board="ops ")}, None),
        ({"boards": ["WEB"]}, {}, "boards"),
        ({"boards": ["OPS"]}, {"card": None, "to": "x"}, "boards"),
        ({"from_states": ["inbox"]}, {"from": " INBOX"}, None),
        ({"from_states": ["ready"]}, {}, "from_states"),
        ({"to_states": ["ready", "doing"]}, {"to": "Ready"}, None),
        ({"to_states": ["doing"]}, {}, "to_states"),
        ({"states": ["ready"]}, {"card": card(state=" Ready ")}, None),
        ({"states": ["done"]}, {}, "states"),
        ({"labels_all": ["a", "b"]}, {"card": card(labels=["A ", "b", "c"])}, None),
        ({"labels_all": ["a", "b"]}, {"card": card(labels=["a"])}, "labels_all"),
        ({"labels_any": ["a", "b"]}, {"card": card(labels=["b"])}, None),
        ({"labels_any": ["a", "b"]}, {"card": card(labels=["c"])}, "labels_any"),
        ({"labels_none": ["a", "b"]}, {"card": card(labels=["c"])}, None),
        ({"labels_none": ["a", "b"]}, {"card": card(labels=["b"])}, "labels_none"),
        ({"labels_none": ["a"]}, {"card": None, "to": "x"}, None),
        ({"labels_added": ["a"]}, {"added": ["a"]}, "labels_added"),
        ({"actors": ["anyone"]}, {"actor": {"kind": "system", "handle": "mainspring"}}, None),
        ({"actors": ["members"]}, {"actor": {"kind": "human", "handle": "ana"}}, None),
        ({"actors": ["members"]}, {"actor": {"kind": "agent", "handle": "echo"}}, "actors"),
        ({"actors": ["agents"]}, {"actor": {"kind": "agent", "handle": "echo"}}, None),
        ({"actors": ["agents", "ana"]}, {"actor": {"kind": "human", "handle": " ANA"}}, None),
        ({"actors": ["bob"]}, {}, "actors"),
        ({"actors": ["members", "agents"]}, {"actor": {"kind": "system", "handle": "mainspring"}}, "actors"),
        ({"agents": ["echo"]}, {"run": RUN}, "agents"),  # a move is no run's event
        ({"fields": {"team": "a"}}, {"card": card(fields={"team": "a", "n": 1})}, None),
        ({"fields": {"team": ["a", "b"]}}, {"card": card(fields={"team": "b"})}, None),
        ({"fields": {"team": ["a", "b"]}}, {"card": card(fields={"team": "A"})}, "fields"),  # as they are
        ({"fields": {"team": "a", "n": 1}}, {"card": card(fields={"team": "a"})}, "fields"),
        ({"fields": {"n": 1}}, {"card": card(fields={"n": True})}, "fields"),
        ({"fields": {"n": 1}}, {"card": card(fields={"n": 1.0})}, None),
        ({"fields": {"n": True}}, {"card": card(fields={"n": 1})}, "fields"),
        ({"fields": {"team": None}}, {"card": card(fields={"n": 1})}, None),
        ({"fields": {"team": None}}, {"card": card(fields={"team": "a"})}, "fields"),
        ({"fields": {"team": ["a"]}}, {"card": card(fields={"team": ["a"]})}, "fields"),
        ({"fields": {"team": "a"}}, {"card": None, "to": "x"}, "fields"),
        ({"boards": ["WEB"], "states": ["done"]}, {}, "boards"),  # the first that fails is named
        ({"boards": ["OPS"], "states": ["done"]}, {}, "states"),
    ],
)
def test_each_term(terms: dict[str, Any], data: dict[str, Any], term: str | None) -> None:
    assert failed(rule(**terms), **data) == term


def test_runs_match_by_their_agent_and_their_card() -> None:
    version = rule(kinds=["run.failed"], agents=["echo"], labels_all=["a"])
    assert failed(version, "run.failed", run=RUN, card=card(labels=["a"])) is None
    assert failed(version, "run.failed", run={"agent": "flaky"}, card=card(labels=["a"])) == "agents"
    assert failed(version, "run.failed", run=RUN, card=None) == "labels_all"


def test_labels_added_looks_at_what_this_event_added() -> None:
    version = rule(labels_added=["go"])
    assert failed(version, "card.labeled", added=["Go"], card=card(labels=["go"])) is None
    assert (
        failed(version, "card.labeled", added=["other"], card=card(labels=["go", "other"])) == "labels_added"
    )


def test_a_rule_does_not_match_what_it_caused_unless_asked_to() -> None:
    version = rule()
    facts = facts_of(event(via=(new_id(), version.rule_id)))
    assert first_failed(facts, version) == "self_trigger"
    assert first_failed(facts, rule(rule_id=version.rule_id, options=Options(self_trigger=True))) is None
    assert first_failed(facts, rule()) is None  # another rule may follow on it


def test_from_depth_eight_on_nothing_matches() -> None:
    assert first_failed(facts_of(event(depth=DEPTH_MAX - 1)), rule()) is None
    assert first_failed(facts_of(event(depth=DEPTH_MAX)), rule()) == "depth"
    assert first_failed(facts_of(event(depth=DEPTH_MAX)), rule(boards=["WEB"])) == "boards"


@pytest.mark.parametrize("kind", ["rule.changed", "effect.dead", "custom.deploy", "session.started"])
def test_only_a_rule_that_names_them_looks_at_others_than_cards_and_runs(kind: str) -> None:
    assert failed(rule(), kind) == "kinds"
    assert failed(rule(actors=["anyone"]), kind) == "kinds"
    assert failed(rule(kinds=["card.moved"]), kind) == "kinds"
    if kind != "session.started":
        assert failed(rule(kinds=[kind]), kind) is None


def test_alerts_and_what_others_post() -> None:
    assert failed(rule(kinds=["effect.dead"]), "effect.dead", card=None, actor=None) is None
    paused = rule(kinds=["rule.changed"], changes=["paused"])
    assert failed(paused, "rule.changed", change="paused", card=None) is None
    assert failed(paused, "rule.changed", change="edited", card=None) == "changes"
    deploys = rule(kinds=["custom.deploy"], boards=["OPS"])
    assert failed(deploys, "custom.deploy") is None
    assert failed(deploys, "custom.deploy", card=None) == "boards"
    assert failed(deploys, "custom.other") == "kinds"


@pytest.mark.parametrize(
    ("needed", "trusted"),
    [
        (None, {Trust.MEMBER, Trust.AGENT}),
        (Trust.MEMBER, {Trust.MEMBER}),
        (Trust.AGENT, {Trust.MEMBER, Trust.AGENT}),
        (Trust.FORGE, {Trust.MEMBER, Trust.AGENT, Trust.FORGE}),
        (Trust.STRANGER, set(Trust)),
    ],
)
def test_what_is_not_trusted_far_enough_sets_nothing_in_motion(
    needed: Trust | None, trusted: set[Trust]
) -> None:
    version = rule(min_trust=needed)
    for trust in Trust:
        found = first_failed(facts_of(event(trust=trust)), version)
        assert found == (None if trust in trusted else "min_trust")


@pytest.mark.parametrize(
    ("terms", "term"),
    [
        ({"to_states": ["ready"]}, None),
        ({"to_states": ["doing"]}, "to_states"),
        ({"from_states": ["ready"]}, None),  # where it came from is past
        ({"labels_added": ["b", "c"]}, "labels_added"),
        ({"labels_added": ["a", "c"]}, None),
        ({"labels_all": ["a", "b"]}, "labels_all"),
        ({"labels_none": ["a"]}, "labels_none"),
        ({"boards": ["WEB"]}, "boards"),
        ({"fields": {"team": "a"}}, None),
        ({"fields": {"team": "b"}}, "fields"),
        ({"actors": ["nobody"], "agents": ["nobody"], "kinds": ["run.done"], "min_trust": "member"}, None),
    ],
)
def test_recheck_asks_the_card_alone(terms: dict[str, Any], term: str | None) -> None:
    board = Board(id=new_id(), key="OPS", name="o", states=(BoardState(name="ready"),))
    now = Card(
        id=new_id(),
        board=board,
        number=1,
        title="t",
        state="ready",
        labels=frozenset({"a"}),
        fields={"team": "a"},
    )
    assert first_failed_now(Terms.from_json(terms), now) == term


# The index ------------------------------------------------------------------------------------------------------

KINDS = [
    "card.created",
    "card.moved",
    "card.labeled",
    "card.deleted",
    "run.done",
    "run.failed",
    "rule.changed",
    "effect.dead",
    "custom.x",
    "session.started",
]
RULE_IDS = [new_id() for _ in range(4)]


def some(*values: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(values), max_size=2)


labels = some("a", "b", "c", "d")
terms_ = st.fixed_dictionaries(
    {},
    optional={
        "kinds": st.lists(
            st.sampled_from(sorted(set(KINDS) & (RULE_KINDS | {"custom.x"}))), min_size=1, max_size=3
        ),
        "fields": st.dictionaries(
            st.sampled_from(["f", "g"]), st.sampled_from([1, True, None, "x"]), max_size=1
        ),
        "changes": some("paused", "edited"),
        "boards": some("OPS", "WEB"),
        "from_states": some("inbox", "ready"),
        "to_states": some("ready", "doing"),
        "states": some("ready", "doing"),
        "labels_all": labels,
        "labels_any": labels,
        "labels_none": labels,
        "labels_added": labels,
        "actors": some("anyone", "members", "agents", "ana"),
        "agents": some("echo", "flaky"),
    },
)
spans = st.tuples(st.integers(0, 12), st.none() | st.integers(0, 8)).map(
    lambda span: (span[0], None if span[1] is None else span[0] + span[1])
)
rules_ = st.builds(
    lambda rule_id, terms, span, enabled, self_trigger: rule(
        rule_id=rule_id,
        enabled=enabled,
        from_seq=span[0],
        until_seq=span[1],
        options=Options(self_trigger=self_trigger),
        **terms,
    ),
    st.sampled_from(RULE_IDS),
    terms_,
    spans,
    st.booleans() | st.just(True),
    st.booleans(),
)
cards = st.none() | st.builds(
    card,
    board=st.sampled_from(["OPS", "WEB", "ops"]),
    state=st.sampled_from(["ready", "doing"]),
    labels=labels,
    fields=st.dictionaries(st.sampled_from(["f", "g"]), st.sampled_from([1, True, "x"]), max_size=2),
)
events_ = st.builds(
    lambda kind, seq, depth, via, card_, more: event(kind, seq=seq, depth=depth, via=tuple(via), **{"to": "x"} | more, card=card_),
    st.sampled_from(KINDS),
    st.integers(1, 20),
    st.sampled_from([0, 0, 0, 7, 8]),
    st.lists(st.sampled_from(RULE_IDS), max_size=1),
    cards,
    st.fixed_dictionaries(
        {"run": st.fixed_dictionaries({"agent": st.sampled_from(["echo", "flaky"])})},
        optional={
            "from": st.sampled_from(["inbox", "ready"]),
            "to": st.sampled_from(["ready", "doing"]),
            "added": labels,
            "change": st.sampled_from(["paused", "edited"]),
            "actor": st.fixed_dictionaries({"kind": st.sampled_from(["human", "agent"]), "handle": st.just("ana")}),
        },
    ),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(st.lists(rules_, max_size=12), st.lists(events_, min_size=1, max_size=5))
def test_the_index_finds_what_a_scan_of_all_rules_finds(
    versions: list[RuleVersion], happened: list[Any]
) -> None:
    versions = [replace(version, version=n) for n, version in enumerate(versions)]
    index = RuleIndex(versions)
    for one in happened:
        facts = facts_of(one)
        scanned = [
            version
            for version in versions
            if version.enabled and version.spans(one.seq) and first_failed(facts, version) is None
        ]
        found = [version for version, term in index.judged(facts) if term is None]
        assert sorted(map(id, found)) == sorted(map(id, scanned))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.lists(rules_, max_size=8), st.lists(events_, min_size=1, max_size=4), st.randoms(use_true_random=False)
)
def test_an_index_that_is_kept_up_to_date_is_one_that_is_read_anew(
    versions: list[RuleVersion], happened: list[Any], random: Any
) -> None:
    numbered = [replace(version, version=n) for n, version in enumerate(versions)]
    open_first = [replace(version, until_seq=None) for version in numbered]
    updates = numbered + random.sample(open_first, len(open_first))  # an end may be read before its beginning
    kept = RuleIndex(open_first[: len(open_first) // 2])
    for version in updates:
        kept.put(version)
    anew = RuleIndex(numbered)
    for one in happened:
        facts = facts_of(one)
        found = [version.version for version, term in kept.judged(facts) if term is None]
        assert found == [version.version for version, term in anew.judged(facts) if term is None]
    assert (len(kept), kept.closed) == (len(anew), anew.closed)


@pytest.mark.slow
def test_ten_thousand_rules_cost_by_those_that_could_match() -> None:
    versions = [
        rule(
            kinds=["card.moved", "card.labeled"], boards=[f"B{n % 100}"], labels_all=["agent", f"l{n // 100}"]
        )
        for n in range(10_000)
    ]
    index = RuleIndex(versions)
    happened = event(card=card(board="B7", labels=["agent", "l3", "other"]))
    assert [version.terms.labels_all for version in index.candidates(facts_of(happened))] == [{"agent", "l3"}]


def test_judging_is_the_same_work_among_thousands_of_rules_as_among_a_hundred() -> None:
    """Counted in calls of functions: one rule could match, and the others are not even looked at."""
    happened = event(card=card(board="B7", labels=["agent", "l3", "other"]))

    def calls(rules: int) -> int:
        versions = [
            rule(kinds=["card.moved"], boards=[f"B{n % 10}"], labels_all=["agent", f"l{n // 10}"])
            for n in range(rules)
        ]
        index, counted = RuleIndex(versions), 0

        def count(_frame: Any, what: str, _argument: Any) -> None:
            nonlocal counted
            counted += what in ("call", "c_call")

        sys.setprofile(count)
        try:
            found = list(index.judged(facts_of(happened)))
        finally:
            sys.setprofile(None)
        assert [term for _, term in found] == [None]
        return counted

    assert calls(2_000) == calls(100) > 0


def test_a_rule_of_many_boards_and_labels_does_not_fill_the_index() -> None:
    many = [f"B{n}" for n in range(64)]
    index = RuleIndex([rule(boards=many, labels_any=[f"l{n}" for n in range(64)])])
    assert sum(map(len, index._buckets.values())) <= 64 * len(DEFAULT_KINDS)
    found = index.judged(facts_of(event(card=card(board="B5", labels=["l9", "l10"]))))
    assert [term for _, term in found] == [None]
