"""Reflect: a run's state moves its card.

Takes `run.*` events of runs with a card; owes a `reflect` each, where the board has an answer to that state. The executor
takes the claimed row and leaves the card moved, the run told and the row settled, in one transaction: if it dies here, none
of it happened, and the next claim decides anew. It goes by the run's state at that moment, not by the event's, so that rows
that run late or out of order converge on the same column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias, assert_never
from uuid import UUID

from mainspring.boards import model, reads, verbs
from mainspring.boards.model import Apply, Leave, MovedSince, RunHooks
from mainspring.boards.reads import SQL
from mainspring.db import Scope
from mainspring.rooms import ServerSpine, Tx, system_actor
from mainspring.spine.effects import Done, Dropped, Effect, EffectKind, NewEffect, Outcome
from mainspring.spine.events import Cause, Event
from mainspring.spine.executors import Transactional
from mainspring.spine.ports import EventLog, NotOwed, Owes, Verdict

_REFLECT_MAPS = SQL["reflect_maps"]

REFLECT: Final = EffectKind(name="reflect", transactional=True, lease_seconds=10)

ReflectMaps: TypeAlias = Mapping[tuple[UUID, UUID], Mapping[str, str]]


def _board_of(event: Event) -> UUID | None:
    card = event.data.get("card")
    return None if card is None else UUID(card["board_id"])


class Reflect:
    """What a run's event owes its card."""

    name: Final = "reflect"
    kinds: Final = frozenset(
        {"run.queued", "run.started", "run.done", "run.failed", "run.blocked", "run.cancelled", "run.lost"}
    )

    async def load(self, scope: Scope, events: Sequence[Event]) -> ReflectMaps:
        """Return the reflect map of each (tenant, board) that the events' cards are on."""
        boards = sorted(
            {(event.tenant_id, board) for event in events if (board := _board_of(event)) is not None}
        )
        if not boards:
            return {}
        rows = await scope.fetch(
            _REFLECT_MAPS, [tenant for tenant, _ in boards], [board for _, board in boards]
        )
        return {(row["tenant_id"], row["id"]): row["reflect"] for row in rows}

    def judge(self, event: Event, context: ReflectMaps) -> Verdict:
        """Owe one reflect where the board has an answer to the state that the run came into.

        A state without an answer moves nothing now, and a later one has an event of its own.
        """
        board = _board_of(event)
        if board is None:
            return NotOwed("card")
        if event.data["run"]["state"] not in context.get((event.tenant_id, board), {}):
            return NotOwed("reflect")
        payload = {"run_id": event.data["run"]["id"], "card_id": event.data["card"]["id"]}
        return Owes(NewEffect("reflect", key=f"{event.seq}#reflect", payload=payload, event_seq=event.seq))


class Reflector:
    """Carries a `reflect` out."""

    def __init__(self, runs: RunHooks, log: EventLog[Scope]) -> None:
        self._runs = runs
        self._log = log

    async def __call__(self, effect: Effect, tx: Tx) -> Outcome:
        """Move the run's card to where the run's present state belongs, unless somebody else has moved it since."""
        run_id = UUID(effect.payload["run_id"])
        card = await verbs.lock_card(tx, UUID(effect.payload["card_id"]))
        if card is None:
            return Dropped("card deleted")
        # after the lock: a newer run of this card is made under it, so from here on none can appear
        run = await self._runs.run_now(tx, run_id)
        if run is None:
            return Dropped("run gone")
        match model.reflection(card, run):
            case Apply(to_state):
                actor = replace(
                    system_actor(tx.tenant, await self._cause(tx, effect, run.cause)), run_id=run_id
                )
                await verbs.move_card(tx, card, to_state, actor, runs=self._runs)
                return Done(f"moved {card.key} to {to_state}")
            case MovedSince():
                last = await reads.last_event(tx.handle, tx.tenant, card.id, kind="card.moved")
                return Dropped(f"moved by {last.handle if last else 'somebody'}")
            case Leave(reason):
                return Dropped(reason)
            case other:
                assert_never(other)

    async def _cause(self, tx: Tx, effect: Effect, otherwise: Cause) -> Cause:
        """Return what the move descends from: the run's event, one deeper; where it is gone, what the run acts with."""
        assert effect.event_seq is not None
        found = await self._log.events_at(tx.handle, tx.tenant, [effect.event_seq])
        if (event := found.get(effect.event_seq)) is not None:
            return event.as_cause()
        return replace(otherwise, seq=effect.event_seq, depth=otherwise.depth + 1)


def register(spine: ServerSpine, runs: RunHooks) -> None:
    """Tell the engine what boards owe and how it is done; `build.py` calls it once."""
    spine.register_obligation(Reflect())
    spine.register_executor(Transactional(kind=REFLECT, run=Reflector(runs, spine.store)))
