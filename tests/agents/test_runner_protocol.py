"""Claim, heartbeat, log, complete: as a runner lives them, and as a bad link makes them."""

from __future__ import annotations

import asyncio

import pytest

from mainspring import telemetry
from mainspring.ids import new_id
from mainspring.rooms import Conflict, Forbidden, NotFound
from mainspring.spine.events import Trust
from tests.agents.conftest import make_place


async def asleep(place, polls: int) -> None:
    """Until that many polls have looked and found nothing."""
    while place.room.polls.asleep < polls:  # noqa: ASYNC110 - the server side is what is waited for
        await asyncio.sleep(0)


async def test_a_run_from_queued_to_done_with_all_that_its_runner_needs(place):
    agent = await place.agent()
    run_id = await place.queue(agent, via=(new_id(),), trust=Trust.MEMBER)
    runner = await place.runner("coder")

    work = await runner.take()
    shown = work.as_json(place.room.runners.policy)
    assert shown["id"] == str(run_id)
    assert shown["agent"] == {"id": str(agent), "handle": "coder"}
    assert (shown["slot"], shown["attempt"], shown["max_attempts"]) == (0, 1, 3)
    assert shown["card"]["key"] == "OPS-1"
    assert shown["event"]["kind"] == "card.created"
    assert shown["trigger"]["summary"] == "a card was made"
    assert shown["token"].startswith("ms_run_")
    assert await place.state(run_id) == "claimed"

    beat = await runner.heartbeat(work)
    assert (beat.attempt, beat.cancel, beat.drain) == (1, False, False)
    assert await runner.heartbeat(work) == beat
    completed = await runner.complete(work, text="fixed")
    assert (completed.state, completed.recorded) == ("done", False)

    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.outcome, view.run.attempts) == ("fixed", 1)
    assert [(a.n, a.runner, a.outcome) for a in view.attempts] == [(1, "laptop", "done")]
    events = await place.events(run_id)
    assert [event["kind"] for event in events] == ["run.queued", "run.started", "run.done"]
    assert [event["data"]["actor"]["handle"] for event in events] == ["mainspring", "coder", "coder"]
    assert events[-1]["data"]["run"]["state"] == "done"
    assert events[-1]["data"]["card"]["key"] == "OPS-1"
    assert [event["depth"] for event in events] == [1, 1, 1]
    assert [event["trust"] for event in events] == ["member", "agent", "agent"]
    assert events[-1]["cause_seq"] == 1


async def test_the_lost_answer_to_a_claim_is_given_again_and_costs_nothing(place):
    run_id = await place.queue(await place.agent(slots=2))
    await place.queue((await place.room.agents.get(place.tenant, "coder")).agent.id)
    runner = await place.runner("coder")
    first = await runner.take(slots=(0, 1))
    again = await runner.take(slots=(0, 1))
    assert again.run.id == first.run.id == run_id
    assert again.run.claim_id == first.run.claim_id
    assert again.run.slot == 0
    assert (await place.room.tokens.authenticate(first.secret)) is not None
    assert (await place.room.tokens.authenticate(again.secret)) is not None
    other = await runner.take(slots=(1,))
    assert other.run.id != run_id
    assert await place.kinds(run_id) == ["run.queued"]


async def test_another_incarnation_does_not_get_what_the_one_before_held(place):
    await place.queue(await place.agent(slots=2))
    before = await place.runner("coder")
    await before.take()
    after = await place.runner("coder")
    assert (await after.claim()).work is None


async def test_an_agent_holds_no_more_runs_than_it_has_slots(place):
    agent = await place.agent(slots=2)
    for _ in range(3):
        await place.queue(agent)
    runner = await place.runner("coder")
    first = await runner.take(slots=(0,))
    await runner.take(slots=(1,))
    assert (await runner.claim(slots=(2,))).work is None
    await runner.complete(first)
    await runner.take(slots=(0,))


