"""What can be done to runs inside an open transaction. Takes a run read under its lock; leaves its row written and its event
appended, which the transaction writes at its end. If it dies here, the transaction was never committed.

Every finishing write is fenced by the state and the claim that the decision was made on; a fence that does not hold is a
defect here, since the row was locked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from mainspring.agents.asking import CLOSING
from mainspring.agents.model import (
    EVENT_KINDS,
    Agent,
    Cards,
    Conclusion,
    NewRun,
    Run,
    RunMove,
    RunNow,
    RunState,
    can,
    clean,
    snapshot,
    step,
)
from mainspring.agents.rows import SQL, agent_of, run_now_of, run_of
from mainspring.db import Scope
from mainspring.ids import new_id
from mainspring.rooms import Actor, Tx, system_actor
from mainspring.spine.errors import Misuse
from mainspring.spine.events import Cause, NewEvent, Trust, least_trusted

_QUEUE_RUN = SQL["queue_run"]
_LOCK_RUNS = SQL["lock_runs"]
_RUNS = SQL["runs"]
_LIVE_RUN_OF_CARD = SQL["live_run_of_card"]
_RUN_NOW = SQL["run_now"]
_SAW_CARD_STATE = SQL["saw_card_state"]
_CONCLUDE_RUN = SQL["conclude_run"]
_REQUEST_CANCEL = SQL["request_cancel"]
_REPLAY_RUNS = SQL["replay_runs"]
_DISCARD_RUNS = SQL["discard_runs"]
_DROP_RUN_TOKENS = SQL["drop_run_tokens"]
_DROP_TOKENS_OF_RUNS = SQL["drop_tokens_of_runs"]
_CLOSE_ASKS = SQL["close_asks"]
_AGENT_BY_HANDLE = SQL["agent_by_handle"]
_AGENT = SQL["agent"]

PROMPT_LENGTH_MAX = 262_144


async def read_runs(scope: Scope, tenant: UUID, ids: Sequence[UUID]) -> list[Run]:
    """Return those of the runs that exist, by id."""
    return [run_of(row) for row in await scope.fetch(_RUNS, tenant, list(ids))]


async def lock_runs(tx: Tx, ids: Sequence[UUID]) -> list[Run]:
    """Lock the runs, by id, until the transaction ends, and return them as they are then."""
    locked = [row["id"] for row in await tx.handle.fetch(_LOCK_RUNS, tx.tenant, sorted(set(ids)))]
    return await read_runs(tx.handle, tx.tenant, locked) if locked else []


async def lock_run(tx: Tx, run_id: UUID) -> Run | None:
    """Lock one run and return it; None when there is no such run."""
    found = await lock_runs(tx, [run_id])
    return found[0] if found else None


def cause_of_words(run: Run, actor: Actor) -> Cause:
    """Return the cause of what is said of a run: it descends from what launched it, whoever says it; an agent's own word is
    trusted as an agent's."""
    trust = least_trusted(run.trust, Trust.AGENT) if actor.kind == "agent" else run.trust
    return Cause(seq=run.event_seq, via=run.via, depth=run.depth, trust=trust)


