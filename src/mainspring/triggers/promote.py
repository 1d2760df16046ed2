"""The promotion: takes a claimed `promote` row and its open transaction; leaves the card pinned, or the reason why it is not.

The pin is set only if it still is what the event saw, and never over one that was set by hand. A card that becomes eligible by
it is dispatched like any other: by the event that this leaves. If it dies here, nothing happened, and the row is claimed again.
"""

from __future__ import annotations

from typing import Final

from mainspring.agents.model import Agent
from mainspring.boards.model import Account, Card
from mainspring.db import Scope
from mainspring.rooms import Tx, system_actor
from mainspring.spine.effects import Done, Dropped, Effect, EffectKind, Failed, Outcome
from mainspring.spine.ports import EventLog
from mainspring.triggers import acting, limits
from mainspring.triggers.acting import Begun, Stop
from mainspring.triggers.model import Cards, Promote, Runs

PROMOTE: Final = EffectKind(name="promote", transactional=True, lease_seconds=10)


class Promoter:
    """Carries a `promote` out."""

    def __init__(self, log: EventLog[Scope], cards: Cards, runs: Runs) -> None:
        self._log = log
        self._cards = cards
        self._runs = runs

    async def __call__(self, effect: Effect, tx: Tx) -> Outcome:
        """Pin the card that this effect is about, if it is still to be."""
        begun = await acting.begin(self._log, tx, effect)
        if isinstance(begun, Stop):
            return begun.outcome
        action = begun.rule.action
        assert isinstance(action, Promote)
        agent = await self._runs.agent_by_handle(tx, action.agent)
        card = await acting.card_now(self._cards, tx, begun)
        match card:
            case Stop(outcome):
                return outcome
            case None:
                return Dropped("there is no card to pin")
            case Card():
                pass
        if agent is None:
            return Failed(f"no agent {action.agent}")
        if (reason := await self._standing_pin(tx, begun, card, agent)) is not None:
            return Dropped(reason)
        if (paused := await acting.keep_rate(tx, effect, begun)) is not None:
            return paused.outcome
        card = await acting.spend(self._cards, tx, begun, card)
        assert card is not None
        to = Account(id=agent.id, handle=agent.handle)
        await self._cards.promote_card(tx, card, to, system_actor(tx.tenant, begun.cause))
        await limits.note_firing(tx, effect, agent_id=agent.id, card_id=card.id, options=begun.options)
        return Done(f"pinned {card.key} to {agent.handle}")

    async def _standing_pin(self, tx: Tx, begun: Begun, card: Card, agent: Agent) -> str | None:
        """Return why the card's pin is left as it is, or None when it may be set."""
        if card.agent_id == agent.id:
            return f"pinned to {agent.handle} already"
        assert begun.said is not None
        seen = begun.said.get("agent_id")
        if (str(card.agent_id) if card.agent_id else None) != seen:
            now = f"pinned to {card.agent.handle}" if card.agent else "unpinned"
            return f"{now} meanwhile"
        if card.agent is not None and not await self._cards.pinned_by_rule(tx, card.id):
            return f"pinned to {card.agent.handle} by hand"
        return None
