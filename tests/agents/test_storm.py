"""Many runners that behave badly, a sweep, and people who cancel, replay and answer, all at once; then calm.

Whatever the order was: every step of every run is one that the table has, no agent ever held more runs than it has slots, no claim
was completed twice, no question was opened or answered twice, and in the end nothing is left that could still be done.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from itertools import pairwise
from uuid import UUID

import pytest

from mainspring.agents.asking import CLOSING, AskState
from mainspring.agents.model import EVENT_KINDS, FINAL, TRANSITIONS, RunState
from mainspring.ids import new_id
from mainspring.rooms import Conflict, NotFound

RUNS, RUNNERS, ROUNDS, SLOTS = 14, 4, 30, 3
STATES = {kind: state for state, kind in EVENT_KINDS.items()}
LOST = (Conflict, NotFound)
QUESTIONS = ("Go on?", "Which region?")


def steps(state: RunState) -> set[RunState]:
    """The states whose event may come next: one move away, or two with a claim, which has no event, in between."""
    after = {to for (before, _), to in TRANSITIONS.items() if before is state}
    if RunState.CLAIMED in after:
        after |= {to for (before, _), to in TRANSITIONS.items() if before is RunState.CLAIMED}
    return after - {RunState.CLAIMED}


class Badly:
    """A runner that forgets, repeats itself, stays away, and comes back."""

    def __init__(self, runner, dice: random.Random) -> None:
        self.runner = runner
        self.dice = dice
        self.works = []
        self.asked = []

    async def live(self) -> None:
        for _ in range(ROUNDS):
            await self.act(
                self.dice.choice(("claim", "claim", "beat", "beat", "ask", "end", "end", "restart", "forget"))
            )

    async def act(self, what: str) -> None:
        match what:
            case "claim":
                slots = tuple(self.dice.sample(range(3), 2))
                claimed = await self.runner.claim(slots=slots)
                if claimed.work is not None and self.dice.random() < 0.8:  # else the answer is lost
                    self.works.append(claimed.work)
            case "restart":
                if self.dice.random() < 0.3:
                    self.runner.incarnation = new_id()
            case "forget" if self.works and self.dice.random() < 0.3:
                self.works.pop(0)
            case "beat" if self.works:
                with suppress(*LOST):
                    await self.runner.heartbeat(self.dice.choice(self.works), *self.asked)
            case "ask" if self.works:
                with suppress(*LOST):
                    waits = self.dice.choice((None, 30))
                    work = self.dice.choice(self.works)
                    self.asked.append(
                        await self.runner.ask(work, self.dice.choice(QUESTIONS), timeout_seconds=waits)
                    )
            case "end" if self.works:
                work = self.dice.choice(self.works)
                outcome = self.dice.choice(
                    ("done", "failed", "retry", "retry", "blocked", "needs_input", "needs_input", "cancelled")
                )
                handed_back = self.dice.random() < 0.5
                with suppress(*LOST):
                    await asyncio.gather(
                        *(
                            self.runner.complete(
                                work, outcome, text=self.dice.choice(QUESTIONS), handed_back=handed_back
                            )
                            for _ in range(self.dice.choice((1, 1, 2)))
                        ),
                    )


async def people(place, run_ids: list[UUID], dice: random.Random) -> None:
    for _ in range(ROUNDS):
        run_id = dice.choice(run_ids)
        match dice.choice(("cancel", "replay", "age", "sweep", "sweep", "held", "answer", "answer")):
            case "cancel" if dice.random() < 0.3:
                with suppress(Conflict):
                    await place.room.runs.cancel(place.admin, run_id)
            case "replay":
                with suppress(Conflict):
                    await place.room.runs.retry(place.admin, run_id)
            case "answer":
                if waiting := await place.room.asks.list_asks(place.tenant):
                    with suppress(Conflict):
                        await place.room.asks.answer(place.admin, dice.choice(waiting).id, dice.choice("ab"))
            case "age":
                await place.home.age(dice.choice((5, 30, 61)), only=dice.choice(("runs", "runs", "asks")))
            case "sweep":
                await place.room.silence.expire_runs()
            case "held":
                views = await place.room.agents.list_agents(place.tenant)
                assert all(view.held <= view.agent.slots for view in views)
            case _:
                pass


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_a_storm(place, seed):
    dice = random.Random(seed)
    agents = [await place.agent(f"agent-{n}", slots=SLOTS) for n in range(2)]
    handles = [f"agent-{n}" for n in range(2)]
    run_ids = [await place.queue(dice.choice(agents)) for _ in range(RUNS)]
    bad = [
        Badly(await place.runner(*handles, name=f"r{n}"), random.Random(seed * 100 + n))
        for n in range(RUNNERS)
    ]
    await asyncio.gather(*(one.live() for one in bad), people(place, run_ids, dice))

    good = await place.runner(*handles, name="good")
    for _ in range(RUNS * 10):
        await place.home.age(3600)
        await place.room.silence.expire_runs()
        waiting = await place.room.asks.list_asks(place.tenant)
        for ask in waiting:
            with suppress(Conflict):
                await place.room.asks.answer(place.admin, ask.id, "so be it")
        work = (await good.claim()).work
        if work is None:
            break
        await good.complete(work, "done")

    for run_id in run_ids:
        view = await place.room.runs.get(place.tenant, run_id)
        assert view.run.state in FINAL | {RunState.FAILED, RunState.LOST}
        assert view.run.attempts <= 3
        assert all(attempt.ended_at is not None for attempt in view.attempts)
        assert [attempt.n for attempt in view.attempts] == list(range(1, len(view.attempts) + 1))
        states = [STATES[kind] for kind in await place.kinds(run_id)]
        assert states[0] is RunState.QUEUED
        assert states[-1] is view.run.state
        for before, after in pairwise(states):
            assert after in steps(before), (before, after)
    for ask in await place.room.asks.list_asks(place.tenant, all_states=True, limit=1_000):
        assert not (ask.run_state in CLOSING and ask.state is AskState.OPEN)
        told = await place.kinds(ask.id)
        assert told == ["ask.opened", *["ask.answered"] * (ask.state is AskState.ANSWERED)]
    async with place.home.db.tenant(place.tenant) as scope:
        # a run that was given up for lost goes on, token and all, when its runner is heard again
        left = "select count(*) from mainspring.tokens t join mainspring.runs r on r.id = t.run_id where r.state <> 'lost'"
        assert await scope.fetchval(left) == 0