async def test_two_runners_and_one_slot_at_the_same_moment(place):
    agent = await place.agent(slots=1)
    for _ in range(4):
        await place.queue(agent)
    runners = [await place.runner("coder", name=f"r{n}") for n in range(6)]
    claims = await asyncio.gather(*(runner.claim() for runner in runners))
    assert sum(claim.work is not None for claim in claims) == 1


async def test_one_slot_asking_twice_at_once_holds_one_run(place):
    agent = await place.agent(slots=5)
    for _ in range(3):
        await place.queue(agent)
    runner = await place.runner("coder")
    works = await asyncio.gather(*(runner.take() for _ in range(3)))
    assert len({work.run.id for work in works}) == 1


async def test_the_oldest_run_comes_first_whosever_it_is(place):
    one, other = await place.agent("one", slots=5), await place.agent("other", slots=5)
    queued = [await place.queue(agent) for agent in (other, one, other, one)]
    runner = await place.runner("one", "other")
    assert [(await runner.take(slots=(n,))).run.id for n in range(4)] == queued


async def test_a_runner_without_room_for_an_agent_is_given_another_ones_run(place):
    one, other = await place.agent("one"), await place.agent("other")
    await place.queue(one)
    wanted = await place.queue(other)
    runner = await place.runner("one", "other")
    assert (await runner.take(agents=("other",))).run.id == wanted


async def test_a_run_goes_to_a_runner_that_has_all_of_its_labels(place):
    agent = await place.agent(slots=5)
    first = await place.queue(agent, runner_labels=("gpu", "linux"))
    later = await place.queue(agent)
    plain, half, whole = [await place.runner("coder", name=name) for name in ("plain", "half", "whole")]
    assert (await plain.take()).run.id == later, "what it may not take keeps it from nothing else"
    assert (await half.claim(labels=["gpu"])).work is None
    waiting = (await place.room.runs.get(place.tenant, first)).as_json()
    assert (waiting["waiting"], waiting["runner_labels"]) == (
        "waiting for a runner with gpu, linux",
        ["gpu", "linux"],
    )
    work = await whole.take(labels=["linux", "gpu", "fast"])
    assert work.run.id == first
    listed = {one.name: one.labels for one in await place.room.runners.list_runners(place.tenant)}
    assert listed == {"plain": (), "half": ("gpu",), "whole": ("fast", "gpu", "linux")}


async def test_a_replayed_run_still_needs_what_it_needed(place):
    run_id = await place.queue(await place.agent(), runner_labels=("gpu",))
    runner = await place.runner("coder")
    await runner.complete(await runner.begin(labels=["gpu"]), "failed", error="no luck")
    await place.room.runs.retry(place.admin, run_id)
    assert (await runner.claim()).work is None
    assert (await runner.take(labels=["gpu"])).run.id == run_id


async def test_a_token_claims_for_the_agents_that_it_names_alone(place):
    await place.agent("one")
    secret_one = await place.queue(await place.agent("other"))
    runner = await place.runner("one")
    assert (await runner.claim()).work is None
    for handle in ("other", "nobody"):
        with pytest.raises(Forbidden):
            await runner.claim(agents=(handle,))
    owner = await place.runner("other", name="elsewhere")
    work = await owner.take()
    assert work.run.id == secret_one
    for word in (runner.heartbeat, runner.complete):
        with pytest.raises(NotFound):
            await word(work)
    with pytest.raises(NotFound):
        await runner.log(work, ["mine now"])


