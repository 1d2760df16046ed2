"""What becomes of runs whose runner is gone, of results that come late, and of dead ones at the desk."""

from __future__ import annotations

import asyncio

import pytest

from mainspring import faultpoints, telemetry
from mainspring.agents.model import RunPolicy
from mainspring.agents.silence import Silence
from mainspring.agents.verbs import RunVerbs
from mainspring.boards import verbs as boards
from mainspring.faultpoints import FaultRaised
from mainspring.rooms import Conflict
from mainspring.sweeps import Watch
from tests.agents.conftest import POLICY, make_place


def repaired() -> float:
    return telemetry.sweep_repaired.labels("run_lease")._value.get()


async def test_a_silent_run_goes_back_to_the_queue_and_its_attempt_says_why(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.take()
    await runner.heartbeat(work)
    before = repaired()
    assert await place.room.silence.expire_runs() == 0
    await place.home.age(61)
    assert await place.room.silence.expire_runs() == 1
    assert repaired() == before + 1
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.state, view.run.attempts, view.run.error) == ("queued", 1, "lease lost")
    assert [(a.outcome, a.ended_at is not None) for a in view.attempts] == [("lease lost", True)]
    events = await place.events(run_id)
    assert [event["kind"] for event in events] == ["run.queued", "run.started", "run.queued"]
    assert events[-1]["data"]["reason"] == "lease lost"
    assert await place.room.tokens.authenticate(work.secret) is None


async def test_a_runner_that_is_heard_again_goes_on_with_its_run_and_its_attempt(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.take()
    await runner.heartbeat(work)
    await runner.log(work, ["one"], offset=0)
    await place.home.age(61)
    await place.room.silence.expire_runs()
    assert await place.state(run_id) == "queued"
    beat = await runner.heartbeat(work)
    assert (beat.attempt, beat.cancel, beat.drain) == (1, False, False)
    assert await runner.heartbeat(work) == beat
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.state, view.run.attempts, view.run.error) == ("running", 1, None)
    assert [(a.outcome, a.ended_at) for a in view.attempts] == [(None, None)]
    assert (await place.room.tokens.authenticate(work.secret)).run_id == run_id
    assert await runner.log(work, ["one", "two"], offset=0) == (2, False)
    assert (await runner.complete(work, "done")).state == "done"
    events = await place.events(run_id)
    assert [event["kind"] for event in events] == [
        "run.queued", "run.started", "run.queued", "run.started", "run.done",
    ]  # fmt: skip
    assert events[3]["data"]["resumed"] is True
    assert await place.room.tokens.authenticate(work.secret) is None


async def test_a_first_heartbeat_that_comes_after_the_sweep_begins_the_run(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.take()
    await place.home.age(61)
    await place.room.silence.expire_runs()
    assert (await runner.heartbeat(work)).attempt == 1
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.state, view.run.attempts, len(view.attempts)) == ("running", 1, 1)


async def test_a_run_given_up_for_lost_goes_on_when_its_runner_is_heard_again(place):
    run_id = await place.queue(await place.agent())
    for n in range(3):
        runner = await place.runner("coder", name=f"r{n}")
        work = await runner.take()
        await runner.heartbeat(work)
        await place.home.age(61)
        await place.room.silence.expire_runs()
    assert await place.state(run_id) == "lost"
    assert (await runner.heartbeat(work)).attempt == 3
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.state, view.run.attempts, view.run.ended_at) == ("running", 3, None)
    assert (await runner.complete(work, "done")).state == "done"


async def test_a_runner_that_is_heard_after_another_has_claimed_its_run_has_lost_it(place):
    run_id = await place.queue(await place.agent())
    slow, quick = await place.runner("coder", name="slow"), await place.runner("coder", name="quick")
    late = await slow.take()
    await slow.heartbeat(late)
    await place.home.age(61)
    await place.room.silence.expire_runs()
    work = await quick.take()
    for _ in range(2):
        with pytest.raises(Conflict) as lost:
            await slow.heartbeat(late)
        assert lost.value.code == "claim_lost"
        await quick.heartbeat(work)
    assert await place.room.tokens.authenticate(late.secret) is None
    await quick.complete(work)
    with pytest.raises(Conflict):
        await slow.heartbeat(late)
    assert [a.outcome for a in (await place.room.runs.get(place.tenant, run_id)).attempts] == [
        "lease lost",
        "done",
    ]


