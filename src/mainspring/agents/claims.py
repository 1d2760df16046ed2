"""What the word of a run's claim does, inside an open transaction: the first heartbeat, and the end.

Takes a run read under its lock; leaves its row, its attempt's record and its event. If it dies here, the transaction was never
committed: the runner says it again, or its lease runs out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, assert_never
from uuid import UUID

from mainspring.agents.asking import AskState, NewAsk
from mainspring.agents.asks import ANSWERED, AskVerbs
from mainspring.agents.model import (
    HANDED_BACK,
    OUTCOMES,
    ClaimLost,
    Completion,
    Conclusion,
    Run,
    RunMove,
    RunPolicy,
    RunState,
    Unchanged,
    conclude,
    step,
)
from mainspring.agents.rows import SQL
from mainspring.agents.verbs import RunVerbs, read_runs
from mainspring.ids import new_id
from mainspring.rooms import Actor, Conflict, Tx

_START_RUN = SQL["start_run"]
_RESUME_RUN = SQL["resume_run"]
_LOCK_RUNNER_OF_RUN = SQL["lock_runner_of_run"]
_LOCK_AGENT = SQL["lock_agent"]
_OPEN_ATTEMPT = SQL["open_attempt"]
_REOPEN_ATTEMPT = SQL["reopen_attempt"]
_CLOSE_ATTEMPT = SQL["close_attempt"]
_ATTEMPT_OF_CLAIM = SQL["attempt_of_claim"]
_RETURNS_IN_A_ROW = SQL["returns_in_a_row"]

# How a claim's attempt is recorded when its runner ended it; "lease lost" is not the runner's word, and may be corrected by it.
_RECORDED: Final = OUTCOMES | {HANDED_BACK}


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The answer to a completion. `recorded`: this claim had completed before, with `outcome`; nothing was written."""

    run_id: UUID
    state: RunState
    outcome: str
    recorded: bool


