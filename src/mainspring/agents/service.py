"""Commands and queries on agents and runs. Takes who acts and what they want; leaves it done in one transaction, with its
events, or refused with nothing written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from mainspring import telemetry
from mainspring.agents.asks import asks_of_run
from mainspring.agents.model import DEAD, LIVE, Agent, Run, RunMove, RunPolicy, RunState, can
from mainspring.agents.rows import SQL, agent_of, attempt_of
from mainspring.agents.tokens import add_account, checked_handle
from mainspring.agents.verbs import RunVerbs, lock_run, read_runs
from mainspring.agents.views import AgentView, LogLine, RunView, waiting_for, waiting_for_answer
from mainspring.db import Database, Scope
from mainspring.rooms import Actor, Conflict, FieldError, Invalid, NotFound, ServerSpine, VersionConflict

if TYPE_CHECKING:
    from asyncpg import Record

_ADD_AGENT = SQL["add_agent"]
_AGENTS = SQL["agents"]
_AGENT_BY_HANDLE = SQL["agent_by_handle"]
_AGENT = SQL["agent"]
_LOCK_AGENT = SQL["lock_agent"]
_UPDATE_AGENT = SQL["update_agent"]
_RESTART_QUEUED_TIMEOUTS = SQL["restart_queued_timeouts"]
_RENAME_ACCOUNT = SQL["rename_account"]
_LIVE_RUNS_OF_AGENT = SQL["live_runs_of_agent"]
_LIST_RUNS = SQL["list_runs"]
_LIST_RUNS_OF_CARD = SQL["list_runs_of_card"]
_LIST_RUNS_OF_KEY = SQL["list_runs_of_key"]
_LIST_RUNS_OF_AGENT = SQL["list_runs_of_agent"]
_LIST_LIVE_RUNS = SQL["list_live_runs"]
_LIST_DEAD_RUNS = SQL["list_dead_runs"]
_WAITING_OF_RUN = SQL["waiting_of_run"]
_ATTEMPTS = SQL["attempts"]
_READ_LOG = SQL["read_log"]
_RUNS_BY_STATE = SQL["runs_by_state"]
_SLOTS_BY_USE = SQL["slots_by_use"]

SLOTS_MAX: Final = 1_000
NAME_LENGTH_MAX: Final = 200
LIVE_RUNS_SHOWN: Final = 50
_HIGHEST: Final = UUID(int=2**128 - 1)


class AgentService:
    """Agents, one method a command or query, one transaction a method.

    `poke` wakes the runners that wait in this process: a resumed agent, or one with more slots, may have work for them.
    """

    def __init__(self, db: Database, policy: RunPolicy, *, poke: Callable[[], None]) -> None:
        self._db = db
        self._policy = policy
        self._poke = poke

    async def create(
        self, actor: Actor, *, handle: str, name: str | None = None, slots: int = 1, wake: bool = False
    ) -> AgentView:
        """Make an agent. Raises Invalid, and Conflict when its handle is taken."""
        folded = checked_handle(handle)
        shown = _checked_name(name or folded)
        _check_slots(slots)
        tenant = actor.tenant_id
        async with self._db.tenant(tenant) as scope:
            account = await add_account(scope, tenant, "agent", folded, shown)
            if account is None:
                raise Conflict(f"the handle {folded} is taken", code="handle_taken")
            await scope.execute(_ADD_AGENT, tenant, account.id, slots, wake)
            return await self._view(scope, tenant, account.id)

    async def list_agents(
        self, tenant: UUID, *, after: UUID | None = None, limit: int = 50
    ) -> list[AgentView]:
        """Return the tenant's agents behind `after`, oldest first."""
        async with self._db.tenant(tenant) as scope:
            rows = await scope.fetch(_AGENTS, tenant, self._policy.lease_seconds, after, None, limit)
        return [_agent_view(row) for row in rows]

    async def get(self, tenant: UUID, ref: str) -> AgentView:
        """Return the agent of that handle or id, with its live runs. Raises NotFound."""
        async with self._db.tenant(tenant) as scope:
            agent = await _find(scope, tenant, ref)
            return await self._view(scope, tenant, agent.id)

    async def pause(self, actor: Actor, ref: str) -> AgentView:
        """Let the agent's runs wait; those that a runner holds go on. Raises NotFound."""
        return await self.update(actor, ref, paused=True)

    async def resume(self, actor: Actor, ref: str) -> AgentView:
        """Let the agent's runs be claimed again. Raises NotFound."""
        return await self.update(actor, ref, paused=False)

    async def update(
        self,
        actor: Actor,
        ref: str,
        *,
        name: str | None = None,
        slots: int | None = None,
        paused: bool | None = None,
        wake: bool | None = None,
        expected_version: int | None = None,
    ) -> AgentView:
        """Change what is given. Raises Invalid, NotFound, and VersionConflict when it is not the expected version."""
        if slots is not None:
            _check_slots(slots)
        shown = None if name is None else _checked_name(name)
        tenant = actor.tenant_id
        async with self._db.tenant(tenant) as scope:
            agent = await _find(scope, tenant, ref)
            await scope.fetchval(_LOCK_AGENT, tenant, agent.id)
            now = await self._view(scope, tenant, agent.id)
            if expected_version is not None and expected_version != now.agent.version:
                raise VersionConflict(
                    f"agent {agent.handle} is at version {now.agent.version}", current=now.as_json()
                )
            if shown is not None:
                await scope.execute(_RENAME_ACCOUNT, tenant, agent.id, shown)
            wanted = (
                now.agent.slots if slots is None else slots,
                now.agent.paused if paused is None else paused,
                now.agent.wake if wake is None else wake,
            )
            if wanted != (now.agent.slots, now.agent.paused, now.agent.wake) or shown not in (
                None,
                now.agent.name,
            ):
                await scope.execute(_UPDATE_AGENT, tenant, agent.id, *wanted)
            if now.agent.paused and paused is False:
                await scope.execute(_RESTART_QUEUED_TIMEOUTS, tenant, agent.id)
            view = await self._view(scope, tenant, agent.id)
        self._db.when_committed(self._poke)
        return view

    async def _view(self, scope: Scope, tenant: UUID, agent_id: UUID) -> AgentView:
        [row] = await scope.fetch(_AGENTS, tenant, self._policy.lease_seconds, None, agent_id, 1)
        live = [
            row["id"] for row in await scope.fetch(_LIVE_RUNS_OF_AGENT, tenant, agent_id, LIVE_RUNS_SHOWN)
        ]
        return _agent_view(row, await read_runs(scope, tenant, live))


