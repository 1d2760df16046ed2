"""The launch: takes a claimed `launch` row and its open transaction; leaves a queued run, or the reason why there is none.

Everything is decided anew under locks, in the order rule, card, run, and is committed with the row's settle. If it dies
here, nothing happened, and the row is claimed again; once it is committed, the row is done and nobody claims it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias, assert_never
from uuid import UUID

from mainspring.agents.model import Agent, NewRun
from mainspring.boards.model import Card, snapshot
from mainspring.db import Scope
from mainspring.faultpoints import FaultPoint, reach
from mainspring.rooms import Tx, system_actor
from mainspring.spine.effects import Deferred, Done, Dropped, Effect, Failed, Outcome
from mainspring.spine.events import Cause, Event
from mainspring.spine.ports import EventLog
from mainspring.triggers import prompts, verbs
from mainspring.triggers.matcher import first_failed_now
from mainspring.triggers.model import Cards, RuleVersion, Runs
from mainspring.triggers.prompts import Filled, Missing, TooLong
from mainspring.triggers.verbs import Gone

LOOK_AGAIN_SECONDS_MIN: Final = 5.0
LOOK_AGAIN_SECONDS_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Stop:
    """The launch ends here, with this outcome."""

    outcome: Outcome


_CardNow: TypeAlias = Card | _Stop | None


class Launcher:
    """Carries a `launch` out, for a rule or for a dispatched card."""

    def __init__(self, log: EventLog[Scope], cards: Cards, runs: Runs) -> None:
        self._log = log
        self._cards = cards
        self._runs = runs

    async def __call__(self, effect: Effect, tx: Tx) -> Outcome:
        """Queue the run that this effect owes, if it is still to be."""
        if effect.rule_id is None:
            outcome = await self._dispatch(effect, tx)
        else:
            assert effect.rule_version is not None
            outcome = await self._by_rule(effect, tx, effect.rule_id, effect.rule_version)
        if isinstance(outcome, Done):
            reach(FaultPoint.LAUNCH_BEFORE_COMMIT)
        return outcome

    # for a rule ---------------------------------------------------------------------------------------------

    async def _by_rule(self, effect: Effect, tx: Tx, rule_id: UUID, rule_version: int) -> Outcome:
        rule = await verbs.rule_for_launch(tx, rule_id, rule_version)
        if isinstance(rule, Gone):
            return Dropped(rule.reason)
        event = await self._event(effect, tx)
        if event is None:
            return Failed(f"event {effect.event_seq} is not there: older than events are kept")
        cause = event.as_cause(via=(rule_id,))
        card = await self._card_for(tx, event, rule, cause)
        if isinstance(card, _Stop):
            return card.outcome
        agent = await self._runs.agent_by_handle(tx, rule.action.agent)
        if agent is None:
            return Failed(f"no agent {rule.action.agent}")
        values = prompts.values_of(event, snapshot(card) if card else None)
        prompt = prompts.render(rule.action.prompt, values)
        return await self._queue(effect, tx, event, cause, agent, card, prompt, rule=rule)

    async def _card_for(self, tx: Tx, event: Event, rule: RuleVersion, cause: Cause) -> _CardNow:
        """Return the event's card, locked and its label consumed, None when there is none to lock, or why to stop."""
        options, said = rule.options, event.data.get("card")
        if said is None:
            return None
        if event.kind == "card.deleted" and not (options.consume_label or options.recheck):
            return None  # its end is what the rule waited for
        card = await self._cards.lock_card(tx, UUID(said["id"]))
        if card is None:
            return _Stop(Dropped("card deleted"))
        if options.recheck:
            term = first_failed_now(rule.terms, board=card.board.key, state=card.state, labels=card.labels)
            if term is not None:
                return _Stop(Dropped(f"no longer matches: {term}"))
        if options.consume_label:
            actor = system_actor(tx.tenant, cause)
            card = await self._cards.take_labels(tx, card, rule.terms.labels_all, actor)
            if card is None:
                return _Stop(Dropped("label spent"))
            reach(FaultPoint.LAUNCH_AFTER_CONSUME)
        return card

    # for a pin ----------------------------------------------------------------------------------------------

    async def _dispatch(self, effect: Effect, tx: Tx) -> Outcome:
        card_id, agent_id = UUID(effect.payload["card_id"]), UUID(effect.payload["agent_id"])
        eligible_version: int = effect.payload["eligible_version"]
        event = await self._event(effect, tx)
        if event is None:
            return Failed(f"event {effect.event_seq} is not there: older than events are kept")
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
        agent = await self._runs.get_agent(tx, agent_id)
        if agent is None:
            return Failed("the pinned agent is gone")
        outcome = await self._queue(
            effect, tx, event, event.as_cause(), agent, card, prompts.of_dispatch(card)
        )
        await self._cards.set_dispatched(tx, card_id, eligible_version)
        return outcome

    # both ---------------------------------------------------------------------------------------------------

    async def _event(self, effect: Effect, tx: Tx) -> Event | None:
        assert effect.event_seq is not None
        return (await self._log.events_at(tx.handle, tx.tenant, [effect.event_seq])).get(effect.event_seq)

    async def _queue(
        self,
        effect: Effect,
        tx: Tx,
        event: Event,
        cause: Cause,
        agent: Agent,
        card: Card | None,
        prompt: Filled | Missing | TooLong,
        *,
        rule: RuleVersion | None = None,
    ) -> Outcome:
        match prompt:
            case Missing(name):
                return Failed(
                    f"the prompt names {{{{{name}}}}}, and event {event.seq} ({event.kind}) has no such thing"
                )
            case TooLong(length):
                return Failed(
                    f"the prompt would be {length} characters long; {prompts.LENGTH_MAX} are allowed"
                )
            case Filled(text):
                run = NewRun(
                    agent_id=agent.id,
                    card_id=card.id if card else None,
                    effect_kind=effect.kind,
                    effect_key=effect.key,
                    event_seq=event.seq,
                    rule_id=rule.rule_id if rule else None,
                    rule_version=rule.version if rule else None,
                    card_state_version=card.state_version if card else None,
                    prompt=text,
                    trigger=trigger_of(event, rule),
                    via=cause.via,
                    depth=cause.depth,
                    trust=cause.trust,
                )
                await self._runs.queue_run(tx, run)
                reach(FaultPoint.LAUNCH_AFTER_RUN)
                return Done(f"launched {agent.handle}")
            case other:
                assert_never(other)


def _look_again_seconds(effect: Effect) -> float:
    """Look again soon after a short wait and seldom during a long one: each look is a claim and a transaction."""
    return min(LOOK_AGAIN_SECONDS_MAX, max(LOOK_AGAIN_SECONDS_MIN, effect.deferred_seconds / 2))


def trigger_of(event: Event, rule: RuleVersion | None) -> dict[str, Any]:
    """Return why a run runs, as its runner is told: the event and its card in short, the rule, one sentence."""
    said = {name: event.data[name] for name in ("from", "to", "added", "removed") if name in event.data}
    card = (event.data.get("card") or {}).get("key")
    because = f"rule {rule.name}" if rule else "it is pinned, and its card became eligible"
    by = {"id": str(rule.rule_id), "name": rule.name, "version": rule.version} if rule else None
    return {
        "kind": event.kind,
        "seq": event.seq,
        "card": card,
        "actor": event.data["actor"]["handle"],
        "rule": by,
        **said,
        "summary": f"{card or event.subject}: {event.kind} (event {event.seq}), {because}",
    }
