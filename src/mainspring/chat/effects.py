"""What messages owe, and how a wake is done.

`message.settled` owes a `deliver` or a `steer` to every agent that its event names: offered rows, for the recipients' sessions to take.
A `wake` takes an agent that is owed something and has nobody to read it; leaves a run queued for it, in one transaction: if it dies
here, none of it happened, and the next claim looks again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from mainspring.agents.model import NewRun
from mainspring.chat.model import DELIVER, OFFERED, STEER, Recipients, Runs, delivery_key
from mainspring.chat.rows import SQL
from mainspring.chat.verbs import SETTLED
from mainspring.db import Scope
from mainspring.rooms import ServerSpine, Tx
from mainspring.spine.effects import Done, Dropped, Effect, EffectKind, NewEffect, Outcome
from mainspring.spine.events import Event
from mainspring.spine.executors import Transactional
from mainspring.spine.ports import NotOwed, Owes, Verdict

_LOCK_AGENT = SQL["lock_agent"]
_TO_WAKE = SQL["to_wake"]
_OLDEST_OWED = SQL["oldest_owed"]

# its own row is a live wake: the question is asked without them
_WHATEVER_WAKES: Final = True
WAKE: Final = EffectKind(name="wake", transactional=True, lease_seconds=10)


class Deliveries:
    """What a settled message owes to agents. People's inboxes were written when it settled."""

    name: Final = "deliveries"
    kinds: Final = frozenset({SETTLED})

    async def load(self, _scope: Scope, _events: Sequence[Event]) -> None:
        """Nothing: the event says whom it is owed to."""

    def judge(self, event: Event, _context: None) -> Verdict:
        """Owe one row to each recipient."""
        owed = Recipients.of_json(event.data["recipients"])
        rows = [self._row(event, STEER, one, held=False) for one in owed.steer]
        rows += [self._row(event, DELIVER, one, held=owed.held) for one in owed.deliver]
        return Owes(*rows) if rows else NotOwed("recipients")

    @staticmethod
    def _row(event: Event, kind: str, recipient: UUID, *, held: bool) -> NewEffect:
        message = event.data["message"]
        return NewEffect(
            kind,
            key=delivery_key(message["id"], message["revision"], recipient),
            payload={"message_id": message["id"], "revision": message["revision"]},
            event_seq=event.seq,
            recipient_id=recipient,
            topic_id=UUID(message["topic_id"]),
            family="offered",
            delay_seconds=math.inf if held else 0.0,
        )


class Waker:
    """Carries a `wake` out."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    async def __call__(self, effect: Effect, tx: Tx) -> Outcome:
        """Queue a run for the agent, if it is still to be woken."""
        agent_id = UUID(effect.payload["agent_id"])
        if await tx.handle.fetchval(_LOCK_AGENT, tx.tenant, agent_id) is None:
            return Dropped("agent gone")
        if not await tx.handle.fetch(_TO_WAKE, tx.tenant, agent_id, _WHATEVER_WAKES, 1, []):
            return Dropped("nobody is to be woken any more")
        owed = await tx.handle.fetchrow(_OLDEST_OWED, tx.tenant, agent_id)
        assert owed is not None
        await self._runs.queue_run(
            tx,
            NewRun(
                agent_id=agent_id,
                card_id=None,
                effect_kind=WAKE.name,
                effect_key=effect.key,
                event_seq=effect.event_seq,
                rule_id=None,
                rule_version=None,
                card_state_version=None,
                prompt=f"Messages wait for you: {owed['owed']}.",
                trigger={
                    "kind": WAKE.name,
                    "summary": f"{owed['owed']} unread messages",
                    "owed": owed["owed"],
                },
            ),
        )
        return Done(f"queued a run for {owed['owed']} messages")


def register(spine: ServerSpine, runs: Runs) -> None:
    """Tell the engine what messages owe and how a wake is done."""
    for kind in OFFERED.values():
        spine.register_offered(kind)
    spine.register_obligation(Deliveries())
    spine.register_executor(Transactional(kind=WAKE, run=Waker(runs)))