class RunVerbs:
    """Agents and their runs, for whoever holds a transaction; handed to the other rooms by the wiring."""

    def __init__(self, cards: Cards) -> None:
        self._cards = cards

    # for other rooms ------------------------------------------------------------------------------------------

    async def agent_by_handle(self, tx: Tx, handle: str) -> Agent | None:
        """Return the agent of that handle; case and outer space do not matter."""
        row = await tx.handle.fetchrow(_AGENT_BY_HANDLE, tx.tenant, handle.strip().lower())
        return agent_of(row) if row else None

    async def get_agent(self, tx: Tx, agent_id: UUID) -> Agent | None:
        """Return the agent of that id."""
        row = await tx.handle.fetchrow(_AGENT, tx.tenant, agent_id)
        return agent_of(row) if row else None

    async def queue_run(self, tx: Tx, run: NewRun) -> UUID:
        """Queue the run that a launch owes, and append `run.queued`; return its id.

        A second run for one launch is refused by the database (BadData): I-8.
        """
        prompt = clean(run.prompt, length_max=PROMPT_LENGTH_MAX) or ""
        run_id = new_id()
        card = await self._card(tx, run.card_id)
        await tx.handle.execute(
            _QUEUE_RUN, tx.tenant, run_id, run.agent_id, run.card_id, card["key"] if card else None,
            run.effect_kind, run.effect_key, run.event_seq, run.rule_id, run.rule_version, run.card_state_version,
            prompt, dict(run.trigger), list(run.via), run.depth, run.trust, run.exclusive,
            list(run.runner_labels), run.queued_timeout_seconds,
        )  # fmt: skip
        [queued] = await read_runs(tx.handle, tx.tenant, [run_id])
        self._append(tx, queued, card, system_actor(tx.tenant, queued.cause))
        return run_id

    async def live_run_of_card(self, tx: Tx, card_id: UUID, agent_id: UUID) -> bool:
        """Tell whether a run of that card and agent has not ended."""
        return bool(await tx.handle.fetchval(_LIVE_RUN_OF_CARD, tx.tenant, card_id, agent_id))

    async def run_now(self, tx: Tx, run_id: UUID) -> RunNow | None:
        """Return how the run stands at this moment, and whether it is its card's newest."""
        row = await tx.handle.fetchrow(_RUN_NOW, tx.tenant, run_id)
        return run_now_of(row) if row else None

    async def saw_card_state(self, tx: Tx, run_id: UUID, state_version: int) -> None:
        """Note which state of its card the run has seen or set last."""
        await tx.handle.execute(_SAW_CARD_STATE, tx.tenant, run_id, state_version)

    # ending, and beginning again ------------------------------------------------------------------------------

    async def cancel_run(
        self, tx: Tx, run_id: UUID, actor: Actor, *, reason: str | None = None
    ) -> Run | None:
        """Cancel a queued run, or ask the runner of a held one to stop; None when there is no such run.

        Cancelling twice is as good as once. Raises Misuse when it has ended otherwise.
        """
        run = await lock_run(tx, run_id)
        if run is None or run.state is RunState.CANCELLED or run.cancel_requested:
            return run
        state = step(run.state, RunMove.CANCEL)
        if state is run.state:
            await tx.handle.execute(_REQUEST_CANCEL, tx.tenant, run.id)
            await tx.handle.execute(_CLOSE_ASKS, tx.tenant, [run.id], "the run is to be cancelled")
            return replace(run, cancel_requested=True)
        return await self.conclude(tx, run, Conclusion(state=state, outcome=clean(reason)), actor)

    async def replay_runs(
        self, tx: Tx, ids: Sequence[UUID], actor: Actor, *, note: Mapping[str, Any] | None = None
    ) -> list[UUID]:
        """Queue the dead ones of these runs again, attempts 0: the same runs. Returns the ids moved."""
        runs = [run for run in await lock_runs(tx, ids) if can(run.state, RunMove.REPLAY)]
        await self._write_all(tx, runs, _REPLAY_RUNS)
        cards = await self._cards_of(tx, runs)
        for run in runs:
            again = replace(
                run, state=RunState.QUEUED, attempts=0, outcome=None, cancel_requested=False, ended_at=None
            )
            self._append(tx, again, cards.get(run.card_id), actor, {"replay": True, **(note or {})})
        return [run.id for run in runs]

    async def discard_runs(
        self,
        tx: Tx,
        ids: Sequence[UUID],
        reason: str,
        actor: Actor,
        *,
        note: Mapping[str, Any] | None = None,
    ) -> list[UUID]:
        """Give the dead ones of these runs up, for a reason. Returns the ids moved."""
        runs = [run for run in await lock_runs(tx, ids) if can(run.state, RunMove.DISCARD)]
        given = clean(reason) or ""
        await self._write_all(tx, runs, _DISCARD_RUNS, given)
        if runs:
            await tx.handle.execute(_DROP_TOKENS_OF_RUNS, tx.tenant, [run.id for run in runs])
            await tx.handle.execute(_CLOSE_ASKS, tx.tenant, [run.id for run in runs], "the run is discarded")
        cards = await self._cards_of(tx, runs)
        for run in runs:
            over = replace(run, state=step(run.state, RunMove.DISCARD), outcome=given)
            self._append(tx, over, cards.get(run.card_id), actor, {"reason": given, **(note or {})})
        return [run.id for run in runs]

    async def conclude(self, tx: Tx, run: Run, conclusion: Conclusion, actor: Actor) -> Run:
        """Write what becomes of a locked run, with its event. Its tokens end here, unless its last claim may still be heard."""
        await self._write(
            tx, run, _CONCLUDE_RUN, tx.tenant, run.id, run.state, run.claim_id, conclusion.state,
            conclusion.outcome, conclusion.error, conclusion.delay_seconds, conclusion.attempts,
        )  # fmt: skip
        # a token opens nothing while its claim does not hold the run; a claim that resumes has it again
        kept = run.claim_id if can(conclusion.state, RunMove.RESUME) else None
        await tx.handle.execute(_DROP_RUN_TOKENS, tx.tenant, run.id, kept)
        if conclusion.state in CLOSING:
            await tx.handle.execute(_CLOSE_ASKS, tx.tenant, [run.id], f"the run is {conclusion.state}")
        [after] = await read_runs(tx.handle, tx.tenant, [run.id])
        self._append(tx, after, await self._card(tx, run.card_id), actor, conclusion.note)
        return after

    async def announce(self, tx: Tx, run: Run, actor: Actor, note: Mapping[str, Any] | None = None) -> None:
        """Append the event of the state that the run has just come to."""
        self._append(tx, run, await self._card(tx, run.card_id), actor, note)

    # ----------------------------------------------------------------------------------------------------------

    async def _card(self, tx: Tx, card_id: UUID | None) -> dict[str, Any] | None:
        return None if card_id is None else await self._cards.card_snapshot(tx, card_id)

    async def _cards_of(self, tx: Tx, runs: Sequence[Run]) -> Mapping[UUID | None, dict[str, Any]]:
        ids = {run.card_id for run in runs if run.card_id is not None}
        return dict((await self._cards.card_snapshots(tx, ids)).items()) if ids else {}

    @staticmethod
    async def _write(tx: Tx, run: Run, statement: str, *args: Any) -> None:
        if await tx.handle.execute(statement, *args) != 1:
            raise Misuse(f"run {run.id} changed while it was locked")

    @staticmethod
    async def _write_all(tx: Tx, runs: Sequence[Run], statement: str, *args: Any) -> None:
        ids = [run.id for run in runs]
        if ids and await tx.handle.execute(statement, tx.tenant, ids, *args) != len(ids):
            raise Misuse(f"runs among {', '.join(map(str, ids))} changed while they were locked")

    @staticmethod
    def _append(
        tx: Tx, run: Run, card: dict[str, Any] | None, actor: Actor, note: Mapping[str, Any] | None = None
    ) -> None:
        data = {"run": snapshot(run), "card": card, "actor": actor.snapshot(), **(note or {})}
        tx.append(
            NewEvent(
                EVENT_KINDS[run.state],
                subject=str(run.id),
                data=data,
                actor_id=actor.account_id,
                cause=cause_of_words(run, actor),
            )
        )
