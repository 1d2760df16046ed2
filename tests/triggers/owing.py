"""What a log by itself says that rules owe, and a drain that can be stopped between its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mainspring.db import Scope
from mainspring.rooms import ServerSpine
from mainspring.spine.drain import Drain
from mainspring.spine.events import Event
from mainspring.spine.ports import Verdict
from mainspring.triggers.effects import RuleEffects
from tests.races.steps import Pause, Work


class Model:
    """Reads a log once, in its order: an event owes a launch to each rule that wants it, as the log has made and left it by then."""

    def __init__(self) -> None:
        self.rules: dict[str, Mapping[str, Any]] = {}
        self.owed: dict[int, set[str]] = {}

    def read(self, event: Event) -> None:
        if event.kind == "rule.changed":
            self.rules[event.data["rule"]["id"]] = event.data["rule"]
            return
        self.owed[event.seq] = {
            f"{event.seq}:{rule_id}" for rule_id, rule in self.rules.items() if wants(rule, event)
        }

    def through(self, position: int) -> set[str]:
        """The keys of all that the events up to a position owe."""
        return set[str]().union(*(keys for seq, keys in self.owed.items() if seq <= position))


def wants(rule: Mapping[str, Any], event: Event) -> bool:
    """Whether a rule, as its event told it, wants an event of a card."""
    when, card = rule["when"], event.data.get("card", {})
    asks = {
        "kinds": lambda values: event.kind in values,
        "to_states": lambda values: event.data.get("to") in values,
        "labels_any": lambda values: bool({*values} & {*card.get("labels", ())}),
        "labels_none": lambda values: not {*values} & {*card.get("labels", ())},
        "labels_added": lambda values: bool({*values} & {*event.data.get("added", ())}),
    }
    return (
        rule["enabled"]
        and not rule["deleted"]
        and bool(card)
        and all(asks[term](values) for term, values in when.items())
    )


class Paused:
    """The rules' obligation, with a pause before it reads rules (the events are read by then), and one before it judges."""

    name = RuleEffects.name
    kinds = RuleEffects.kinds

    def __init__(self, rules: RuleEffects, pause: Pause) -> None:
        self._rules = rules
        self._pause = pause

    async def load(self, scope: Scope, events: Sequence[Event]) -> Any:
        await self._pause()
        context = await self._rules.load(scope, events)
        await self._pause()
        return context

    def judge(self, event: Event, context: Any) -> Verdict:
        return self._rules.judge(event, context)


def drainer(engine: ServerSpine) -> Work:
    """Drains one round: locks and reads; reads rules; owes and commits."""
    [rules] = [one for one in engine._obligations if isinstance(one, RuleEffects)]

    async def work(pause: Pause) -> None:
        await Drain(engine.store, [Paused(rules, pause)], complete=engine._complete).run_once()

    return work
