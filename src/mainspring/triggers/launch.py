"""The launch: takes a claimed `launch` row and its open transaction; leaves a queued run, or the reason why there is none.

Everything is decided anew under locks, in the order rule, card, run, and is committed with the row's settle. If it dies
here, nothing happened, and the row is claimed again; once it is committed, the row is done and nobody claims it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, assert_never
from uuid import UUID

from mainspring.agents.model import Agent, NewRun
from mainspring.boards.model import Card, snapshot
from mainspring.db import Scope
from mainspring.faultpoints import FaultPoint, reach
from mainspring.rooms import Tx
from mainspring.spine.effects import Deferred, Done, Dropped, Effect, EffectKind, Failed, Outcome
from mainspring.spine.events import Cause, Event
from mainspring.spine.ports import EventLog
from mainspring.triggers import acting, limits, prompts
from mainspring.triggers.acting import Begun, Stop
from mainspring.triggers.matcher import card_of
from mainspring.triggers.model import Cards, Launch, Options, RuleVersion, Runs
from mainspring.triggers.prompts import Filled, Missing, TooLong

LAUNCH: Final = EffectKind(name="launch", transactional=True, lease_seconds=10)
LOOK_AGAIN_SECONDS_MIN: Final = 5.0
LOOK_AGAIN_SECONDS_MAX: Final = 30.0
LAUNCHES_PER_HOUR_MAX: Final = 1_000  # of one agent, whatever launches it, unless the settings say otherwise
_NO_OPTIONS: Final = Options()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A launch that goes ahead: whom it launches, on which card, with what to say, and because of what."""

    agent: Agent
    card: Card | None
    event: Event
    cause: Cause
    prompt: str
    rule: RuleVersion | None = None

    @property
    def options(self) -> Options:
        """The rule's options; a pin has none."""
        return self.rule.options if self.rule else _NO_OPTIONS


class Launcher:
    """Carries a `launch` out, for a rule or for a dispatched card.

    Args:
        per_hour_max: how often one agent may be launched within an hour, whatever launches it; further launches wait.
    """

    def __init__(
        self,
        log: EventLog[Scope],
        cards: Cards,
        runs: Runs,
        *,
        per_hour_max: int = LAUNCHES_PER_HOUR_MAX,
    ) -> None:
        self._log = log
        self._cards = cards
        self._runs = runs
        self._per_hour_max = per_hour_max

    async def __call__(self, effect: Effect, tx: Tx) -> Outcome:
        """Queue the run that this effect owes, if it is still to be."""
        outcome = await (self._dispatch if effect.rule_id is None else self._by_rule)(effect, tx)
        if isinstance(outcome, Done):
            reach(FaultPoint.LAUNCH_BEFORE_COMMIT)
        return outcome

    # for a rule ---------------------------------------------------------------------------------------------

    async def _by_rule(self, effect: Effect, tx: Tx) -> Outcome:
        begun = await acting.begin(self._log, tx, effect)
        if isinstance(begun, Stop):
            return begun.outcome
        action = begun.rule.action
        assert isinstance(action, Launch)
        # the agent is locked before the card; what is found of it is told after the card's own reasons
        agent = await self._runs.agent_by_handle(tx, action.agent)
        wait = await limits.room_for(tx, agent.id, self._per_hour_max) if agent else None
        card = await acting.card_now(self._cards, tx, begun)
        if isinstance(card, Stop):
            return card.outcome
        if agent is None:
            return Failed(f"no agent {action.agent}")
        if (turn := await self._turn(effect, tx, begun, agent, card)) is not None:
            return turn.outcome
        values = prompts.values_of(begun.event, snapshot(card) if card else None)
        prompt = _told(prompts.render(action.prompt, values), begun.event)
        if isinstance(prompt, Stop):
            return prompt.outcome
        if (paused := await acting.keep_rate(tx, effect, begun)) is not None:
            return paused.outcome
        if wait is not None:
            return self._no_room(agent, wait)
        if begun.options.consume_label:
            card = await acting.spend(self._cards, tx, begun, card)
            reach(FaultPoint.LAUNCH_AFTER_CONSUME)
        ready = _Ready(
            agent=agent, card=card, event=begun.event, cause=begun.cause, prompt=prompt, rule=begun.rule
        )
        return await self._queue(effect, tx, ready)

    async def _turn(
        self, effect: Effect, tx: Tx, begun: Begun, agent: Agent, card: Card | None
    ) -> Stop | None:
        """Let a launch pass, wait for its turn, or end, by what `while_running` says; under the card's and the rule's lock."""
        while_running = begun.options.while_running
        if while_running == "allow":
            return None
        card_id = card.id if card else None
        if card is not None:
            busy = await self._runs.live_run_of_card(tx, card.id, agent.id)
        else:
            busy = await limits.live_run_of_rule(tx.handle, tx.tenant, begun.rule.rule_id, agent.id)
        on = f" on {card.key}" if card else ""
        waited = effect.deferred_seconds > 0
        match while_running:
            case "skip":
                if busy:
                    return Stop(Dropped(f"while_running: a run of {agent.handle}{on} has not ended"))
                return None
            case "queue_one":
                if (busy or waited) and await limits.has_later(
                    tx, effect, card_id, waived_seq=begun.waived_seq
                ):
                    return Stop(Dropped("while_running: a later launch takes its place"))
                if busy:
                    return Stop(
                        Deferred(
                            f"while_running: a run of {agent.handle}{on} has not ended",
                            after_seconds=_look_again_seconds(effect),
                        )
                    )
                return None
            case _:
                assert_never(while_running)

    # for a pin ----------------------------------------------------------------------------------------------

    async def _dispatch(self, effect: Effect, tx: Tx) -> Outcome:
        card_id, agent_id = UUID(effect.payload["card_id"]), UUID(effect.payload["agent_id"])
        eligible_version: int = effect.payload["eligible_version"]
        event = await acting.event_of(self._log, tx, effect)
        if isinstance(event, Stop):
            return event.outcome
        agent = await self._runs.get_agent(tx, agent_id)
        wait = await limits.room_for(tx, agent_id, self._per_hour_max)
        card = await self._cards.lock_card(tx, card_id)
        if card is None:
            return Dropped("card deleted")
        if card.eligible_version != eligible_version:
            return Dropped("no longer eligible" if card.eligible_version is None else "eligible anew since")
        if card.dispatched_version is not None and card.dispatched_version >= eligible_version:
            return Dropped("dispatched already")
        if await self._runs.live_run_of_card(tx, card_id, agent_id):
            return Deferred(
                "a run of this card and agent has not ended", after_seconds=_look_again_seconds(effect)
            )
        if agent is None:
            return Failed("the pinned agent is gone")
        if wait is not None:
            return self._no_room(agent, wait)
        prompt = _told(prompts.of_dispatch(card), event)
        if isinstance(prompt, Stop):
            return prompt.outcome
        ready = _Ready(agent=agent, card=card, event=event, cause=event.as_cause(), prompt=prompt)
        outcome = await self._queue(effect, tx, ready)
        await self._cards.set_dispatched(tx, card_id, eligible_version)
        return outcome

    # both ---------------------------------------------------------------------------------------------------

    def _no_room(self, agent: Agent, wait_seconds: float) -> Outcome:
        return Deferred(
            f"{agent.handle} was launched {limits.times(self._per_hour_max)} within the hour: its ceiling",
            after_seconds=wait_seconds,
        )

    async def _queue(self, effect: Effect, tx: Tx, ready: _Ready) -> Outcome:
        card, rule, event, cause = ready.card, ready.rule, ready.event, ready.cause
        await limits.note_firing(
            tx, effect, agent_id=ready.agent.id, card_id=card.id if card else None, options=ready.options
        )
        run = NewRun(
            agent_id=ready.agent.id,
            card_id=card.id if card else None,
            effect_kind=effect.kind,
            effect_key=effect.key,
            event_seq=event.seq,
            rule_id=rule.rule_id if rule else None,
            rule_version=rule.version if rule else None,
            card_state_version=card.state_version if card else None,
            prompt=ready.prompt,
            trigger=trigger_of(event, rule),
            via=cause.via,
            depth=cause.depth,
            trust=cause.trust,
            exclusive=ready.options.while_running != "allow",
            runner_labels=_runner_labels(rule),
            queued_timeout_seconds=ready.options.queued_timeout_seconds,
        )
        await self._runs.queue_run(tx, run)
        reach(FaultPoint.LAUNCH_AFTER_RUN)
        return Done(f"launched {ready.agent.handle}")