class RunService:
    """Runs as people see and steer them."""

    def __init__(self, spine: ServerSpine, db: Database, verbs: RunVerbs, policy: RunPolicy) -> None:
        self._spine = spine
        self._db = db
        self._verbs = verbs
        self._policy = policy

    async def list_runs(
        self,
        tenant: UUID,
        *,
        states: Sequence[RunState] = (),
        agent: str | None = None,
        card_id: UUID | None = None,
        card_key: str | None = None,
        after: UUID | None = None,
        limit: int = 50,
    ) -> list[Run]:
        """Return the runs that match, the newest first, behind `after`. Raises NotFound for an agent that is not there."""
        async with self._db.tenant(tenant) as scope:
            agent_id = None if agent is None else (await _find(scope, tenant, agent)).id
            terms = (tenant, after or _HIGHEST, limit, agent_id, list(states) or None)
            if card_id is not None:
                rows = await scope.fetch(_LIST_RUNS_OF_CARD, *terms, card_id)
            elif card_key is not None:
                rows = await scope.fetch(_LIST_RUNS_OF_KEY, *terms, card_key.strip().upper())
            else:
                rows = await scope.fetch(_listing(states, agent_id), *terms)
            found = await read_runs(scope, tenant, [row["id"] for row in rows])
        return sorted(found, key=lambda run: run.id, reverse=True)

    async def get(self, tenant: UUID, run_id: UUID) -> RunView:
        """Return a run with its attempts, and what it waits for. Raises NotFound."""
        async with self._db.tenant(tenant) as scope:
            return await self._view(scope, tenant, run_id)

    async def log(
        self, tenant: UUID, run_id: UUID, *, after: int = 0, limit: int = 200
    ) -> tuple[Run, list[LogLine]]:
        """Return a run and the lines of its log behind line `after`. Raises NotFound."""
        async with self._db.tenant(tenant) as scope:
            runs = await read_runs(scope, tenant, [run_id])
            if not runs:
                raise NotFound("run", run_id)
            rows = await scope.fetch(_READ_LOG, tenant, run_id, after, limit)
        return runs[0], [LogLine(n=row["n"], at=row["at"], text=row["text"]) for row in rows]

    async def cancel(self, actor: Actor, run_id: UUID, *, reason: str | None = None) -> RunView:
        """Cancel a queued run; ask a held one's runner to stop. Raises NotFound, and Conflict when it has ended."""
        async with self._spine.open(actor.tenant_id) as tx:
            run = await lock_run(tx, run_id)
            if run is None:
                raise NotFound("run", run_id)
            if run.state is not RunState.CANCELLED and not can(run.state, RunMove.CANCEL):
                raise Conflict(f"the run is {run.state} already", code="run_ended")
            await self._verbs.cancel_run(tx, run_id, actor, reason=reason)
            return await self._view(tx.handle, actor.tenant_id, run_id)

    async def retry(self, actor: Actor, run_id: UUID) -> RunView:
        """Queue a failed or lost run again: the same run, attempts 0. Raises NotFound, and Conflict when it is neither."""
        async with self._spine.open(actor.tenant_id) as tx:
            if not await self._verbs.replay_runs(tx, [run_id], actor):
                view = await self._view(tx.handle, actor.tenant_id, run_id)
                raise Conflict(
                    f"the run is {view.run.state}: only a failed or lost run is retried", code="run_not_dead"
                )
            return await self._view(tx.handle, actor.tenant_id, run_id)

    async def _view(self, scope: Scope, tenant: UUID, run_id: UUID) -> RunView:
        runs = await read_runs(scope, tenant, [run_id])
        if not runs:
            raise NotFound("run", run_id)
        attempts = await scope.fetch(_ATTEMPTS, tenant, run_id)
        asks = await asks_of_run(scope, tenant, run_id)
        waiting = (
            waiting_for_answer(asks) if runs[0].state in (RunState.RUNNING, RunState.NEEDS_INPUT) else None
        )
        if runs[0].state is RunState.QUEUED:
            row = await scope.fetchrow(_WAITING_OF_RUN, tenant, run_id, self._policy.lease_seconds)
            assert row is not None
            waiting = waiting_for(**dict(row.items()))
        return RunView(
            run=runs[0],
            attempts=tuple(attempt_of(row) for row in attempts),
            waiting=waiting,
            asks=tuple(asks),
        )