async def test_of_a_late_heartbeat_and_another_claim_at_once_one_has_the_run(place):
    agent = await place.agent()
    for n in range(6):
        run_id = await place.queue(agent)
        slow, quick = await place.runner("coder", name=f"s{n}"), await place.runner("coder", name=f"q{n}")
        late = await slow.take()
        await slow.heartbeat(late)
        await place.home.age(61)
        await place.room.silence.expire_runs()
        heard, claimed = await asyncio.gather(slow.heartbeat(late), quick.claim(), return_exceptions=True)
        held = (await place.room.runs.get(place.tenant, run_id)).run
        if isinstance(heard, Conflict):
            assert claimed.work.run.claim_id == held.claim_id
            await quick.complete(claimed.work)
        else:
            assert (claimed.work, held.claim_id, held.state) == (None, late.run.claim_id, "running")
            await slow.complete(late)


@pytest.mark.parametrize("taken", ["the agent's slot", "the runner's slot"])
async def test_a_run_is_not_given_back_to_a_place_that_holds_another(place, taken):
    agent = await place.agent(slots=1 if taken == "the agent's slot" else 2)
    run_id = await place.queue(agent)
    runner = await place.runner("coder")
    late = await runner.take()
    await runner.heartbeat(late)
    await place.home.age(61)
    await place.room.silence.expire_runs()
    # another run, which has waited longer
    other = await place.queue(agent)
    await place.home.admin.execute(
        "update mainspring.runs set not_before = not_before - interval '1 hour' where id = $1", other
    )
    holder = runner if taken == "the runner's slot" else await place.runner("coder", name="other")
    assert (await holder.take()).run.id == other
    with pytest.raises(Conflict) as lost:
        await runner.heartbeat(late)
    assert lost.value.code == "claim_lost"
    assert await place.state(run_id) == "queued"


async def test_a_heartbeat_brings_back_nothing_that_was_ended_or_given_back(place):
    agent = await place.agent(slots=9)
    runner = await place.runner("coder")
    ended = {}
    for slot, how in enumerate(("retry", "handed back", "cancelled", "discarded")):
        run_id = await place.queue(agent)
        work = ended[how] = await runner.take(slots=(slot,))
        await runner.heartbeat(work)
        if how in ("retry", "handed back"):
            await runner.complete(work, "retry", handed_back=how != "retry")
            await place.room.runs.cancel(place.admin, run_id)  # so that the next one is given out
        elif how == "cancelled":
            await place.home.age(61)
            await place.room.silence.expire_runs()
            await place.room.runs.cancel(place.admin, run_id)
        else:
            await runner.complete(work, "failed")
            async with place.home.spine.open(place.tenant) as tx:
                await place.room.verbs.discard_runs(tx, [run_id], "obsolete", place.admin)
    for work in ended.values():
        with pytest.raises(Conflict) as lost:
            await runner.heartbeat(work)
        assert lost.value.code == "claim_lost"


async def test_a_replayed_run_that_its_lost_runner_is_heard_of_counts_that_attempt(place):
    run_id = await place.queue(await place.agent())
    for n in range(3):
        runner = await place.runner("coder", name=f"r{n}")
        work = await runner.take()
        await runner.heartbeat(work)
        await place.home.age(61)
        await place.room.silence.expire_runs()
    assert (await place.room.runs.retry(place.admin, run_id)).run.attempts == 0
    assert (await runner.heartbeat(work)).attempt == 1
    assert await place.state(run_id) == "running"