class ClaimVerbs:
    """The words of a claim, for whoever holds a transaction and the run's lock."""

    def __init__(
        self,
        verbs: RunVerbs,
        asks: AskVerbs,
        policy: RunPolicy,
        *,
        random_unit: Callable[[], float] = random.random,
    ) -> None:
        self._verbs = verbs
        self._asks = asks
        self._policy = policy
        self._random = random_unit

    async def start(self, tx: Tx, run: Run) -> Run:
        """Take the first heartbeat of the claim that holds a run: from here on its attempt counts."""
        await tx.handle.execute(_START_RUN, tx.tenant, run.id, run.claim_id, self._policy.lease_seconds)
        await tx.handle.execute(_OPEN_ATTEMPT, tx.tenant, run.id, run.claim_id, run.runner or "")
        [started] = await read_runs(tx.handle, tx.tenant, [run.id])
        await self._verbs.announce(tx, started, agent_of(tx.tenant, started))
        return started

    async def beat(self, tx: Tx, run: Run, claim_id: UUID) -> Run | None:
        """Take a heartbeat that no statement of its own could take; None when the run was taken back meanwhile: `resume` it.

        Raises Conflict (claim_lost).
        """
        if run.claim_id != claim_id:
            raise claim_lost("another claim holds this run")
        match run.state:
            case RunState.CLAIMED:
                return await self.start(tx, run)
            case RunState.RUNNING:
                return run
            case RunState.QUEUED | RunState.LOST:
                return None
            case _:
                raise claim_lost(f"the run is {run.state}")

    async def lock_holders(self, tx: Tx, run_id: UUID) -> None:
        """Lock the runner and the agent of a run, before the run itself: what they hold decides whether it is resumed."""
        row = await tx.handle.fetchrow(_LOCK_RUNNER_OF_RUN, tx.tenant, run_id)
        if row is not None:
            await tx.handle.fetchval(_LOCK_AGENT, tx.tenant, row["agent_id"])

    async def resume(self, tx: Tx, run: Run, claim_id: UUID) -> Run:
        """Give a run that was taken back for silence to its last claim again, whose runner has just been heard.

        The caller holds runner, agent and run. Raises Conflict (claim_lost) when that claim has completed, or its place is taken.
        """
        attempt = await tx.handle.fetchrow(_ATTEMPT_OF_CLAIM, tx.tenant, run.id, claim_id)
        if attempt is not None and attempt["outcome"] in _RECORDED:
            raise claim_lost("it has completed already")
        begun = attempt is not None
        state = step(run.state, RunMove.RESUME)
        attempts = max(run.attempts, 1) if begun else run.attempts + 1
        resumed = await tx.handle.execute(
            _RESUME_RUN, tx.tenant, run.id, claim_id, attempts, self._policy.lease_seconds
        )
        if not resumed:
            raise claim_lost("its runner was not heard of for too long, and its place is taken")
        if begun:
            await tx.handle.execute(_REOPEN_ATTEMPT, tx.tenant, run.id, claim_id)
        else:
            await tx.handle.execute(_OPEN_ATTEMPT, tx.tenant, run.id, claim_id, run.runner or "")
        [again] = await read_runs(tx.handle, tx.tenant, [run.id])
        assert again.state is state
        await self._verbs.announce(tx, again, agent_of(tx.tenant, again), {"resumed": True})
        return again

    async def complete(self, tx: Tx, run: Run, claim_id: UUID, completion: Completion) -> Completed:
        """Record how a claim ended, once; said again, answer what was recorded. Raises Conflict (claim_lost)."""
        attempt = await tx.handle.fetchrow(_ATTEMPT_OF_CLAIM, tx.tenant, run.id, claim_id)
        if attempt is not None and attempt["outcome"] in _RECORDED:
            said = "retry" if attempt["outcome"] == HANDED_BACK else attempt["outcome"]
            return Completed(run_id=run.id, state=run.state, outcome=said, recorded=True)
        if run.claim_id != claim_id:
            raise claim_lost("another claim holds this run, or it has been queued anew")
        begun, returns = attempt is not None, 0
        if completion.outcome == "retry":
            returns = await tx.handle.fetchval(_RETURNS_IN_A_ROW, tx.tenant, run.id, claim_id)
        elif run.state is RunState.CLAIMED:
            run, begun = await self.start(tx, run), True
        verdict = conclude(
            run, claim_id, completion, self._policy, random=self._random(), begun=begun, returns=returns
        )
        recorded = HANDED_BACK if _is_free(run, completion) else completion.outcome
        match verdict:
            case ClaimLost(reason):
                raise claim_lost(reason)
            case Unchanged():
                pass
            case Conclusion():
                run = await self._concluded(tx, run, completion, verdict)
            case _:
                assert_never(verdict)
        if not begun and attempt is None:
            # it ended before its first heartbeat, or that came never: it is written down all the same
            await tx.handle.execute(_OPEN_ATTEMPT, tx.tenant, run.id, claim_id, run.runner or "")
        await tx.handle.execute(
            _CLOSE_ATTEMPT, tx.tenant, run.id, claim_id, recorded, completion.error or completion.text
        )
        return Completed(run_id=run.id, state=run.state, outcome=completion.outcome, recorded=False)

    async def _concluded(self, tx: Tx, run: Run, completion: Completion, verdict: Conclusion) -> Run:
        """Write what a completion has come to; a run that needs input leaves its question behind."""
        actor = agent_of(tx.tenant, run)
        if verdict.state is not RunState.NEEDS_INPUT:
            return await self._verbs.conclude(tx, run, verdict, actor)
        assert run.claim_id is not None
        asked = NewAsk(
            request_id=new_id(), question=completion.text or "", options=completion.options, released=True
        )
        ask, opened = await self._asks.put(tx, run, run.claim_id, asked)
        if ask.state is AskState.ANSWERED:  # since this claim was given the answers: the next one is given it
            state = step(verdict.state, RunMove.ANSWER)
            verdict = replace(verdict, state=state, outcome=None, note={"reason": ANSWERED})
        after = await self._verbs.conclude(tx, run, verdict, actor)
        if opened:
            await self._asks.announce(tx, "ask.opened", after, ask, actor)
        return after


def _is_free(run: Run, completion: Completion) -> bool:
    """Tell whether a completion gives a run back unspent."""
    return completion.outcome == "retry" and (completion.handed_back or run.state is RunState.CLAIMED)


def agent_of(tenant: UUID, run: Run) -> Actor:
    """Return a run's agent as the actor that it is while it does the run."""
    return Actor(
        tenant_id=tenant,
        account_id=run.agent_id,
        kind="agent",
        handle=run.agent_handle,
        cause=run.agents_cause,
        run_id=run.id,
    )


def claim_lost(why: str) -> Conflict:
    """Return the refusal of a claim's word that comes too late."""
    return Conflict(f"this claim is over: {why}", code="claim_lost")