def _listing(states: Sequence[RunState], agent_id: UUID | None) -> str:
    """Return the statement whose index these terms can drive: live and dead runs are few, finished ones may number millions."""
    if states and LIVE.issuperset(states):
        return _LIST_LIVE_RUNS
    if states and DEAD.issuperset(states):
        return _LIST_DEAD_RUNS
    return _LIST_RUNS if agent_id is None else _LIST_RUNS_OF_AGENT


async def measure(db: Database, policy: RunPolicy) -> None:
    """Set the gauges of runs and of runner slots; cheap, since finished runs are not counted."""
    async with db.system("metrics") as scope:
        counted = {row["state"]: row["n"] for row in await scope.fetch(_RUNS_BY_STATE)}
        slots = await scope.fetchrow(_SLOTS_BY_USE, policy.lease_seconds)
    for state in ("queued", "claimed", "running", "needs_input", "failed", "lost"):
        telemetry.runs.labels(state).set(counted.get(state, 0))
    assert slots is not None
    telemetry.runner_slots.labels("busy").set(slots["busy"])
    telemetry.runner_slots.labels("free").set(max(0, slots["all_slots"] - slots["busy"]))


async def _find(scope: Scope, tenant: UUID, ref: str) -> Agent:
    """Return the agent of that handle or id. Raises NotFound."""
    try:
        row = await scope.fetchrow(_AGENT, tenant, UUID(ref))
    except ValueError:
        row = await scope.fetchrow(_AGENT_BY_HANDLE, tenant, ref.strip().lower())
    if row is None:
        raise NotFound("agent", ref)
    return agent_of(row)


def _agent_view(row: Record, runs: Sequence[Run] = ()) -> AgentView:
    return AgentView(
        agent=agent_of(row),
        queued=row["queued"],
        held=row["held"],
        served=row["served"],
        runs=tuple(runs),
    )


def _checked_name(name: str) -> str:
    shown = name.strip()
    if not 1 <= len(shown) <= NAME_LENGTH_MAX or "\0" in shown:
        raise Invalid(FieldError("/name", f"1 to {NAME_LENGTH_MAX} characters"))
    return shown


def _check_slots(slots: int) -> None:
    if not 1 <= slots <= SLOTS_MAX:
        raise Invalid(FieldError("/slots", f"1 to {SLOTS_MAX}"))
