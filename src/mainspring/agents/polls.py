"""Long polls of runners: who waits in this process, and who is woken when there is something to claim.

Takes calls (a commit here that touched a run) and the floor tick. A call asks for the polls of its tenant, the tick one question
for all that wait; both wake as many as there are runs to claim. Nothing is owed by what stands here: if this process dies, its
runners ask another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from mainspring.agents.model import RunPolicy
from mainspring.agents.rows import SQL
from mainspring.db import Database, Scope

_CLAIMABLE = SQL["claimable"]
_SEEN_RUNNERS = SQL["seen_runners"]

_Work: TypeAlias = tuple[UUID, UUID, tuple[str, ...]]  # of a tenant's agent, for a runner with these labels


@dataclass(eq=False, slots=True)
class Poll:
    """One runner that waits, and what it has. Its agents are known once it has looked for the first time."""

    tenant_id: UUID
    labels: tuple[str, ...] = ()
    agents: tuple[UUID, ...] = ()
    runner_id: UUID | None = None
    asleep: bool = False
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def could_do(self) -> Iterator[_Work]:
        """Whose runs it could do, with what it has."""
        return ((self.tenant_id, agent, self.labels) for agent in self.agents)

    def wake(self) -> None:
        """Make it look again."""
        self._woken.set()

    def rest(self) -> None:
        """Forget earlier wakes: it is about to look."""
        self._woken.clear()

    async def woken(self, timeout_seconds: float) -> bool:
        """Wait until it is woken; False when nobody did so in time."""
        self.asleep = True
        try:
            await asyncio.wait_for(self._woken.wait(), timeout_seconds)
        except TimeoutError:
            return False
        finally:
            self.asleep = False
        return True


class Polls:
    """All the polls of this process: by tenant, the oldest first."""

    def __init__(self, db: Database, policy: RunPolicy) -> None:
        self._db = db
        self._policy = policy
        self._waiting: dict[UUID, dict[Poll, None]] = {}
        self._called: set[UUID] = set()
        self._heard: set[tuple[UUID, UUID]] = set()

    @contextmanager
    def waiting(self, tenant: UUID, labels: Iterable[str] = ()) -> Iterator[Poll]:
        """Wait here for the length of the block."""
        poll = Poll(tenant, tuple(sorted(labels)))
        self._waiting.setdefault(tenant, {})[poll] = None
        try:
            yield poll
        finally:
            del self._waiting[tenant][poll]
            if not self._waiting[tenant]:
                del self._waiting[tenant]

    @property
    def asleep(self) -> int:
        """How many polls have looked, found nothing, and wait."""
        return sum(poll.asleep for polls in self._waiting.values() for poll in polls)

    def heard_of(self, tenant: UUID, runner_id: UUID) -> None:
        """Note that a runner lives; the next tick writes it down for all at once."""
        self._heard.add((tenant, runner_id))

    def call(self, tenant: UUID) -> None:
        """Note that something has just happened to a run of this tenant; the next `answer_calls` looks."""
        if tenant in self._waiting:
            self._called.add(tenant)

    async def answer_calls(self) -> bool:
        """Ask for the polls of the tenants that called, and for no others: a commit does not cost by how many wait."""
        called, self._called = self._called, set()
        polls = [poll for tenant in called for poll in self._waiting.get(tenant, ())]
        if not any(poll.agents for poll in polls):
            return False
        try:
            async with self._db.system("run calls") as scope:
                claimable = await _claimable(scope, polls)
        except BaseException:
            self._called |= called
            raise
        _wake(polls, claimable)
        return False

    async def run_once(self) -> bool:
        """Ask once for all polls: what could be claimed, and who shall drain? Wake those, and note which runners live."""
        polls = [poll for of_tenant in self._waiting.values() for poll in of_tenant]
        heard, self._heard = self._heard, set()
        heard |= {(poll.tenant_id, poll.runner_id) for poll in polls if poll.runner_id is not None}
        if not heard and not any(poll.agents for poll in polls):
            return False
        async with self._db.system("run polls") as scope:
            claimable = await _claimable(scope, polls)
            live, spare = sorted(heard), self._policy.lease_seconds / 6
            drained = await scope.fetch(_SEEN_RUNNERS, [t for t, _ in live], [r for _, r in live], spare)
        draining = {(row["tenant_id"], row["id"]) for row in drained}
        for poll in polls:
            if (poll.tenant_id, poll.runner_id) in draining:
                poll.wake()
        _wake(polls, claimable)
        return False


async def _claimable(scope: Scope, polls: Iterable[Poll]) -> dict[_Work, int]:
    """Ask once how much could be claimed of all that these polls could do."""
    asked = sorted({work for poll in polls for work in poll.could_do})
    if not asked:
        return {}
    found = await scope.fetch(_CLAIMABLE, [[str(t), str(a), labels] for t, a, labels in asked])
    return {asked[row["place"] - 1]: row["n"] for row in found}


def _wake(polls: list[Poll], claimable: dict[_Work, int]) -> None:
    """Wake one poll for each run, the oldest first of those with the same labels: the rest sleeps on."""
    for poll in polls:
        for work in poll.could_do:
            if claimable.get(work, 0) > 0:
                claimable[work] -= 1
                poll.wake()
                break