def _runner_labels(rule: RuleVersion | None) -> tuple[str, ...]:
    """Return what the launch asks of its runner; one that a pin owes goes to any."""
    action = None if rule is None else rule.action
    return tuple(sorted(action.runner_labels)) if isinstance(action, Launch) else ()


def _told(prompt: Filled | Missing | TooLong, event: Event) -> str | Stop:
    match prompt:
        case Filled(text):
            return text
        case Missing(name):
            said = f"event {event.seq} ({event.kind}) has no such thing"
            return Stop(Failed(f"the prompt names {{{{{name}}}}}, and {said}"))
        case TooLong(length):
            return Stop(
                Failed(f"the prompt would be {length} characters long; {prompts.LENGTH_MAX} are allowed")
            )
        case other:
            assert_never(other)


def _look_again_seconds(effect: Effect) -> float:
    """Look again soon after a short wait and seldom during a long one: each look is a claim and a transaction."""
    return min(LOOK_AGAIN_SECONDS_MAX, max(LOOK_AGAIN_SECONDS_MIN, effect.deferred_seconds / 2))


def trigger_of(event: Event, rule: RuleVersion | None) -> dict[str, Any]:
    """Return why a run runs, as its runner is told: the event and its card in short, the rule, one sentence."""
    said = {name: event.data[name] for name in ("from", "to", "added", "removed") if name in event.data}
    card = (card_of(event) or {}).get("key")
    actor = event.data.get("actor")
    because = f"rule {rule.name}" if rule else "it is pinned, and its card became eligible"
    by = {"id": str(rule.rule_id), "name": rule.name, "version": rule.version} if rule else None
    return {
        "kind": event.kind,
        "seq": event.seq,
        "card": card,
        "actor": actor.get("handle") if isinstance(actor, Mapping) else None,
        "rule": by,
        **said,
        "summary": f"{card or event.subject}: {event.kind} (event {event.seq}), {because}",
    }
