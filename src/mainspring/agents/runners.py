"""The runner protocol: claim, heartbeat, log, complete. Takes queued runs; leaves each with one runner, and its result recorded.

A claim appends nothing and may be answered again: the slot that holds a run gets the same one. An attempt counts from the
first heartbeat. Every later word is fenced by the claim; if we die anywhere here, the runner says it again, or its lease runs out.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from asyncpg import Record

from mainspring.agents.asking import Ask, AskEnded, NewAsk
from mainspring.agents.asks import AskVerbs, ended_asks
from mainspring.agents.claims import ClaimVerbs, Completed, agent_of, claim_lost
from mainspring.agents.model import (
    Cards,
    Completion,
    Run,
    RunPolicy,
    RunState,
    clean,
)
from mainspring.agents.polls import Poll, Polls
from mainspring.agents.rows import SQL
from mainspring.agents.tokens import NewToken, mint
from mainspring.agents.verbs import RunVerbs, lock_run, read_runs
from mainspring.agents.views import RunnerView, Work
from mainspring.db import Database
from mainspring.faultpoints import FaultPoint, reach
from mainspring.ids import new_id
from mainspring.rooms import Forbidden, NotFound, ServerSpine, Tx

_AGENTS_OF_TOKEN = SQL["agents_of_token"]
_MEET_RUNNER = SQL["meet_runner"]
_HELD_RUN = SQL["held_run"]
_LOCK_DUE_AGENTS = SQL["lock_due_agents"]
_CLAIM_RUN = SQL["claim_run"]
_DROP_RUN_TOKENS = SQL["drop_run_tokens"]
_RENEW_RUN = SQL["renew_run"]
_APPEND_LOG = SQL["append_log"]
_RUNNERS = SQL["runners"]
_DRAIN_RUNNER = SQL["drain_runner"]
_LEAVE_RUNNER = SQL["leave_runner"]

LOG_BYTES_MAX: Final = 1_048_576
LOG_LINES_MAX: Final = 1_000
LOG_LINE_LENGTH_MAX: Final = 16_384
LOG_CUT: Final = "[log truncated: a run keeps 1 MiB]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """A runner asks for work for one of its free slots.

    Args:
        token_id: the runner's token, which names the agents that it may run; looked at again each time we look for work.
        runner: its name; `incarnation` is new at every start of its process.
        agents: handles it has room for now; empty for all that the token names.
        slots: numbers of its free slots.
        capacity: how many slots it has in all, if it says.
        labels: what it has, folded: it takes runs that need nothing else.
    """

    tenant_id: UUID
    token_id: UUID
    runner: str
    incarnation: UUID
    agents: frozenset[str]
    slots: tuple[int, ...]
    capacity: int | None = None
    labels: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The answer to a claim: work, or none within the wait; `drain` tells the runner to finish what it holds and go.

    `slots`: how many runs of each agent that it has room for go on at once, on all runners together.
    """

    work: Work | None = None
    drain: bool = False
    slots: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The answer to a heartbeat. `answers` are those of the questions that it waits for which are over."""

    cancel: bool
    drain: bool
    attempt: int
    answers: tuple[AskEnded, ...] = ()


class RunnerService:
    """What runners say and are told, and what people see of them."""

    def __init__(
        self,
        spine: ServerSpine,
        db: Database,
        verbs: RunVerbs,
        asks: AskVerbs,
        cards: Cards,
        polls: Polls,
        policy: RunPolicy,
        *,
        random_unit: Callable[[], float] = random.random,
    ) -> None:
        self._spine = spine
        self._db = db
        self._cards = cards
        self._polls = polls
        self._asks = asks
        self._claims = ClaimVerbs(verbs, asks, policy, random_unit=random_unit)
        self.policy = policy

    # claim ----------------------------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest, *, wait_seconds: float = 0.0) -> Claimed:
        """Return work for one of the slots, as soon as there is some within the wait.

        Raises Forbidden for an agent that the token does not name, or when the token is revoked meanwhile.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_seconds
        with self._polls.waiting(request.tenant_id, request.labels) as poll:
            while True:
                poll.rest()
                claimed = await self._look(request, poll)
                if claimed.work is not None or claimed.drain:
                    return claimed
                if not await poll.woken(max(0.0, until - loop.time())):
                    return claimed

    async def _look(self, request: ClaimRequest, poll: Poll) -> Claimed:
        """Look for work once: first for what a slot of the runner holds already."""
        async with self._spine.open(request.tenant_id) as tx:
            named, wanted = await self._agents(tx, request)
            agents = [row["id"] for row in wanted]
            runner_id, draining = await self._meet(tx, request, agents)
            # from here on a commit that brings work wakes this poll, even while it looks
            poll.agents, poll.runner_id = tuple(agents), runner_id
            run_id = await tx.handle.fetchval(
                _HELD_RUN, tx.tenant, runner_id, request.incarnation, list(request.slots), named,
                self.policy.lease_seconds,
            )  # fmt: skip
            if run_id is None and not draining:
                run_id = await self._take(tx, request, agents, runner_id)
            work = None if run_id is None else await self._work(tx, run_id)
        if work is not None:
            reach(FaultPoint.RUNS_AFTER_CLAIM)
        return Claimed(work=work, drain=draining, slots={row["handle"]: row["slots"] for row in wanted})

    async def _agents(self, tx: Tx, request: ClaimRequest) -> tuple[list[UUID], list[Record]]:
        """Return the ids of the agents that the token names, and those of these agents that the runner has room for."""
        named = await tx.handle.fetch(_AGENTS_OF_TOKEN, tx.tenant, request.token_id)
        if not named:
            raise Forbidden("this token names no agents, or is not valid any more")
        if unnamed := request.agents - {row["handle"] for row in named}:
            raise Forbidden(f"this token does not name the agent {', '.join(sorted(unnamed))}")
        wanted = [row for row in named if not request.agents or row["handle"] in request.agents]
        return [row["id"] for row in named], wanted

    async def _meet(self, tx: Tx, request: ClaimRequest, agents: Sequence[UUID]) -> tuple[UUID, bool]:
        slots = request.capacity or max(request.slots) + 1
        row = await tx.handle.fetchrow(
            _MEET_RUNNER, tx.tenant, new_id(), request.runner, request.incarnation, agents, slots,
            request.capacity is not None, sorted(request.labels),
        )  # fmt: skip
        assert row is not None
        return row["id"], row["draining"]

    async def _take(
        self, tx: Tx, request: ClaimRequest, agents: Sequence[UUID], runner_id: UUID
    ) -> UUID | None:
        due = await tx.handle.fetch(_LOCK_DUE_AGENTS, tx.tenant, agents, sorted(request.labels))
        if not due:
            return None
        run_id: UUID | None = await tx.handle.fetchval(
            _CLAIM_RUN, tx.tenant, [row["id"] for row in due], [row["slots"] for row in due], new_id(), runner_id,
            request.incarnation, list(request.slots), self.policy.lease_seconds, sorted(request.labels),
        )  # fmt: skip
        return run_id

    async def _work(self, tx: Tx, run_id: UUID) -> Work:
        """Gather what the run's runner needs, and make the token that lives as long as this claim."""
        [run] = await read_runs(tx.handle, tx.tenant, [run_id])
        await tx.handle.execute(_DROP_RUN_TOKENS, tx.tenant, run.id, run.claim_id)
        token = NewToken(
            account_id=run.agent_id, kind="run", role="member", run_id=run.id, claim_id=run.claim_id
        )
        _, secret = await mint(tx.handle, tx.tenant, token)
        card = None if run.card_id is None else await self._cards.card_snapshot(tx, run.card_id)
        event = None
        if run.event_seq is not None:
            found = await self._spine.store.events_at(tx.handle, tx.tenant, [run.event_seq])
            event = found.get(run.event_seq)
        return Work(run=run, card=card, event=event, answers=await self._asks.give(tx, run), secret=secret)

    async def leave(self, tenant: UUID, name: str, incarnation: UUID) -> None:
        """Take a runner's word that its process ends: from here on nobody waits for it. A name that is another's now is left alone."""
        async with self._db.tenant(tenant) as scope:
            await scope.execute(_LEAVE_RUNNER, tenant, name, incarnation)

    # heartbeat and log ----------------------------------------------------------------------------------------

    async def heartbeat(
        self,
        tenant: UUID,
        run_id: UUID,
        claim_id: UUID,
        *,
        agents: Collection[UUID],
        asks: Collection[UUID] = (),
    ) -> Beat:
        """Renew a claim's lease; its first one starts the run, and one that comes late gets it back, if nobody else has claimed it.

        Raises Conflict (claim_lost), and NotFound.

        `agents` are those that the caller's token names; `asks` the questions that the runner waits for.
        """
        ended: Sequence[AskEnded] = ()
        async with self._db.tenant(tenant) as scope:
            row = await scope.fetchrow(
                _RENEW_RUN, tenant, run_id, claim_id, list(agents), self.policy.lease_seconds
            )
            if row is not None and asks:
                ended = await ended_asks(scope, tenant, run_id, list(asks))
        if row is None:
            return await self._first_heartbeat(tenant, run_id, claim_id, agents)
        if row["runner_id"] is not None:
            self._polls.heard_of(tenant, row["runner_id"])
        return Beat(
            cancel=row["cancel_requested"],
            drain=row["draining"],
            attempt=row["attempts"],
            answers=tuple(ended),
        )

    async def _first_heartbeat(
        self, tenant: UUID, run_id: UUID, claim_id: UUID, agents: Collection[UUID]
    ) -> Beat:
        """Take a heartbeat that begins a run, or comes after it was taken back."""
        async with self._spine.open(tenant) as tx:
            beating = await self._claims.beat(tx, await _reached(tx, run_id, agents), claim_id)
        if beating is None:
            beating = await self._resume(tenant, run_id, claim_id, agents)
        return Beat(cancel=beating.cancel_requested, drain=False, attempt=beating.attempts)

    async def _resume(self, tenant: UUID, run_id: UUID, claim_id: UUID, agents: Collection[UUID]) -> Run:
        # anew, since the locks that this takes stand before the run's; so everything is looked at anew
        async with self._spine.open(tenant) as tx:
            await self._claims.lock_holders(tx, run_id)
            run = await _reached(tx, run_id, agents)
            beating = await self._claims.beat(tx, run, claim_id)
            return beating if beating is not None else await self._claims.resume(tx, run, claim_id)

    async def ask(
        self, tenant: UUID, run_id: UUID, claim_id: UUID, new: NewAsk, *, agents: Collection[UUID]
    ) -> Ask:
        """Ask people something for a run that goes on; its heartbeats carry the answer. The same request is the same question.

        It is a heartbeat, too. Raises Conflict (claim_lost), and NotFound.
        """
        await self.heartbeat(tenant, run_id, claim_id, agents=agents)
        async with self._spine.open(tenant) as tx:
            run = await _reached(tx, run_id, agents)
            if run.claim_id != claim_id or run.state is not RunState.RUNNING:
                raise claim_lost(f"the run is {run.state}")
            ask, opened = await self._asks.put(tx, run, claim_id, new)
            if opened:
                await self._asks.announce(tx, "ask.opened", run, ask, agent_of(tenant, run))
            return ask

    async def append_log(
        self,
        tenant: UUID,
        run_id: UUID,
        claim_id: UUID,
        lines: Sequence[str],
        *,
        agents: Collection[UUID],
        offset: int | None = None,
    ) -> tuple[int, bool]:
        """Keep lines of a run's output, up to 1 MiB; return how many this claim has sent, and whether the log is full.

        With `offset` (how many lines this claim sent before), lines that were kept already are passed over. Raises
        Conflict (claim_lost), and NotFound.
        """
        kept = [clean(line, length_max=LOG_LINE_LENGTH_MAX) for line in lines]
        async with self._spine.open(tenant) as tx:
            row = await tx.handle.fetchrow(
                _APPEND_LOG, tenant, run_id, claim_id, kept, offset, list(agents), LOG_BYTES_MAX, LOG_CUT
            )
            if row is None:
                run = await _reached(tx, run_id, agents)
                raise claim_lost(f"the run is {run.state}")
        return row["next"], row["truncated"]

    # complete -------------------------------------------------------------------------------------------------

    async def complete(
        self, tenant: UUID, run_id: UUID, claim_id: UUID, completion: Completion, *, agents: Collection[UUID]
    ) -> Completed:
        """Record how a claim ended; saying the same again answers what was recorded.

        Accepted from the run's last claim until another claims, lease or no lease. Raises Conflict (claim_lost), and NotFound.
        """
        async with self._spine.open(tenant) as tx:
            run = await _reached(tx, run_id, agents)
            completed = await self._claims.complete(tx, run, claim_id, completion)
            reach(FaultPoint.RUNS_BEFORE_COMPLETE)
        reach(FaultPoint.RUNS_AFTER_COMPLETE)
        return completed

    # what people see ------------------------------------------------------------------------------------------

    async def list_runners(
        self, tenant: UUID, *, after: UUID | None = None, limit: int = 50
    ) -> list[RunnerView]:
        """Return the runners that were ever heard of, behind `after`."""
        async with self._db.tenant(tenant) as scope:
            rows = await scope.fetch(_RUNNERS, tenant, self.policy.lease_seconds, after, None, None, limit)
        return [_view(row) for row in rows]

    async def get_runner(self, tenant: UUID, ref: str) -> RunnerView:
        """Return the runner of that id or name. Raises NotFound."""
        by_id, by_name = _id_or_name(ref)
        async with self._db.tenant(tenant) as scope:
            rows = await scope.fetch(_RUNNERS, tenant, self.policy.lease_seconds, None, by_id, by_name, 1)
        if not rows:
            raise NotFound("runner", ref)
        return _view(rows[0])

    async def drain(self, tenant: UUID, ref: str) -> RunnerView:
        """Ask a runner to finish what it holds and to claim no more, until its process starts again. Raises NotFound."""
        runner = await self.get_runner(tenant, ref)
        async with self._db.tenant(tenant) as scope:
            await scope.execute(_DRAIN_RUNNER, tenant, runner.id)
        return await self.get_runner(tenant, str(runner.id))


async def _reached(tx: Tx, run_id: UUID, agents: Collection[UUID]) -> Run:
    """Lock and return a run that a runner's token reaches; one that it does not reach is not there for it."""
    run = await lock_run(tx, run_id)
    if run is None or run.agent_id not in agents:
        raise NotFound("run", run_id)
    return run


def _id_or_name(ref: str) -> tuple[UUID | None, str | None]:
    try:
        return UUID(ref), None
    except ValueError:
        return None, ref


def _view(row: Any) -> RunnerView:
    return RunnerView(
        id=row["id"],
        name=row["name"],
        incarnation=row["incarnation"],
        agents=tuple(row["agents"]),
        labels=tuple(row["labels"]),
        slots=row["slots"],
        runs=tuple(row["runs"]),
        draining=row["draining"],
        live=row["live"],
        created_at=row["created_at"],
        last_seen_at=row["last_seen_at"],
    )
