"""What a rule may say, and how it is told what it may not."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.rooms import Invalid
from mainspring.triggers.checks import definition_of
from mainspring.triggers.model import Definition, Known, Launch, Options, Promote
from mainspring.triggers.sense import handles_of, remarks_on
from mainspring.triggers.terms import Terms

LAUNCH = {"launch": {"agent": "echo", "prompt": "{{card.title}}"}}
KNOWN = Known(
    boards={"OPS": frozenset({"inbox", "ready"}), "WEB": frozenset({"shipped"})},
    accounts={"echo": "agent", "ana": "human"},
)


def body(when: Any = None, do: Any = LAUNCH, **more: Any) -> dict[str, Any]:
    return {"name": "r", "when": {} if when is None else when, "do": do} | more


def refused(given: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(Invalid) as caught:
        definition_of(given)
    return {error.pointer: error.detail for error in caught.value.errors}


def test_a_rule_is_read_folded() -> None:
    read = definition_of(
        body(
            {
                "kinds": [" Card.Moved "],
                "boards": ["ops "],
                "to_states": ["Ready", "ready"],
                "labels_all": [" Go"],
            },
            {"launch": {"agent": "@Echo", "prompt": " {{ card.title }} "}},
            options={"consume_label": True},
        )
    )
    assert read == Definition(
        name="r",
        terms=Terms(
            kinds=frozenset({"card.moved"}),
            boards=frozenset({"OPS"}),
            to_states=frozenset({"ready"}),
            labels_all=frozenset({"go"}),
        ),
        action=Launch(agent="echo", prompt=" {{ card.title }} "),
        options=Options(consume_label=True),
    )
    assert definition_of(read.as_json()) == read
    assert Terms.from_json(read.terms.as_json()) == read.terms


def test_the_labels_of_a_runner_are_read_folded() -> None:
    launch = {"agent": "echo", "prompt": "go"}
    read = definition_of(body(do={"launch": launch | {"runner_labels": [" GPU ", "gpu", "Linux"]}}))
    assert read.action == Launch(agent="echo", prompt="go", runner_labels=frozenset({"gpu", "linux"}))
    assert definition_of(read.as_json()) == read
    assert definition_of(body(do={"launch": launch | {"runner_labels": []}})).as_json()["do"] == {
        "launch": launch
    }


@pytest.mark.parametrize(
    ("labels", "pointer"),
    [
        ("gpu", ""),
        (["gpu", ""], "/1"),
        ([7], "/0"),
        (["a\0b"], "/0"),
        ([str(n) for n in range(21)], ""),
        ([f"{n}".ljust(64, "\u754c") for n in range(10)], ""),
    ],
)
def test_what_is_no_list_of_labels_is_refused(labels: Any, pointer: str) -> None:
    given = body(do={"launch": {"agent": "echo", "runner_labels": labels}})
    assert set(refused(given)) == {f"/do/launch/runner_labels{pointer}"}


def test_a_prompt_may_be_left_out() -> None:
    assert definition_of(body(do={"launch": {"agent": "echo"}})).action == Launch(
        agent="echo", prompt="{{card.title}}\n\n{{card.body}}"
    )


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        (body({"sources": ["x"]}), "/when/sources"),
        (body({"ref": "x"}), "/when/ref"),
        (body({"branches": ["x"]}), "/when/branches"),
        (body({"kinds": ["session.started"]}), "/when/kinds/0"),
        (body({"kinds": ["card.moved", "schedule.due"]}), "/when/kinds/1"),
    ],
)
def test_what_the_language_knows_and_this_release_does_not(given: dict[str, Any], pointer: str) -> None:
    with pytest.raises(Invalid) as caught:
        definition_of(given)
    assert caught.value.code == "not_available_yet"
    [error] = caught.value.errors
    assert error.pointer == pointer
    assert error.detail.endswith("not available yet")


@pytest.mark.parametrize(
    ("given", "pointer", "says"),
    [
        ({"when": {}, "do": LAUNCH}, "/name", "is missing"),
        (body() | {"name": " "}, "/name", "must not be empty"),
        (body() | {"name": "a\nb"}, "/name", "one line"),
        (body() | {"name": 7}, "/name", "must be text"),
        (body() | {"name": "x" * 201}, "/name", "200 are allowed"),
        (body(when=[]), "/when", "must be an object"),
        (body({"to_state": ["x"]}), "/when/to_state", "did you mean to_states?"),
        (body({"nonsense": []}), "/when/nonsense", "is no field; known: kinds, boards"),
        (body({"a/b~": 1}), "/when/a~1b~0", "is no field"),
        (body({"recheck": True}), "/when/recheck", "belongs under /options"),
        (body(consume_label=True), "/consume_label", "belongs under /options"),
        (body(labels_all=["x"]), "/labels_all", "belongs under /when"),
        (body({"labels_all": "go"}), "/when/labels_all", "must be a list"),
        (body({"labels_all": []}), "/when/labels_all", "could never hold"),
        (body({"labels_all": [1]}), "/when/labels_all/0", "must be text"),
        (body({"labels_all": ["x", " "]}), "/when/labels_all/1", "must not be empty"),
        (body({"labels_all": ["a\0"]}), "/when/labels_all/0", "control characters"),
        (body({"labels_all": ["\ud800"]}), "/when/labels_all/0", "control characters"),
        (body({"labels_any": [str(n) for n in range(65)]}), "/when/labels_any", "64 are allowed"),
        (body({"labels_any": ["x" * 65]}), "/when/labels_any/0", "64 are allowed"),
        (body({"kinds": ["card.move"]}), "/when/kinds/0", "did you mean card.moved?"),
        (body({"kinds": ["bored"]}), "/when/kinds/0", "known: ask.answered"),
        (body({"boards": ["O-P"]}), "/when/boards/0", "no board key"),
        (body({"actors": ["a b"]}), "/when/actors/0", "no handle"),
        (body(do=None), "/do", "is missing"),
        (body(do={}), "/do/launch", "is missing"),
        (body(do={"lunch": {}}), "/do/lunch", "did you mean launch?"),
        (body(do={"launch": "echo"}), "/do/launch", "must be an object"),
        (body(do={"launch": {}}), "/do/launch/agent", "is missing"),
        (body(do={"launch": {"agent": "no agent"}}), "/do/launch/agent", "no handle"),
        (body(do={"launch": {"agent": "echo", "promt": ""}}), "/do/launch/promt", "did you mean prompt?"),
        (body(do={"launch": {"agent": "echo", "prompt": ""}}), "/do/launch/prompt", "not empty"),
        (body(do={"launch": {"agent": "echo", "prompt": "a\0"}}), "/do/launch/prompt", "without NUL"),
        (body(do={"launch": {"agent": "echo", "prompt": "x" * 65_537}}), "/do/launch/prompt", "65536 are allowed"),
        (body(do={"launch": {"agent": "echo", "prompt": "{{card.titel}}"}}), "/do/launch/prompt", "did you mean card.title?"),
        (body(options=True), "/options", "must be an object"),
        (body(options={"recheck": 1}), "/options/recheck", "must be true or false"),
        (body(options={"rechek": True}), "/options/rechek", "did you mean recheck?"),
        (body(options={"consume_label": True}), "/options/consume_label", "there are none"),
        (body({"min_trust": "friend"}), "/when/min_trust", "must be one of stranger, forge, agent, member"),
        (body({"min_trust": ["member"]}), "/when/min_trust", "must be one of"),
        (body({"fields": ["x"]}), "/when/fields", "must be an object"),
        (body({"fields": {}}), "/when/fields", "leave it out"),
        (body({"fields": {"a": []}}), "/when/fields/a", "could never hold"),
        (body({"fields": {"a": {"b": 1}}}), "/when/fields/a", "must be a text, number"),
        (body({"fields": {"a": [[1]]}}), "/when/fields/a", "must be a text, number"),
        (body({"fields": {"a": "x\0"}}), "/when/fields/a", "without NUL"),
        (body({"fields": {"a": "\ud800"}}), "/when/fields/a", "without NUL"),
        (body({"fields": {"a": 10**400}}), "/when/fields/a", "within 64 bits"),
        (body({"fields": {"a": float("nan")}}), "/when/fields/a", "within 64 bits"),
        (body({"fields": {"": 1}}), "/when/fields/", "must not be empty"),
        (body({"fields": {str(n): n for n in range(65)}}), "/when/fields", "64 are allowed"),
        (body({"changes": ["broken"], "kinds": ["rule.changed"]}), "/when/changes/0", "no change of a rule"),
        (body({"kinds": ["custom."]}), "/when/kinds/0", "no kind of event"),
        (body(do={"promote": {}}), "/do/promote/agent", "is missing"),
        (body(do={"promote": {"agent": "echo", "prompt": "x"}}), "/do/promote/prompt", "is no field"),
        (body(do={"promote": {"agent": "echo"}, **LAUNCH}), "/do", "make a rule of each"),
        (body(options={"max_event_age_seconds": 0}), "/options/max_event_age_seconds", "more than 0"),
        (body(options={"max_event_age_seconds": True}), "/options/max_event_age_seconds", "a number of seconds"),
        (body(options={"cooldown_seconds": 604_801}), "/options/cooldown_seconds", "at most 604800"),
        (body(options={"cooldown_seconds": float("nan")}), "/options/cooldown_seconds", "a number of seconds"),
        (body(options={"queued_timeout_seconds": "5"}), "/options/queued_timeout_seconds", "a number of seconds"),
        (body(options={"max_per_hour": 1.5}), "/options/max_per_hour", "a whole number"),
        (body(options={"max_per_hour": 10_001}), "/options/max_per_hour", "from 1 to 10000"),
        (body(options={"while_running": []}), "/options/while_running", "must be one of allow, skip, queue_one"),
    ],
)  # fmt: skip
def test_a_field_at_fault_is_named(given: dict[str, Any], pointer: str, says: str) -> None:
    errors = refused(given)
    assert pointer in errors
    assert says in errors[pointer]


def test_every_field_at_fault_is_named_at_once() -> None:
    errors = refused(
        body({"kinds": ["x"], "boards": []}, {"launch": {"agent": ""}}, options={"recheck": 1}, name="")
    )
    assert set(errors) == {"/name", "/when/kinds/0", "/when/boards", "/do/launch/agent", "/options/recheck"}


@pytest.mark.parametrize(
    ("when", "pointer", "says"),
    [
        ({"kinds": ["card.created"], "to_states": ["x"]}, "/when/to_states", "card.created carries no to_states; card.moved does"),
        ({"kinds": ["card.moved"], "agents": ["echo"]}, "/when/agents", "carries no agents; ask.answered, ask.opened, run.blocked, … does"),
        ({"kinds": ["run.done"], "labels_added": ["x"]}, "/when/labels_added", "card.labeled does"),
        ({"kinds": ["card.moved", "run.done"], "from_states": ["x"], "agents": ["echo"]}, "/when/agents", "from_states and agents at once"),
        ({"to_states": ["x"], "labels_added": ["y"]}, "/when/labels_added", "to_states and labels_added at once"),
        ({"from_states": ["x"], "to_states": ["x"]}, "/when/to_states", "another state than it began in"),
        ({"states": ["x"], "to_states": ["y"]}, "/when/states", "is in one of to_states"),
        ({"labels_all": ["x", "y"], "labels_none": ["x"]}, "/when/labels_none", "labels_all asks for"),
        ({"labels_any": ["x", "y"], "labels_none": ["x", "y"]}, "/when/labels_none", "every label of labels_any"),
        ({"labels_added": ["x"], "labels_none": ["x"]}, "/when/labels_none", "every label of labels_added"),
        ({"kinds": ["effect.dead"], "boards": ["OPS"]}, "/when/boards", "effect.dead carries no boards"),
        ({"kinds": ["custom.x"], "agents": ["echo"]}, "/when/agents", "custom.x carries no agents"),
        ({"changes": ["paused"]}, "/when/changes", "looks at cards and runs, which carries no changes; rule.changed does"),
    ],
)  # fmt: skip
def test_a_rule_that_can_never_fire_is_refused_with_the_reason(
    when: dict[str, Any], pointer: str, says: str
) -> None:
    errors = refused(body(when))
    assert says in errors[pointer]
    assert errors[pointer].startswith("can never fire: ")


def test_a_rule_says_all_that_it_can_say() -> None:
    read = definition_of(
        body(
            {
                "kinds": ["card.moved"],
                "fields": {"team": ["b", "a", "a"], "urgent": True, "n": [1, True], "gone": None},
                "min_trust": " Stranger ",
            },
            options={
                "max_event_age_seconds": 60,
                "cooldown_seconds": 0.5,
                "max_per_hour": 3,
                "while_running": "queue_one",
                "queued_timeout_seconds": 10,
                "recheck": False,
            },
        )
    )
    assert read.as_json() | {"do": LAUNCH} == {
        "name": "r",
        "when": {
            "kinds": ["card.moved"],
            "fields": {"gone": None, "n": [True, 1], "team": ["a", "b"], "urgent": True},
            "min_trust": "stranger",
        },
        "do": LAUNCH,
        "options": {
            "max_event_age_seconds": 60,
            "cooldown_seconds": 0.5,
            "max_per_hour": 3,
            "while_running": "queue_one",
            "queued_timeout_seconds": 10,
        },
    }
    assert definition_of(read.as_json()) == read
    assert Terms.from_json(read.terms.as_json()) == read.terms
    assert Options.from_json(read.options.as_json()) == read.options
    plain = definition_of(body(options={"while_running": "allow", "cooldown_seconds": None}))
    assert plain.options == Options()


def test_a_promotion_is_read_and_needs_a_card() -> None:
    read = definition_of(body({"kinds": ["card.moved"]}, {"promote": {"agent": "@Echo"}}))
    assert read.action == Promote(agent="echo")
    assert definition_of(read.as_json()) == read
    for when in ({"kinds": ["effect.dead"]}, {"kinds": ["rule.changed"]}, {"kinds": ["card.deleted"]}):
        assert "can never happen" in refused(body(when, {"promote": {"agent": "echo"}}))["/do/promote"]
    for option, value in (("while_running", "skip"), ("queued_timeout_seconds", 1)):
        errors = refused(body(do={"promote": {"agent": "echo"}}, options={option: value}))
        assert "for a rule that launches" in errors[f"/options/{option}"]


@pytest.mark.parametrize(
    ("kinds", "told"),
    [
        (["card.moved"], "{{card.title}}\n\n{{card.body}}"),
        (["run.failed", "card.moved"], "{{card.title}}\n\n{{card.body}}"),
        (["effect.dead"], "{{event.kind}} {{event.subject}}"),
        (["custom.deploy", "rule.changed"], "{{event.kind}} {{event.subject}}"),
    ],
)
def test_what_is_told_when_nothing_is_said_fits_the_kinds(kinds: list[str], told: str) -> None:
    read = definition_of(body({"kinds": kinds}, {"launch": {"agent": "echo"}}))
    assert isinstance(read.action, Launch)
    assert read.action.prompt == told


@pytest.mark.parametrize("option", ["recheck", "consume_label"])
def test_a_deleted_card_cannot_be_looked_at_again(option: str) -> None:
    when = {"kinds": ["card.deleted"], "labels_all": ["x"]}
    assert "deleted card" in refused(body(when, options={option: True}))[f"/options/{option}"]
    definition_of(body(when | {"kinds": ["card.deleted", "card.labeled"]}, options={option: True}))


@pytest.mark.parametrize(
    "when",
    [
        {"kinds": ["card.created", "card.moved"], "to_states": ["x"]},
        {"from_states": ["x", "y"], "to_states": ["x"]},
        {"states": ["x", "y"], "to_states": ["y"]},
        {"labels_any": ["x", "y"], "labels_none": ["x"]},
        {"kinds": ["run.failed"], "boards": ["OPS"], "labels_none": ["x"], "agents": ["echo"]},
        {"kinds": ["custom.deploy"], "boards": ["OPS"], "fields": {"a": 1}, "actors": ["ana"]},
    ],
)
def test_a_rule_that_can_fire_is_taken(when: dict[str, Any]) -> None:
    definition_of(body(when))


# Names ----------------------------------------------------------------------------------------------------------


def remarks(when: dict[str, Any], agent: str = "echo") -> dict[str, str]:
    read = definition_of(body(when, {"launch": {"agent": agent, "prompt": "go"}}))
    return {remark.pointer: remark.detail for remark in remarks_on(read, KNOWN)}


def test_a_name_that_stands_for_nothing_is_remarked_on() -> None:
    assert remarks({"boards": ["OPS"], "to_states": ["ready"], "actors": ["ana", "members"]}) == {}
    assert remarks({"boards": ["OPS", "OPT"]}) == {"/when/boards": "there is no board OPT"}
    assert remarks({"boards": ["OPS"], "to_states": ["ready", "redy"]}) == {
        "/when/to_states": "there is no such state on its boards: redy"
    }
    assert remarks({"actors": ["agents", "bob"]}) == {"/when/actors": "there is no account bob"}
    assert remarks({"states": ["shipped", "ready"]}) == {}
    assert "every change" in remarks({})["/when"]


@pytest.mark.parametrize(
    ("when", "agent", "pointer", "says"),
    [
        ({"boards": ["OPT"], "states": ["ready"]}, "echo", "/when/boards", "there is no board OPT"),
        (
            {"boards": ["WEB"], "to_states": ["ready"]},
            "echo",
            "/when/to_states",
            "no such state on its boards: ready",
        ),
        ({"actors": ["bob"]}, "echo", "/when/actors", "there is no account bob"),
        ({"agents": ["ana"]}, "echo", "/when/agents", "there is no agent ana"),
        ({"boards": ["OPS"]}, "ech", "/do/launch/agent", "no agent ech"),
        ({"boards": ["OPS"]}, "ana", "/do/launch/agent", "no agent's handle"),
    ],
)
def test_a_rule_whose_names_stand_for_nothing_is_refused(
    when: dict[str, Any], agent: str, pointer: str, says: str
) -> None:
    with pytest.raises(Invalid) as caught:
        remarks(when, agent)
    [error] = caught.value.errors
    assert error.pointer == pointer
    assert says in error.detail


def test_the_handles_that_a_rule_names() -> None:
    read = definition_of(
        body({"kinds": ["run.done"], "actors": ["members", "ana", "anyone"], "agents": ["flaky"]})
    )
    assert handles_of(read) == {"ana", "flaky", "echo"}