async def test_after_an_outage_longer_than_a_lease_no_run_is_taken_before_its_runner_could_be_heard(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    await runner.heartbeat(await runner.take())
    await place.home.age(3600)
    lease = RunPolicy(lease_seconds=0.2)
    just_started = Silence(place.home.spine, place.home.db, place.room.verbs, lease)
    await just_started.run_once()
    assert await place.state(run_id) == "running"
    while await place.state(run_id) == "running":
        await just_started.run_once()
    assert await place.state(run_id) == "queued"


def test_a_watch_begins_anew_after_a_gap_and_lasts_without_one():
    watch = Watch(100.0, 100.0)
    assert not watch.has_lasted(60)
    for moment in (110.0, 130.0, 159.9):
        watch = watch.at(moment, gap_seconds=30)
        assert not watch.has_lasted(60)
    assert watch.at(160.0, gap_seconds=30).has_lasted(60)
    assert not watch.at(190.0, gap_seconds=30).has_lasted(60)  # nobody looked for longer than the gap
    assert watch.at(99.0, gap_seconds=30) == Watch(99.0, 99.0)  # the clock was put back


async def never_begun(place, runner, claims: int) -> None:
    """A runner whose process ends between the claim and the first heartbeat, and starts anew."""
    for _ in range(claims):
        runner.incarnation = (await runner.take()).run.claim_id  # any fresh id
        await place.home.age(61)
        await place.room.silence.expire_runs()


async def test_a_claim_that_never_reached_its_runner_costs_nothing(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    await never_begun(place, runner, 4)
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.state, view.run.attempts, view.attempts) == ("queued", 0, ())


async def test_a_run_that_ends_its_runners_before_they_begin_is_lost_and_not_for_ever_queued(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    await never_begun(place, runner, 5)
    run = (await place.room.runs.get(place.tenant, run_id)).run
    assert (run.state, run.outcome, run.error) == (
        "lost", "its runners end before they begin", "no heartbeat of 5 claims in a row",
    )  # fmt: skip
    assert (await place.kinds(run_id)) == ["run.queued"] * 5 + ["run.lost"]
    assert (await runner.claim()).work is None
    # an operator who has mended it replays it, and it has as many claims as at first
    await place.room.runs.retry(place.admin, run_id)
    await never_begun(place, runner, 4)
    assert await place.state(run_id) == "queued"


async def test_a_heartbeat_between_them_ends_the_row_of_claims_that_never_began(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    await never_begun(place, runner, 4)
    await runner.heartbeat(await runner.take())
    await place.home.age(61)
    await place.room.silence.expire_runs()
    await never_begun(place, runner, 4)
    assert await place.state(run_id) == "queued"


async def test_the_first_heartbeat_of_a_run_given_up_as_never_begun_still_begins_it(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    await never_begun(place, runner, 4)
    work = await runner.take()
    await place.home.age(61)
    await place.room.silence.expire_runs()
    assert await place.state(run_id) == "lost"
    assert (await runner.heartbeat(work)).attempt == 1
    assert await place.state(run_id) == "running"


async def test_a_question_of_a_run_given_up_as_never_begun_costs_what_it_has_spent_and_no_more(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    await runner.begin()
    await place.home.age(61)
    await place.room.silence.expire_runs()
    await never_begun(place, runner, 4)
    work = await runner.take()
    await place.home.age(61)
    await place.room.silence.expire_runs()
    assert await place.state(run_id) == "lost"
    await runner.complete(work, "needs_input", text="Go on?")
    await place.room.asks.answer_run(place.admin, run_id, "yes")
    run = (await place.room.runs.get(place.tenant, run_id)).run
    assert (run.state, run.attempts, run.unbegun) == ("queued", 1, 0)


class NoCards:
    """Boards that cannot be read in some tenants, whatever is wrong there."""

    def __init__(self, tenants) -> None:
        self._tenants = tenants

    async def card_snapshot(self, tx, card_id):
        if tx.tenant in self._tenants:
            raise RuntimeError("its cards cannot be read")
        return await boards.card_snapshot(tx, card_id)

    async def card_snapshots(self, tx, ids):
        raise AssertionError("nothing is replayed here")


async def test_a_tenant_whose_runs_cannot_be_taken_back_holds_up_no_other_tenants(place):
    places = [place, *[await make_place(place.home) for _ in range(4)]]
    runs = []
    for one in places:
        runs.append(await one.queue(await one.agent()))
        runner = await one.runner("coder")
        await runner.heartbeat(await runner.take())
    await place.home.age(61)
    broken = places[2]
    silence = Silence(place.home.spine, place.home.db, RunVerbs(NoCards({broken.tenant})), POLICY)
    failures = telemetry.loop_failures.labels("silent runs", "RuntimeError")
    before = failures._value.get()
    assert await silence.expire_runs() == 4
    assert failures._value.get() == before + 1
    states = [await one.state(run_id) for one, run_id in zip(places, runs, strict=True)]
    assert states == ["queued", "queued", "running", "queued", "queued"]
    assert await place.room.silence.expire_runs() == 1  # mended: the next round takes it


@pytest.mark.parametrize("swept", ["silent", "overdue"])
async def test_many_tenants_whose_runs_cannot_be_taken_back_do_not_stand_before_the_others(
    place, monkeypatch, swept
):
    monkeypatch.setattr("mainspring.agents.silence._TENANTS", 2)
    places = [place, *[await make_place(place.home) for _ in range(4)]]
    runs = []
    for one in places:
        runs.append(await one.queue(await one.agent()))
        runner = await one.runner("coder")
        if swept == "silent":
            await runner.heartbeat(await runner.take())
    if swept == "overdue":
        await place.home.admin.execute(
            "update mainspring.runs set queued_until = clock_timestamp() where id = any($1)", runs
        )
    await place.home.age(61)
    broken = {one.tenant for one in places[:4]}
    silence = Silence(place.home.spine, place.home.db, RunVerbs(NoCards(broken)), POLICY)
    failures = telemetry.loop_failures.labels("silent runs", "RuntimeError")
    before = failures._value.get()
    assert await silence.expire_runs() == 1
    assert failures._value.get() == before + 4
    assert await place.room.silence.expire_runs() == 4  # mended: the next round takes them


async def test_a_run_whose_attempts_are_spent_in_silence_is_lost(place):
    run_id = await place.queue(await place.agent())
    for n in range(3):
        runner = await place.runner("coder", name=f"r{n}")
        await runner.heartbeat(await runner.take())
        await place.home.age(61)
        await place.room.silence.expire_runs()
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.state, view.run.outcome, view.run.error) == ("lost", "attempts spent", "lease lost")
    assert (await place.kinds(run_id))[-1] == "run.lost"
    assert [attempt.runner for attempt in view.attempts] == ["r0", "r1", "r2"]


async def test_a_silent_run_that_was_to_be_cancelled_is(place):
    agent = await place.agent(slots=2)
    started, claimed = await place.queue(agent), await place.queue(agent)
    runner = await place.runner("coder")
    await runner.heartbeat(await runner.take(slots=(0,)))
    await runner.take(slots=(1,))
    for run_id in (started, claimed):
        await place.room.runs.cancel(place.admin, run_id)
    await place.home.age(61)
    await place.room.silence.expire_runs()
    assert [await place.state(run_id) for run_id in (started, claimed)] == ["cancelled", "cancelled"]


async def test_a_heartbeat_at_the_last_moment_beats_the_sweep(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.take()
    await runner.heartbeat(work)
    await place.home.age(61)
    await asyncio.gather(runner.heartbeat(work), place.room.silence.expire_runs(), return_exceptions=True)
    assert await place.state(run_id) == "running"
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.attempts, [attempt.outcome for attempt in view.attempts]) == (1, [None])


@pytest.mark.parametrize("started", [True, False])
async def test_a_finished_result_is_taken_after_the_lease_as_long_as_nobody_else_has_claimed(place, started):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.take()
    if started:
        await runner.heartbeat(work)
    await place.home.age(70)
    await place.room.silence.expire_runs()
    completed = await runner.complete(work, "done", text="fixed")
    assert (completed.state, completed.recorded) == ("done", False)
    assert (await runner.complete(work, "done")).recorded
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.outcome, [attempt.outcome for attempt in view.attempts]) == ("fixed", ["done"])
    assert (await runner.claim()).work is None


async def test_a_result_after_the_lease_but_before_the_sweep_is_taken(place):
    await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.take()
    await runner.heartbeat(work)
    await place.home.age(70)
    assert (await runner.complete(work)).state == "done"
    assert await place.room.silence.expire_runs() == 0


async def test_a_result_of_a_superseded_claim_is_refused_and_changes_nothing(place):
    run_id = await place.queue(await place.agent())
    slow, quick = await place.runner("coder", name="slow"), await place.runner("coder", name="quick")
    late = await slow.take()
    await slow.heartbeat(late)
    await place.home.age(70)
    await place.room.silence.expire_runs()
    work = await quick.take()
    with pytest.raises(Conflict) as lost:
        await slow.complete(late, "done")
    assert lost.value.code == "claim_lost"
    with pytest.raises(Conflict):
        await slow.log(late, ["still here"])
    assert await place.state(run_id) == "claimed"
    assert (await quick.complete(work)).state == "done"


async def test_a_late_result_of_a_lost_run_ends_it(place):
    run_id = await place.queue(await place.agent())
    for n in range(3):
        runner = await place.runner("coder", name=f"r{n}")
        work = await runner.take()
        await runner.heartbeat(work)
        await place.home.age(61)
        await place.room.silence.expire_runs()
    assert await place.state(run_id) == "lost"
    assert (await runner.complete(work, "retry")).state == "lost"
    view = await place.room.runs.get(place.tenant, run_id)
    assert view.attempts[-1].outcome == "retry"


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_run_that_is_handed_back_after_its_lease_gets_its_attempt_back(place, attempts):
    run_id = await place.queue(await place.agent())
    for n in range(attempts):
        runner = await place.runner("coder", name=f"r{n}")
        work = await runner.take()
        await runner.heartbeat(work)
        await place.home.age(61)
        await place.room.silence.expire_runs()
    assert await place.state(run_id) == ("queued" if attempts < 3 else "lost")
    assert (await runner.complete(work, "retry", handed_back=True)).state == "queued"
    assert (await runner.complete(work, "retry", handed_back=True)).recorded
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.attempts, view.attempts[-1].outcome) == (attempts - 1, "handed back")
    assert (await runner.take()).run.id == run_id


async def test_many_completions_of_one_claim_at_once_are_one(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.take()
    answers = await asyncio.gather(*(runner.complete(work, "done") for _ in range(5)))
    assert sum(not answer.recorded for answer in answers) == 1
    assert await place.kinds(run_id) == ["run.queued", "run.started", "run.done"]


async def test_complete_and_cancel_at_once_agree(place):
    agent = await place.agent()
    runner = await place.runner("coder")
    for _ in range(5):
        run_id = await place.queue(agent)
        work = await runner.take()
        await asyncio.gather(
            runner.complete(work, "done"),
            place.room.runs.cancel(place.admin, run_id),
            return_exceptions=True,
        )
        assert await place.state(run_id) == "done"


async def test_a_dead_run_is_replayed_as_the_same_run_with_fresh_attempts(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    await runner.complete(await runner.take(), "failed", error="no field")
    assert await place.state(run_id) == "failed"
    async with place.home.spine.open(place.tenant) as tx:
        assert await place.room.verbs.replay_runs(tx, [run_id], place.admin) == [run_id]
    async with place.home.spine.open(place.tenant) as tx:
        assert await place.room.verbs.replay_runs(tx, [run_id], place.admin) == []
    events = await place.events(run_id)
    assert events[-1]["kind"] == "run.queued"
    assert events[-1]["data"]["replay"] is True
    assert events[-1]["data"]["run"]["attempts"] == 0
    work = await runner.take()
    assert work.run.id == run_id
    await runner.complete(work, "done")
    view = await place.room.runs.get(place.tenant, run_id)
    assert [(a.n, a.outcome) for a in view.attempts] == [(1, "failed"), (2, "done")]
    assert view.run.attempts == 1


async def test_retrying_is_for_dead_runs_alone(place):
    run_id = await place.queue(await place.agent())
    with pytest.raises(Conflict):
        await place.room.runs.retry(place.admin, run_id)
    runner = await place.runner("coder")
    await runner.complete(await runner.take(), "failed")
    assert (await place.room.runs.retry(place.admin, run_id)).run.state == "queued"


async def test_a_discarded_run_is_given_up_for_a_reason_and_for_good(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.take()
    await runner.complete(work, "failed", error="no field")
    async with place.home.spine.open(place.tenant) as tx:
        assert await place.room.verbs.discard_runs(tx, [run_id], "obsolete", place.admin) == [run_id]
    events = await place.events(run_id)
    assert events[-1]["kind"] == "run.discarded"
    assert events[-1]["data"]["reason"] == "obsolete"
    assert (await runner.complete(work, "done")).state == "discarded"
    assert await place.state(run_id) == "discarded"
    with pytest.raises(Conflict):
        await place.room.runs.retry(place.admin, run_id)


@pytest.mark.parametrize(
    ("point", "state"),
    [("runs.after_claim", "claimed"), ("runs.before_complete", "running"), ("runs.after_complete", "done")],
)
async def test_dying_at_a_fault_point_leaves_what_the_next_word_needs(place, point, state):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    if point != "runs.after_claim":
        work = await runner.take()
        await runner.heartbeat(work)
    faultpoints.arm(f"{point}:raise")
    try:
        with pytest.raises(FaultRaised):
            await (runner.claim() if point == "runs.after_claim" else runner.complete(work))
    finally:
        faultpoints.disarm()
    assert await place.state(run_id) == state
    if point == "runs.after_claim":
        work = await runner.take()
    answer = await runner.complete(work)
    assert (answer.state, answer.recorded) == ("done", point == "runs.after_complete")
    assert await place.kinds(run_id) == ["run.queued", "run.started", "run.done"]
