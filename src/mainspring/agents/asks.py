"""Questions of runs: opened by whoever holds the run, answered by the first who answers.

Takes a run under its lock, which orders all that answer, cancel or end it; leaves the question's row, its event, and a run that had
given up its claim queued again. If it dies here, the transaction was never committed: who asked asks again under the same request,
and who answered was not told that it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from mainspring.agents.asking import (
    Answered,
    Ask,
    AskEnded,
    AskState,
    NewAsk,
    checked_answer,
    snapshot,
    why_not,
)
from mainspring.agents.model import Cards, Conclusion, Run, RunMove, RunState, step
from mainspring.agents.model import snapshot as run_snapshot
from mainspring.agents.rows import SQL
from mainspring.agents.verbs import RunVerbs, cause_of_words, lock_run
from mainspring.db import Database, Scope
from mainspring.ids import new_id
from mainspring.rooms import Actor, Conflict, NotFound, ServerSpine, Tx
from mainspring.spine.events import NewEvent

if TYPE_CHECKING:
    from asyncpg import Record

_ASKS = SQL["asks"]
_ASKS_OF_RUN = SQL["asks_of_run"]
_RUN_OF_ASK = SQL["run_of_ask"]
_LIST_OPEN_ASKS = SQL["list_open_asks"]
_LIST_ASKS = SQL["list_asks"]
_ASK_OF_REQUEST = SQL["ask_of_request"]
_ADOPT_ASK = SQL["adopt_ask"]
_OPEN_ASK = SQL["open_ask"]
_ANSWER_ASK = SQL["answer_ask"]
_EXPIRE_ASKS = SQL["expire_asks"]
_ENDED_ASKS = SQL["ended_asks"]
_GIVE_ANSWERS = SQL["give_answers"]

ANSWERED: Final = "answered"
_LOWEST: Final = UUID(int=0)


async def read_asks(scope: Scope, tenant: UUID, ids: Sequence[UUID]) -> list[Ask]:
    """Return those of the questions that exist, in the order in which they were asked."""
    return [_ask_of(row) for row in await scope.fetch(_ASKS, tenant, list(ids))] if ids else []


async def asks_of_run(scope: Scope, tenant: UUID, run_id: UUID) -> list[Ask]:
    """Return all that a run has asked."""
    rows = await scope.fetch(_ASKS_OF_RUN, tenant, run_id)
    return await read_asks(scope, tenant, [row["id"] for row in rows])


async def ended_asks(scope: Scope, tenant: UUID, run_id: UUID, ids: Sequence[UUID]) -> list[AskEnded]:
    """Return those of these questions that are over; from here on, what is over by the clock is answered by nobody.

    The caller holds the run: an answer has come before, or is refused.
    """
    await scope.execute(_EXPIRE_ASKS, tenant, run_id, list(ids))
    return [
        AskEnded(id=row["id"], state=AskState(row["state"]), answer=row["answer"], reason=row["reason"])
        for row in await scope.fetch(_ENDED_ASKS, tenant, run_id, list(ids))
    ]


class AskVerbs:
    """What can be done to a run's questions, for whoever holds a transaction and the run's lock."""

    def __init__(self, verbs: RunVerbs, cards: Cards) -> None:
        self._verbs = verbs
        self._cards = cards

    async def put(self, tx: Tx, run: Run, claim_id: UUID, new: NewAsk) -> tuple[Ask, bool]:
        """Return the question, and whether it was opened now: `announce` it then.

        The same request is the same question. So is what an earlier claim of the run has asked in the same words, while it is
        open or if it was answered since this claim was given the answers: nobody is asked twice because a runner died.
        """
        named = (tx.tenant, run.id)
        found = await tx.handle.fetchval(_ASK_OF_REQUEST, *named, new.request_id)
        if found is None:
            found = await tx.handle.fetchval(
                _ADOPT_ASK, *named, claim_id, new.request_id, new.question, list(new.options), new.released, new.timeout_seconds
            )  # fmt: skip
        opened = found is None
        if opened:
            found = new_id()
            await tx.handle.execute(
                _OPEN_ASK, tx.tenant, found, run.id, claim_id, new.request_id, new.question, list(new.options), new.released,
                new.timeout_seconds,
            )  # fmt: skip
        [ask] = await read_asks(tx.handle, tx.tenant, [found])
        return ask, opened

    async def announce(self, tx: Tx, kind: str, run: Run, ask: Ask, actor: Actor) -> None:
        """Append the event of a question."""
        card = None if run.card_id is None else await self._cards.card_snapshot(tx, run.card_id)
        data = {"ask": snapshot(ask), "run": run_snapshot(run), "card": card, "actor": actor.snapshot()}
        tx.append(
            NewEvent(
                kind,
                subject=str(ask.id),
                data=data,
                actor_id=actor.account_id,
                cause=cause_of_words(run, actor),
            )
        )

    async def answer(self, tx: Tx, run: Run, ask_id: UUID, text: str, actor: Actor) -> Ask:
        """Answer a question of a locked run; the same again, by the same account, is as good as once.

        Raises Invalid for what is none of its options, and Conflict when it is not open any more.
        """
        [ask] = await read_asks(tx.handle, tx.tenant, [ask_id])
        if ask.state is not AskState.OPEN and not _is_said_again(ask, text, actor):
            raise why_not(ask)
        said = checked_answer(ask, text)
        if ask.state is AskState.ANSWERED:
            return ask
        written = await tx.handle.execute(_ANSWER_ASK, tx.tenant, ask.id, said, actor.account_id)
        [after] = await read_asks(tx.handle, tx.tenant, [ask.id])
        if not written:  # its time ran out between the two looks at the clock
            raise why_not(after)
        await self.announce(tx, "ask.answered", run, after, actor)
        if ask.released and run.state is RunState.NEEDS_INPUT:
            again = Conclusion(state=step(run.state, RunMove.ANSWER), note={"reason": ANSWERED})
            await self._verbs.conclude(tx, run, again, actor)
            [after] = await read_asks(tx.handle, tx.tenant, [ask.id])  # its run has moved on
        return after

    async def give(self, tx: Tx, run: Run) -> tuple[Answered, ...]:
        """Return all that was answered to a run so far, for the claim that holds it; it is not told any of it twice."""
        rows = await tx.handle.fetch(_GIVE_ANSWERS, tx.tenant, run.id, run.claim_id)
        return tuple(
            Answered(
                id=row["id"],
                question=row["question"],
                options=tuple(row["options"]),
                answer=row["answer"],
                answered_by=row["answered_by"],
                answered_at=row["ended_at"],
            )
            for row in rows
        )


class AskService:
    """Questions as people see and answer them."""

    def __init__(self, spine: ServerSpine, db: Database, asks: AskVerbs) -> None:
        self._spine = spine
        self._db = db
        self._asks = asks

    async def list_asks(
        self, tenant: UUID, *, all_states: bool = False, after: UUID | None = None, limit: int = 50
    ) -> list[Ask]:
        """Return the questions that wait for an answer, or all there ever were, behind `after`, the oldest first."""
        statement = _LIST_ASKS if all_states else _LIST_OPEN_ASKS
        async with self._db.tenant(tenant) as scope:
            rows = await scope.fetch(statement, tenant, after or _LOWEST, limit)
            return await read_asks(scope, tenant, [row["id"] for row in rows])

    async def get(self, tenant: UUID, ask_id: UUID) -> Ask:
        """Return one question. Raises NotFound."""
        async with self._db.tenant(tenant) as scope:
            found = await read_asks(scope, tenant, [ask_id])
        if not found:
            raise NotFound("ask", ask_id)
        return found[0]

    async def answer(self, actor: Actor, ask_id: UUID, text: str) -> Ask:
        """Answer a question: the first answer counts. Raises NotFound, Invalid, and Conflict when it is not open any more."""
        async with self._spine.open(actor.tenant_id) as tx:
            run_id = await tx.handle.fetchval(_RUN_OF_ASK, tx.tenant, ask_id)
            run = None if run_id is None else await lock_run(tx, run_id)
            if run is None:
                raise NotFound("ask", ask_id)
            return await self._asks.answer(tx, run, ask_id, text, actor)

    async def answer_run(self, actor: Actor, run_id: UUID, text: str) -> Ask:
        """Answer the one question that a run waits for.

        Raises NotFound, Invalid, and Conflict when it waits for no answer, or for more than one.
        """
        async with self._spine.open(actor.tenant_id) as tx:
            run = await lock_run(tx, run_id)
            if run is None:
                raise NotFound("run", run_id)
            asked = await asks_of_run(tx.handle, tx.tenant, run.id)
            waiting = [ask for ask in asked if ask.state is AskState.OPEN]
            if not waiting:
                raise Conflict("the run waits for no answer", code="run_not_asking")
            if len(waiting) > 1:
                named = ", ".join(f"{ask.id} ({ask.question[:60]})" for ask in waiting)
                raise Conflict(
                    f"the run asks more than one thing, answer them by their ids: {named}",
                    code="run_asks_more",
                )
            return await self._asks.answer(tx, run, waiting[0].id, text, actor)


def _is_said_again(ask: Ask, text: str, actor: Actor) -> bool:
    return (
        ask.state is AskState.ANSWERED
        and ask.answered_by_id == actor.account_id
        and (ask.answer or "").casefold() == text.strip().casefold()
    )


def _ask_of(row: Record) -> Ask:
    return Ask(
        id=row["id"],
        run_id=row["run_id"],
        run_state=RunState(row["run_state"]),
        agent_handle=row["agent_handle"],
        card_key=row["card_key"],
        question=row["question"],
        options=tuple(row["options"]),
        released=row["released"],
        state=AskState(row["state"]),
        answer=row["answer"],
        answered_by=row["answered_by"],
        answered_by_id=row["answered_by_id"],
        reason=row["reason"],
        asked_at=row["asked_at"],
        expires_at=row["expires_at"],
        ended_at=row["ended_at"],
    )
