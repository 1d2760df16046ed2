"""Prompts: what a name may be, and what is filled in."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.agents import model as agents_model
from mainspring.boards import model as boards_model
from mainspring.triggers import prompts
from mainspring.triggers.prompts import Filled, Missing, TooLong, defects, render, values_of
from mainspring.triggers.terms import DEFAULT_KINDS

from .values import card, event


def filled(template: str, now: dict[str, Any] | None = None, kind: str = "card.moved", **data: Any) -> Any:
    return render(template, values_of(event(kind, **data), now))


def test_names_are_filled_in_from_the_event() -> None:
    said = card(title="Fix it", labels=["b", "a"], fields={"url": "http://x", "n": 3, "deep": {"a": [1]}})
    template = (
        "{{card.key}} {{ card.title }} [{{card.labels}}] {{from}}>{{to}} by {{actor.handle}} "
        "{{event.kind}}#{{event.seq}} {{card.fields.url}} {{card.fields.n}} {{card.fields.deep}} {{card.fields.deep.a}}"
    )
    assert filled(template, card=said) == Filled(
        'OPS-1 Fix it [a, b] inbox>ready by ana card.moved#10 http://x 3 {"a": [1]} [1]'
    )
    assert filled(
        "{{run.agent}}: {{run.error}}", kind="run.failed", run={"agent": "echo", "error": None}
    ) == Filled("echo: ")


def test_a_missing_name_is_named() -> None:
    assert filled("{{card.title}} {{card.fields.url}}") == Missing("card.fields.url")
    assert filled("{{card.title}}", card=None) == Missing("card.title")
    assert filled("{{card.fields.a.b}}", card=card(fields={"a": "text"})) == Missing("card.fields.a.b")


def test_what_the_event_lacks_is_looked_up_on_the_card_as_it_is_now() -> None:
    now = card(title="new", fields={"url": "later"})
    assert filled("{{card.title}} {{card.fields.url}}", now) == Filled("t later")


def test_a_title_names_nothing() -> None:
    assert filled("{{card.title}}", card=card(title="{{card.body}}")) == Filled("{{card.body}}")
    assert filled("{{card.title}}", card=card(title=r"\1 \g<0>")) == Filled(r"\1 \g<0>")


def test_a_prompt_has_a_longest() -> None:
    assert filled("{{card.body}}x", card=card(body="y" * prompts.LENGTH_MAX)) == TooLong(
        prompts.LENGTH_MAX + 1
    )


@pytest.mark.parametrize(
    ("template", "kinds", "says"),
    [
        ("no names", DEFAULT_KINDS, None),
        ("{{card.title}} {{event.seq}} {{actor.handle}} {{card.fields.any.thing}}", DEFAULT_KINDS, None),
        ("{{from}} {{to}}", {"card.moved"}, None),
        ("{{added}}", {"card.labeled"}, None),
        ("{{run.error}}", {"run.failed", "run.lost"}, None),
        ("{{to}}", {"card.moved", "card.created"}, "missing in card.created"),
        ("{{run.error}}", {"card.moved"}, "missing in card.moved"),
        ("{{card}}", DEFAULT_KINDS, "is not one value"),
        ("{{kard.title}}", DEFAULT_KINDS, "did you mean card?"),
        ("{{card.nothing}}", DEFAULT_KINDS, "known: card.agent, "),
        ("{{card.title.x}}", DEFAULT_KINDS, "has nothing below it"),
        ("{{to.x}}", {"card.moved"}, "has nothing below it"),
        ("{{}}", DEFAULT_KINDS, "is no name"),
        ("{{card.title | upper}}", DEFAULT_KINDS, "is no name"),
        ("{{card.title}", DEFAULT_KINDS, "without its }}"),
        ("{{effect.error}} {{event.subject}}", {"effect.dead"}, None),
        ("{{reason}}", {"effect.dead", "effect.discarded"}, "missing in effect.dead"),
        ("{{actor.handle}}", {"effect.dead"}, "missing in effect.dead"),
        ("{{rule.name}} was {{change}}", {"rule.changed"}, None),
        ("{{data}} {{data.a.b}} {{card.title}}", {"custom.x"}, None),
        ("{{data.a}}", {"card.moved"}, "missing in card.moved"),
        ("{{run.error}}", {"custom.x"}, "missing in custom.x"),
        ("card.title}}", DEFAULT_KINDS, "without its }}"),
    ],
)
def test_a_template_that_could_not_be_filled_is_told_so(
    template: str, kinds: set[str], says: str | None
) -> None:
    found = list(defects(template, kinds))
    assert (found == []) if says is None else (len(found) == 1 and says in found[0])


def test_the_names_are_those_that_snapshots_have() -> None:
    board = boards_model.Board(
        id=agents_model.UUID(int=1), key="OPS", name="o", states=(boards_model.BoardState(name="a"),)
    )
    taken = boards_model.snapshot(boards_model.Card(id=board.id, board=board, number=1, title="t", state="a"))
    assert set(taken) == prompts.NAMES["card"][0]
