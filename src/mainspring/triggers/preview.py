"""Who would wake: takes a card and the state that somebody may move it to, leaves who would be launched, who would not, and why.

It makes up the event that the move would append and asks the same judges as the drain, rules and dispatch, and the same limits
as the launch. It only reads; what others do meanwhile may make it come out otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, assert_never
from uuid import UUID

from mainspring.agents.model import having
from mainspring.boards import model as boards
from mainspring.boards.model import Account, Card
from mainspring.ids import new_id
from mainspring.rooms import Actor, FieldError, Invalid, ServerSpine, Tx
from mainspring.spine.events import Event
from mainspring.spine.ports import Owes
from mainspring.triggers import history, limits, prompts
from mainspring.triggers.dispatch import Dispatch
from mainspring.triggers.explain import RuleVerdict
from mainspring.triggers.history import Told
from mainspring.triggers.limits import Pass, TooOften
from mainspring.triggers.model import (
    CardReader,
    Cards,
    Launch,
    Outlook,
    Promote,
    RuleVersion,
    Runs,
    Webhook,
    Will,
    Wont,
    agent_of,
)
from mainspring.triggers.prompts import Missing, TooLong
from mainspring.triggers.verbs import SQL

_PREVIEWED_RULES = SQL["previewed_rules"]
_AGENT_READY = SQL["agent_ready"]
_DATABASE_MOMENT = SQL["database_moment"]

# what dispatch's terms mean to whoever is about to move a card
_NOT_DISPATCHED: Final = {
    "eligible": "the card would not be both pinned to an agent and in an eligible state",
    "dispatched before": "the card is eligible already, and has been dispatched",
    "min_trust": "what makes you move it is not trusted far enough",
    "depth": "the chain of causes is too long",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """What the move would owe: a launch or a pin, and what would come of it. `rule` is None where the pin launches."""

    do: str
    agent: str | None
    rule: RuleVersion | None
    because: str
    happens: bool
    then: str

    def as_json(self) -> dict[str, Any]:
        """Return the line as it is shown."""
        rule = self.rule
        by = {"id": str(rule.rule_id), "name": rule.name, "version": rule.version} if rule else None
        return {
            "do": self.do,
            "agent": self.agent,
            "rule": by,
            "because": self.because,
            "happens": self.happens,
            "then": self.then,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What would come of a move. `moves` is False when the card is there already: then nothing happens at all."""

    card: str
    from_state: str
    to_state: str
    moves: bool
    wakes: Sequence[Wake] = ()
    misses: Sequence[RuleVerdict] = ()  # the nearest first
    misses_left_out: int = 0
    dispatch: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the answer to whoever is about to move it."""
        return {
            "card": self.card,
            "from": self.from_state,
            "to": self.to_state,
            "moves": self.moves,
            "wakes": [one.as_json() for one in self.wakes],
            "misses": [one.as_json() for one in self.misses],
            "misses_left_out": self.misses_left_out,
            "dispatch": self.dispatch,
        }


class PreviewService:
    """Says who would be launched by a move, before it is made."""

    def __init__(
        self,
        spine: ServerSpine,
        reader: CardReader,
        cards: Cards,
        runs: Runs,
        *,
        launches_per_hour_max: int,
        runner_silence_seconds: float,
    ) -> None:
        self._spine = spine
        self._reader = reader
        self._cards = cards
        self._runs = runs
        self._per_hour_max = launches_per_hour_max
        self._silence = runner_silence_seconds

    async def move(self, actor: Actor, ref: str, to_state: str) -> Preview:
        """Return what would come of the actor moving the card there. Raises NotFound and Invalid."""
        card = await self._reader.get_card(actor.tenant_id, ref)
        state = card.board.state(boards.fold(to_state))
        if state is None:
            known = ", ".join(one.name for one in card.board.states)
            raise Invalid(FieldError("/to", f"board {card.board.key} has no such state; it has: {known}"))
        after = boards.moved(card, state.name)
        preview = Preview(card=card.key, from_state=card.state, to_state=state.name, moves=after is not card)
        if after is card:
            return preview
        async with self._spine.open(actor.tenant_id) as tx:
            event = await self._event(tx, actor, card, after)
            wakes, told = await self._rules(tx, event, after)
            dispatched, term = await self._dispatch(tx, event, after, "it is pinned")
        misses = [one for one in told.verdicts if not one.matched]
        return replace(
            preview,
            wakes=(*wakes, *dispatched),
            misses=misses,
            misses_left_out=told.left_out,
            dispatch=term,
        )

    async def _event(self, tx: Tx, actor: Actor, card: Card, after: Card) -> Event:
        """Return the event that the move would append next."""
        head = await self._spine.store.head(tx.handle, tx.tenant)
        cause = actor.cause
        return Event(
            tenant_id=tx.tenant,
            seq=head + 1,
            id=new_id(),
            kind="card.moved",
            subject=str(card.id),
            actor_id=actor.account_id,
            data={
                "card": boards.snapshot(after),
                "actor": actor.snapshot(),
                "from": card.state,
                "to": after.state,
            },
            cause_seq=cause.seq,
            via=cause.via,
            depth=cause.depth,
            trust=cause.trust,
            traceparent=None,
            occurred_at=await tx.handle.fetchval(_DATABASE_MOMENT),
        )

    async def _rules(self, tx: Tx, event: Event, after: Card) -> tuple[list[Wake], Told]:
        in_force = await history.rules_over(tx.handle, tx.tenant, [event])
        told = await in_force.judge(event)
        versions = {one.rule_id: one for one in in_force.enabled if one.spans(event.seq)}
        matched = [versions[one.rule_id] for one in told.verdicts if one.matched]
        rows = await tx.handle.fetch(_PREVIEWED_RULES, tx.tenant, [one.rule_id for one in matched])
        rules = {row["id"]: row for row in rows}
        wakes: list[Wake] = []
        labels = after.labels  # those that the rules before have left
        for version in matched:
            rule = rules[version.rule_id]
            if rule["paused_because"] is not None:
                wakes.append(_wake(version, Wont(f"held: the rule is paused: {rule['paused_because']}")))
                continue
            if version.options.consume_label and not version.terms.labels_all <= labels:
                wakes.append(_wake(version, Wont("dropped: another rule takes the label first")))
                continue
            outlook = await self._fired(tx, event, after, version, rule["waived_seq"])
            wakes.append(_wake(version, outlook))
            if isinstance(outlook, Will) and version.options.consume_label:
                labels -= version.terms.labels_all
            if isinstance(outlook, Will) and isinstance(version.action, Promote):
                wakes += await self._promoted(tx, event, after, version)
        return wakes, told

    async def _fired(
        self, tx: Tx, event: Event, after: Card, version: RuleVersion, waived_seq: int
    ) -> Outlook:
        """Tell whether the rule would act at all, and what would come of it."""
        options, action = version.options, version.action
        pace = await limits.pace_of(
            tx.handle, tx.tenant, version.rule_id, options,
            event_seq=event.seq, card_id=after.id, waived_seq=waived_seq, effect_id=new_id(),
        )  # fmt: skip
        resting = limits.paced(options, pace, card=after.key)
        if not isinstance(resting, Pass | TooOften):
            return Wont(f"dropped: {resting.reason}")
        handle = agent_of(action)
        agent = await self._runs.agent_by_handle(tx, handle) if handle is not None else None
        outlook: Outlook
        match action:
            case Webhook(url=url):
                outlook = Will(f"is sent to {url}")
            case _ if agent is None:
                return Wont(f"dead: no agent {handle}")
            case Launch():
                outlook = await self._told(tx, event, after, version, agent.id)
            case Promote():
                if after.agent_id == agent.id:
                    return Wont(f"dropped: pinned to {agent.handle} already")
                if after.agent is not None and not await self._cards.pinned_by_rule(tx, after.id):
                    return Wont(f"dropped: pinned to {after.agent.handle} by hand")
                outlook = Will(f"pins {after.key} to {agent.handle}")
            case _:
                assert_never(action)
        often = limits.rated(options, pace)
        if isinstance(outlook, Will) and isinstance(often, TooOften):
            return Wont(f"held, and the rule would be paused: {often.because}")
        return outlook

    async def _told(self, tx: Tx, event: Event, after: Card, version: RuleVersion, agent_id: UUID) -> Outlook:
        action, while_running = version.action, version.options.while_running
        assert isinstance(action, Launch)
        match prompts.render(action.prompt, prompts.values_of(event, boards.snapshot(after))):
            case Missing(name):
                return Wont(f"dead: the prompt names {{{{{name}}}}}, and there is no such thing")
            case TooLong(length):
                return Wont(f"dead: the prompt would be {length} characters long")
            case _:
                pass
        busy = while_running != "allow" and await self._runs.live_run_of_card(tx, after.id, agent_id)
        unfinished = f"a run of {action.agent} on {after.key} has not ended"
        if busy and while_running == "skip":
            return Wont(f"dropped: while_running: {unfinished}")
        return Will(
            f"waits: {unfinished}"
            if busy
            else await self._run(tx, agent_id, action.agent, action.runner_labels)
        )

    async def _promoted(self, tx: Tx, event: Event, after: Card, version: RuleVersion) -> list[Wake]:
        """Return the launch that the pin would lead to."""
        assert isinstance(version.action, Promote)
        agent = await self._runs.agent_by_handle(tx, version.action.agent)
        assert agent is not None
        pinned = boards.assigned(after, agent=Account(id=agent.id, handle=agent.handle))
        cause = event.as_cause(via=(version.rule_id,))
        then = replace(
            event,
            kind="card.promoted",
            data=dict(event.data) | {"card": boards.snapshot(pinned)},
            via=cause.via,
            depth=cause.depth,
        )
        wakes, _ = await self._dispatch(tx, then, pinned, f"rule {version.name} pins it")
        return wakes

    async def _dispatch(
        self, tx: Tx, event: Event, card: Card, because: str
    ) -> tuple[list[Wake], str | None]:
        verdict = Dispatch().judge(event, None)
        if not isinstance(verdict, Owes):
            return [], _NOT_DISPATCHED.get(verdict.term, verdict.term)
        assert card.agent is not None
        busy = await self._runs.live_run_of_card(tx, card.id, card.agent.id)
        then = (
            f"waits: a run of {card.agent.handle} on {card.key} has not ended"
            if busy
            else await self._run(tx, card.agent.id, card.agent.handle, frozenset())
        )
        wake = Wake(do="launch", agent=card.agent.handle, rule=None, because=because, happens=True, then=then)
        return [wake], None

    async def _run(self, tx: Tx, agent_id: UUID, handle: str, labels: Collection[str]) -> str:
        """Return what would become of a run of the agent that needs a runner with these labels."""
        wait = await limits.ceiling_wait_seconds(tx.handle, tx.tenant, agent_id, self._per_hour_max)
        if wait is not None:
            return f"waits: {handle} was launched {limits.times(self._per_hour_max)} within the hour: its ceiling"
        row = await tx.handle.fetchrow(_AGENT_READY, tx.tenant, agent_id, self._silence, sorted(labels))
        assert row is not None
        if row["paused"]:
            return f"queued, and waits: {handle} is paused"
        if row["served"]:
            return f"launches {handle}"
        return f"queued, and waits for a runner{having(labels)}"


def _wake(version: RuleVersion, outlook: Outlook) -> Wake:
    return Wake(
        do=version.action.kind,
        agent=agent_of(version.action),
        rule=version,
        because=f"rule {version.name}",
        happens=isinstance(outlook, Will),
        then=outlook.then,
    )