async def test_a_paused_agents_runs_wait_and_say_so(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    await place.room.agents.pause(place.admin, "coder")
    assert (await runner.claim()).work is None
    assert (await place.room.runs.get(place.tenant, run_id)).waiting == "waiting: the agent is paused"
    await place.room.agents.resume(place.admin, "coder")
    await runner.take()


async def test_completing_again_answers_what_was_recorded(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.take()
    await runner.heartbeat(work)
    first = await runner.complete(work, "done", text="fixed")
    again = await runner.complete(work, "failed", error="no")
    assert (again.state, again.outcome, again.recorded) == (first.state, "done", True)
    assert await place.kinds(run_id) == ["run.queued", "run.started", "run.done"]
    with pytest.raises(Conflict) as lost:
        await runner.heartbeat(work)
    assert lost.value.code == "claim_lost"


async def test_a_result_without_a_heartbeat_is_an_attempt_all_the_same(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    await runner.complete(await runner.take(), "done")
    assert await place.kinds(run_id) == ["run.queued", "run.started", "run.done"]
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.attempts, len(view.attempts)) == (1, 1)


async def test_retry_goes_back_to_the_queue_until_the_attempts_are_spent(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    for attempt in (1, 2, 3):
        work = await runner.take()
        await runner.heartbeat(work)
        completed = await runner.complete(work, "retry", error="busy")
        assert (await runner.complete(work, "retry", error="busy")).recorded
        assert completed.state == ("queued" if attempt < 3 else "lost")
        assert (await runner.claim()).work is None
        await place.home.age(600)
    assert await place.kinds(run_id) == ["run.queued", "run.started"] * 3 + ["run.lost"]
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.state, view.run.error, view.run.outcome) == ("lost", "busy", "attempts spent")


async def test_retry_with_its_own_delay(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    await runner.complete(await runner.take(), "retry", after_seconds=0.0)
    assert (await runner.take()).run.id == run_id


async def test_deploys_of_a_runner_do_not_make_a_long_run_lost(place):
    run_id = await place.queue(await place.agent())
    for deploy in range(5):
        runner = await place.runner("coder", name=f"r{deploy}")
        work = await runner.take()
        assert (await runner.heartbeat(work)).attempt == 1
        back = {"error": "the runner shut down", "after_seconds": 0.0, "handed_back": True}
        first = await runner.complete(work, "retry", **back)
        assert (first.state, first.outcome, first.recorded) == ("queued", "retry", False)
        again = await runner.complete(work, "retry", **back)
        assert (again.state, again.outcome, again.recorded) == ("queued", "retry", True)
        with pytest.raises(Conflict):
            await runner.heartbeat(work)
        await place.home.age(600)
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.attempts, view.run.error) == (0, "the runner shut down")
    assert [(a.n, a.runner, a.outcome) for a in view.attempts] == [
        (n + 1, f"r{n}", "handed back") for n in range(5)
    ]
    events = await place.events(run_id)
    assert [event["kind"] for event in events] == ["run.queued"] + ["run.started", "run.queued"] * 5
    assert {event["data"].get("reason") for event in events[2::2]} == {"handed back"}


async def test_a_run_that_is_handed_back_in_a_circle_comes_slower_and_an_attempt_between_starts_anew(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")

    async def give_back(**more):
        work = await runner.take()
        await runner.heartbeat(work)
        await runner.complete(work, "retry", after_seconds=0.0, **more)

    for _ in range(3):
        await give_back(handed_back=True)
    await give_back(handed_back=True)
    assert (await runner.claim()).work is None
    await place.home.age(600)
    await give_back()
    await give_back(handed_back=True)
    await give_back(handed_back=True)
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.attempts, view.waiting) == (1, None)


async def test_a_retry_of_a_claim_that_never_sent_a_heartbeat_spends_no_attempt(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    for _ in range(4):
        work = await runner.take()
        completed = await runner.complete(work, "retry", error="not mine", after_seconds=0.0)
        assert (completed.state, completed.outcome) == ("queued", "retry")
        assert (await runner.complete(work, "retry")).recorded
        await place.home.age(600)
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.state, view.run.attempts, view.run.started_at) == ("queued", 0, None)
    assert [(a.outcome, a.error) for a in view.attempts] == [("handed back", "not mine")] * 4
    assert await place.kinds(run_id) == ["run.queued"] * 5


async def test_cancelling_reaches_a_held_run_by_its_heartbeat_and_the_runner_decides(place):
    agent = await place.agent(slots=2)
    obeys, too_late = await place.queue(agent), await place.queue(agent)
    runner = await place.runner("coder")
    one, other = await runner.take(slots=(0,)), await runner.take(slots=(1,))
    assert await runner.heartbeat(one)
    for run_id in (obeys, too_late):
        await place.room.runs.cancel(place.admin, run_id, reason="not needed")
    assert (await runner.heartbeat(one)).cancel
    assert (await runner.heartbeat(other)).cancel  # also when it is the first
    assert (await runner.complete(one, "cancelled", text="stopped")).state == "cancelled"
    assert (await runner.complete(other, "done")).state == "done"
    with pytest.raises(Conflict):
        await place.room.runs.cancel(place.admin, too_late)


async def test_cancelling_a_queued_run_ends_it_at_once_and_twice_is_once(place):
    run_id = await place.queue(await place.agent())
    for _ in range(2):
        view = await place.room.runs.cancel(place.admin, run_id, reason="not needed")
        assert (view.run.state, view.run.outcome) == ("cancelled", "not needed")
    events = await place.events(run_id)
    assert [event["kind"] for event in events] == ["run.queued", "run.cancelled"]
    assert events[-1]["data"]["actor"]["handle"] == "admin"
    assert (await (await place.runner("coder")).claim()).work is None


async def test_draining_tells_the_runner_and_gives_it_nothing_new_until_it_starts_again(place):
    agent = await place.agent(slots=3)
    first, second = await place.queue(agent), await place.queue(agent)
    runner = await place.runner("coder")
    work = await runner.take(slots=(0,))
    await runner.heartbeat(work)
    await place.room.runners.drain(place.tenant, "laptop")
    assert (await runner.heartbeat(work)).drain
    claimed = await runner.claim(slots=(1,), wait_seconds=30)
    assert (claimed.work, claimed.drain) == (None, True)
    held = await runner.claim(slots=(0,))
    assert held.work is not None
    assert held.work.run.id == first
    assert (await runner.complete(work)).state == "done"
    runner.incarnation = new_id()
    assert (await runner.take()).run.id == second


async def test_a_waiting_poll_is_told_to_drain(place):
    await place.agent()
    runner = await place.runner("coder")
    polling = asyncio.create_task(runner.claim(wait_seconds=30))
    await asleep(place, 1)
    await place.room.runners.drain(place.tenant, "laptop")
    await place.room.polls.run_once()
    assert (await polling).drain


async def test_a_poll_is_woken_when_a_run_is_queued(place):
    agent = await place.agent()
    runner = await place.runner("coder")
    polling = asyncio.create_task(runner.take(wait_seconds=30))
    await asleep(place, 1)
    run_id = await place.queue(agent)
    await place.room.polls.run_once()
    assert (await polling).run.id == run_id
    assert place.room.polls.asleep == 0


async def test_a_commit_asks_for_the_polls_of_its_own_tenant_alone(place):
    """What one run's event costs does not grow with the runners of others; what nobody called about, the tick finds."""
    other = await make_place(place.home)
    hidden = await other.queue(await other.agent())
    moved = "update mainspring.runs set not_before = $2::text::timestamptz where id = $1"
    await place.home.admin.execute(moved, hidden, "infinity")
    agent = await place.agent()
    mine, others = await place.runner("coder"), await other.runner("coder")
    waiting = asyncio.create_task(others.take(wait_seconds=30))
    polling = asyncio.create_task(mine.take(wait_seconds=30))
    await asleep(place, 2)
    await place.home.admin.execute(moved, hidden, "now")

    run_id = await place.queue(agent)
    await place.room.polls.answer_calls()
    assert (await polling).run.id == run_id
    assert place.room.polls.asleep == 1
    asked = telemetry.statements.labels("run calls")._value.get()
    await place.room.polls.answer_calls()
    assert telemetry.statements.labels("run calls")._value.get() == asked

    await place.room.polls.run_once()
    assert (await waiting).run.id == hidden


async def test_one_question_serves_all_polls_and_wakes_only_as_many_as_there_is_work(place):
    agent = await place.agent(slots=9)
    runners = [await place.runner("coder", name=f"r{n}") for n in range(5)]
    polls = [asyncio.create_task(runner.take(wait_seconds=30)) for runner in runners]
    await asleep(place, 5)
    await place.queue(agent)
    await place.room.polls.run_once()
    done, waiting = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    assert place.room.polls.asleep == 4
    for poll in waiting:
        poll.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert place.room.polls.asleep == 0


async def test_a_run_wakes_a_poll_that_may_take_it_and_none_that_may_not(place):
    agent = await place.agent(slots=200)
    plain = asyncio.create_task((await place.runner("coder", name="plain")).claim(wait_seconds=30))
    await asleep(place, 1)
    gpu = asyncio.create_task((await place.runner("coder", name="gpu")).take(wait_seconds=30, labels=["gpu"]))
    await asleep(place, 2)
    run_id = await place.queue(agent, runner_labels=("gpu",))
    await place.room.polls.run_once()
    assert (await gpu).run.id == run_id
    for _ in range(101):
        await place.queue(agent, runner_labels=("tpu",))
    behind = await place.queue(agent)
    await place.room.polls.run_once()
    assert (await plain).work.run.id == behind


async def test_a_token_revoked_while_its_poll_waits_claims_nothing(place):
    agent = await place.agent()
    runner = await place.runner("coder")
    polling = asyncio.create_task(runner.claim(wait_seconds=30))
    await asleep(place, 1)
    await place.room.tokens.revoke(place.tenant, runner.holder.token_id)
    await place.queue(agent)
    await place.room.polls.run_once()
    with pytest.raises(Forbidden):
        await polling


async def test_a_waiting_runner_stays_live_and_a_gone_one_does_not(place):
    await place.agent()
    runner = await place.runner("coder")
    polling = asyncio.create_task(runner.claim(wait_seconds=30))
    await asleep(place, 1)
    await place.home.age(61)
    assert not (await place.room.runners.get_runner(place.tenant, "laptop")).live
    await place.room.polls.run_once()
    assert (await place.room.runners.get_runner(place.tenant, "laptop")).live
    polling.cancel()
    await asyncio.gather(polling, return_exceptions=True)
    await place.home.age(61)
    await place.room.polls.run_once()
    assert not (await place.room.runners.get_runner(place.tenant, "laptop")).live


async def test_a_runner_that_says_goodbye_is_waited_for_by_nobody_until_it_comes_back(place):
    agent = await place.agent()
    runner = await place.runner("coder")
    await runner.claim()
    run_id = await place.queue(agent)
    service = place.room.runners
    await service.leave(place.tenant, "laptop", new_id())
    assert (await place.room.agents.get(place.tenant, str(agent))).served, (
        "another incarnation's word is not its own"
    )
    await service.leave(place.tenant, "laptop", runner.incarnation)
    assert not (await place.room.agents.get(place.tenant, str(agent))).served
    assert not (await service.get_runner(place.tenant, "laptop")).live
    assert (await place.room.runs.get(place.tenant, run_id)).waiting == "waiting for a runner"
    runner.incarnation = new_id()
    assert (await runner.take()).run.id == run_id
    assert (await service.get_runner(place.tenant, "laptop")).live


async def test_a_run_that_nobody_serves_waits_for_a_runner(place):
    run_id = await place.queue(await place.agent())
    assert (await place.room.runs.get(place.tenant, run_id)).waiting == "waiting for a runner"
    view = await place.room.agents.get(place.tenant, "coder")
    assert (view.waiting, view.queued) == ("waiting for a runner", 1)
    assert [run.id for run in view.runs] == [run_id]
    runner = await place.runner("coder")
    work = await runner.take()
    view = await place.room.agents.get(place.tenant, "coder")
    assert (view.waiting, view.held, view.served) == (None, 1, True)
    await runner.complete(work)
    assert (await place.room.agents.get(place.tenant, "coder")).held == 0


async def test_log_lines_arrive_in_order_and_a_batch_sent_again_is_not_written_again(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.take()
    assert await runner.log(work, ["one", "two"], offset=0) == (2, False)
    assert await runner.log(work, ["one", "two"], offset=0) == (2, False)
    assert await runner.log(work, ["two", "three"], offset=1) == (3, False)
    assert await runner.log(work, ["nul \0 here"]) == (4, False)
    _, lines = await place.room.runs.log(place.tenant, run_id)
    assert [line.text for line in lines] == ["one", "two", "three", "nul \ufffd here"]
    _, rest = await place.room.runs.log(place.tenant, run_id, after=lines[1].n, limit=1)
    assert [line.text for line in rest] == ["three"]


async def test_a_log_ends_with_one_mark_when_it_is_full(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.take()
    for _ in range(9):
        await runner.log(work, ["x" * 16_000] * 10)
    assert (await runner.log(work, ["more"]))[1]
    _, lines = await place.room.runs.log(place.tenant, run_id, limit=1000)
    assert lines[-1].text.startswith("[log truncated")
    assert sum(line.text.startswith("[log truncated") for line in lines) == 1
    assert sum(len(line.text) + 1 for line in lines[:-1]) <= 1_048_576
    assert len(lines) == 66


async def test_two_batches_at_once_do_not_share_a_number(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.take()
    await asyncio.gather(*(runner.log(work, [f"{n}-{line}" for line in range(20)]) for n in range(6)))
    _, lines = await place.room.runs.log(place.tenant, run_id, limit=1000)
    assert [line.n for line in lines] == list(range(1, 121))


async def test_a_runs_token_dies_with_its_claim(place):
    await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.take()
    holder = await place.room.tokens.authenticate(work.secret)
    assert holder is not None
    assert (holder.kind, holder.run_id, holder.claim_id) == ("run", work.run.id, work.run.claim_id)
    assert (holder.card_id, holder.card_key) == (place.card.id, "OPS-1")
    assert holder.actor.cause.seq == 1
    assert holder.actor.cause.trust is Trust.AGENT
    await runner.heartbeat(work)
    assert await place.room.tokens.authenticate(work.secret)
    await runner.complete(work)
    assert await place.room.tokens.authenticate(work.secret) is None


async def test_another_tenants_runs_are_not_there(place, home):
    from tests.agents.conftest import make_place

    elsewhere = await make_place(home)
    await place.queue(await place.agent())
    work = await (await place.runner("coder")).take()
    await elsewhere.agent()
    stranger = await elsewhere.runner("coder")
    assert (await stranger.claim()).work is None
    for word in (stranger.heartbeat, stranger.complete):
        with pytest.raises(NotFound):
            await word(work)
    with pytest.raises(NotFound):
        await elsewhere.room.runs.get(elsewhere.tenant, work.run.id)


async def test_a_run_that_is_handed_back_has_the_same_number_again(place):
    await place.queue(await place.agent())
    runner = await place.runner("coder")
    numbers = []
    for outcome in ("lease lost", "handed back", "handed back", "done"):
        work = await runner.take()
        numbers.append(work.as_json(place.room.runners.policy)["attempt"])
        await runner.heartbeat(work)
        if outcome == "lease lost":
            await place.home.age(61)
            await place.room.silence.expire_runs()
        else:
            await runner.complete(
                work, "done" if outcome == "done" else "retry", handed_back=outcome == "handed back"
            )
    assert numbers == [1, 2, 2, 2]
