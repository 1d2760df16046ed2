"""Questions of runs: what is asked and answered, whoever dies, comes late, or comes at the same moment."""

from __future__ import annotations

import asyncio
import contextvars
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from mainspring import faultpoints
from mainspring.agents.asking import Ask, AskState, checked_answer, checked_question, why_not
from mainspring.agents.asks import AskVerbs
from mainspring.agents.model import RunState
from mainspring.agents.verbs import lock_run
from mainspring.boards import verbs as boards
from mainspring.faultpoints import FaultRaised
from mainspring.ids import new_id
from mainspring.rooms import Conflict, Invalid, NotFound
from mainspring.spine.events import Trust
from tests.agents.conftest import make_place

ASK = Ask(
    id=UUID(int=1),
    run_id=UUID(int=2),
    run_state=RunState.RUNNING,
    agent_handle="coder",
    card_key="OPS-1",
    question="Go on?",
    options=("Yes", "No"),
    released=False,
    state=AskState.OPEN,
    answer=None,
    answered_by=None,
    answered_by_id=None,
    reason=None,
    asked_at=datetime(2025, 1, 1, tzinfo=UTC),
    expires_at=None,
    ended_at=None,
)


async def answer(place, ask, text="yes", *, by=None):
    return await place.room.asks.answer(by or place.admin, ask.id, text)


async def silence(place):
    """Every lease runs out, and the sweep takes back what they held."""
    await place.home.age(61)
    return await place.room.silence.expire_runs()


async def state_of(place, ask) -> str:
    return str((await place.room.asks.get(place.tenant, ask.id)).state)


# What may be asked and answered ---------------------------------------------------------------------------------


def test_a_question_with_options_takes_one_of_them_and_keeps_its_spelling():
    assert checked_answer(ASK, "  yEs ") == "Yes"
    with pytest.raises(Invalid, match="Yes, No"):
        checked_answer(ASK, "perhaps")


def test_a_question_without_options_takes_any_text():
    free = replace(ASK, options=())
    assert checked_answer(free, " eu-west\n") == "eu-west"
    for text in ("", "  ", "a\0b", "x" * 16_385):
        with pytest.raises(Invalid):
            checked_answer(free, text)


def test_a_question_is_a_text_and_its_options_differ():
    assert checked_question(" Go on? ", [" Yes", "No "]) == ("Go on?", ("Yes", "No"))
    for question, options in [("", ()), ("a\0", ()), ("q", ("",)), ("q", ("Yes", "yes ")), ("q", ["x"] * 21)]:
        with pytest.raises(Invalid):
            checked_question(question, options)


@pytest.mark.parametrize(
    ("changed", "code", "says"),
    [
        ({"state": AskState.ANSWERED, "answer": "No", "answered_by": "ada"}, "ask_answered", "ada .* No"),
        ({"state": AskState.CLOSED, "reason": "the run is done"}, "ask_closed", "the run is done"),
        ({"state": AskState.EXPIRED}, "ask_closed", "time was over"),
    ],
)
def test_who_comes_too_late_is_told_why(changed, code, says):
    refused = why_not(replace(ASK, **changed))
    assert refused.code == code
    with pytest.raises(Conflict, match=says):
        raise refused


# A question that keeps the claim --------------------------------------------------------------------------------


async def test_a_question_keeps_the_claim_and_the_heartbeat_carries_the_answer(place):
    run_id = await place.queue(await place.agent(), via=(new_id(),), trust=Trust.MEMBER)
    runner = await place.runner("coder")
    work = await runner.begin()
    ask = await runner.ask(work, "Touch the schema?", "yes", "no")
    assert (ask.state, ask.released, ask.run_state, ask.card_key) == ("open", False, "running", "OPS-1")
    assert (await runner.heartbeat(work, ask)).answers == ()
    view = await place.room.runs.get(place.tenant, run_id)
    assert view.run.state is RunState.RUNNING
    assert view.waiting == f"waiting for an answer since {ask.asked_at:%Y-%m-%d %H:%M:%S}"
    assert [one.id for one in view.asks] == [ask.id]
    assert [one.id for one in await place.room.asks.list_asks(place.tenant)] == [ask.id]

    answered = await answer(place, ask, "YES")
    assert (answered.state, answered.answer, answered.answered_by) == ("answered", "yes", "admin")
    for _ in range(2):  # its answer may be lost
        [told] = (await runner.heartbeat(work, ask)).answers
        assert (told.id, told.state, told.answer) == (ask.id, "answered", "yes")
    assert (await runner.heartbeat(work)).answers == ()
    assert await place.room.asks.list_asks(place.tenant) == []
    assert (await runner.complete(work, "done")).state == "done"
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.waiting, view.run.attempts) == (None, 1)

    [opened], [told] = [await place.events_of(ask.id, kind) for kind in ("ask.opened", "ask.answered")]
    assert (opened["data"]["actor"]["handle"], opened["trust"]) == ("coder", "agent")
    assert opened["data"]["ask"] == {
        "id": str(ask.id), "run_id": str(run_id), "question": "Touch the schema?", "options": ["yes", "no"],
        "released": False, "state": "open", "answer": None, "expires_at": None,
    }  # fmt: skip
    assert opened["data"]["run"]["id"] == str(run_id)
    assert opened["data"]["card"]["key"] == "OPS-1"
    assert (told["data"]["actor"]["handle"], told["data"]["ask"]["answer"]) == ("admin", "yes")
    assert (told["via"], told["cause_seq"], told["depth"]) == (opened["via"], 1, 1)


async def test_asking_again_under_one_request_is_one_question_and_another_is_another(place):
    await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.begin()
    request = new_id()
    first, again = [await runner.ask(work, request_id=request) for _ in range(2)]
    other = await runner.ask(work)  # in the same words, by the same claim: it wants to know again
    assert first == again
    assert other.id != first.id
    assert len(await place.events_of(first.id, "ask.opened")) == 1
    await answer(place, first)
    assert (await runner.ask(work, request_id=request)).answer == "yes"
    assert await state_of(place, other) == "open"


async def test_the_first_answer_counts_and_the_same_one_again_is_no_other(place):
    await place.queue(await place.agent())
    runner = await place.runner("coder")
    ask = await runner.ask(await runner.begin(), "Go on?", "Yes", "No")
    assert (await answer(place, ask, "yes")).answer == "Yes"
    assert (await answer(place, ask, " YES ")).answer == "Yes"
    with pytest.raises(Conflict) as late:
        await answer(place, ask, "no")
    assert late.value.code == "ask_answered"
    assert len(await place.events_of(ask.id, "ask.answered")) == 1


async def test_what_is_no_option_is_refused_and_leaves_it_open(place):
    await place.queue(await place.agent())
    runner = await place.runner("coder")
    ask = await runner.ask(await runner.begin(), "Go on?", "Yes", "No")
    with pytest.raises(Invalid):
        await answer(place, ask, "perhaps")
    assert await state_of(place, ask) == "open"


async def test_a_question_waits_only_as_long_as_its_asker(place):
    await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.begin()
    brief = await runner.ask(work, "Quick?", timeout_seconds=30)
    long = await runner.ask(work, "Slow?", timeout_seconds=300)
    await place.home.age(31, only="asks")
    assert [one.id for one in await place.room.asks.list_asks(place.tenant)] == [long.id]
    with pytest.raises(Conflict) as late:
        await answer(place, brief)
    assert late.value.code == "ask_closed"
    [told] = (await runner.heartbeat(work, brief, long)).answers
    assert (told.id, told.state, told.answer) == (brief.id, "expired", None)
    await answer(place, long)
    assert await state_of(place, brief) == "expired"


async def test_a_run_answers_by_its_own_id_when_it_asks_one_thing(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.begin()
    by_run = place.room.asks.answer_run
    with pytest.raises(Conflict) as refused:
        await by_run(place.admin, run_id, "yes")
    assert refused.value.code == "run_not_asking"
    one = await runner.ask(work, "One?")
    other = await runner.ask(work, "Other?")
    with pytest.raises(Conflict, match=str(other.id)) as refused:
        await by_run(place.admin, run_id, "yes")
    assert refused.value.code == "run_asks_more"
    await answer(place, one)
    assert (await by_run(place.admin, run_id, "yes")).id == other.id
    with pytest.raises(NotFound):
        await by_run(place.admin, new_id(), "yes")


async def test_only_the_claim_that_holds_a_run_asks_for_it(place):
    await place.queue(await place.agent())
    slow, quick = await place.runner("coder", name="slow"), await place.runner("coder", name="quick")
    late = await slow.begin()
    await silence(place)
    work = await quick.begin()
    with pytest.raises(Conflict) as lost:
        await slow.ask(late)
    assert lost.value.code == "claim_lost"
    await quick.complete(work)
    with pytest.raises(Conflict) as lost:
        await quick.ask(work)
    assert lost.value.code == "claim_lost"
    assert await place.room.asks.list_asks(place.tenant, all_states=True) == []


# A question that gives the claim up -----------------------------------------------------------------------------


async def test_needs_input_frees_the_slot_and_the_answer_queues_the_run_with_it(place):
    agent = await place.agent()
    run_id = await place.queue(agent)
    other = await place.queue(agent)
    runner = await place.runner("coder")
    work = await runner.begin()
    assert (await runner.claim(slots=(1,))).work is None  # the agent has one slot
    done = await runner.complete(work, "needs_input", text="Which region?", options=("eu", "us"))
    assert (done.state, done.outcome) == ("needs_input", "needs_input")
    assert (await runner.complete(work, "needs_input", text="Which region?")).recorded
    [ask] = await place.room.asks.list_asks(place.tenant)
    assert (ask.question, ask.options, ask.released) == ("Which region?", ("eu", "us"), True)
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.state, view.run.outcome, view.run.attempts) == ("needs_input", "Which region?", 0)
    assert view.run.lease_until is None
    assert view.waiting == f"waiting for an answer since {ask.asked_at:%Y-%m-%d %H:%M:%S}"
    assert await place.room.tokens.authenticate(work.secret) is None
    assert (await place.kinds(run_id)) == ["run.queued", "run.started", "run.needs_input"]
    with pytest.raises(Conflict):
        await runner.heartbeat(work)

    taken = await runner.begin()
    assert taken.run.id == other
    await runner.complete(taken)
    assert (await runner.claim()).work is None
    await answer(place, ask, "EU")
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.state, view.run.outcome) == ("queued", None)
    again = await runner.take()
    shown = again.as_json(place.room.runners.policy)
    assert (shown["id"], shown["attempt"]) == (str(run_id), 1)
    [given] = shown["answers"]
    assert (given["question"], given["answer"], given["answered_by"]) == ("Which region?", "eu", "admin")
    assert (await runner.complete(again, "done")).state == "done"
    events = await place.events(run_id)
    assert [event["kind"] for event in events[2:]] == [
        "run.needs_input", "run.queued", "run.started", "run.done",
    ]  # fmt: skip
    assert events[3]["data"]["reason"] == "answered"
    assert events[3]["data"]["actor"]["handle"] == "admin"
    view = await place.room.runs.get(place.tenant, run_id)
    assert [(one.n, one.outcome) for one in view.attempts] == [(1, "needs_input"), (2, "done")]


async def test_asking_as_often_as_there_are_attempts_and_more_spends_none(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    for n in range(5):
        work = await runner.begin()
        assert len(work.answers) == n
        await runner.complete(work, "needs_input", text=f"Question {n}?")
        await place.room.asks.answer_run(place.admin, run_id, "so be it")
    work = await runner.begin()
    assert [one.question for one in work.answers] == [f"Question {n}?" for n in range(5)]
    assert (await runner.complete(work)).state == "done"
    assert (await place.room.runs.get(place.tenant, run_id)).run.attempts == 1


async def test_a_paused_agents_answered_run_waits_for_it_to_be_resumed(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    await runner.complete(await runner.begin(), "needs_input", text="Go on?")
    await place.room.agents.pause(place.admin, "coder")
    await place.room.asks.answer_run(place.admin, run_id, "yes")
    view = await place.room.runs.get(place.tenant, run_id)
    assert (view.run.state, view.waiting) == ("queued", "waiting: the agent is paused")
    assert (await runner.claim()).work is None
    await place.room.agents.resume(place.admin, "coder")
    assert [one.answer for one in (await runner.take()).answers] == ["yes"]


async def test_a_draining_runner_keeps_asking_and_an_answer_goes_to_another(place):
    run_id = await place.queue(await place.agent())
    leaving, other = await place.runner("coder", name="leaving"), await place.runner("coder", name="other")
    work = await leaving.begin()
    ask = await leaving.ask(work)
    await place.room.runners.drain(place.tenant, "leaving")
    assert (await leaving.heartbeat(work, ask)).drain
    await leaving.complete(work, "retry", handed_back=True)  # its grace is over before somebody answers
    assert await state_of(place, ask) == "open"
    await answer(place, ask)
    assert (await leaving.claim()).drain
    again = await other.begin()
    assert again.run.id == run_id
    assert [one.answer for one in again.answers] == ["yes"]


async def test_a_question_that_comes_after_the_lease_stands_until_another_claims(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.begin()
    await silence(place)
    assert (await runner.complete(work, "needs_input", text="Go on?")).state == "needs_input"
    assert (await runner.claim()).work is None
    await place.room.asks.answer_run(place.admin, run_id, "yes")
    assert [one.answer for one in (await runner.take()).answers] == ["yes"]


# Who dies, and who cancels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("answered", ["before the next claim", "after it", "after it asked again", "never"])
async def test_the_question_of_a_killed_runner_survives_it(place, answered):
    run_id = await place.queue(await place.agent())
    killed, next_one = await place.runner("coder", name="killed"), await place.runner("coder", name="next")
    ask = await killed.ask(await killed.begin(), "Touch the schema?", "yes", "no")
    await silence(place)
    assert (await place.state(run_id), await state_of(place, ask)) == ("queued", "open")
    if answered == "before the next claim":
        await answer(place, ask)
    work = await next_one.begin()
    assert [one.id for one in work.answers] == ([ask.id] if answered == "before the next claim" else [])
    if answered == "after it":
        await answer(place, ask)
    again = await next_one.ask(work, "Touch the schema?", "yes", "no")
    match answered:
        case "before the next claim":  # it knows: if it asks all the same, it wants to know again
            assert (again.id == ask.id, again.state) == (False, "open")
        case "after it":
            assert (again.id, again.state, again.answer) == (ask.id, "answered", "yes")
        case _:
            assert (again.id, again.state) == (ask.id, "open")
            assert len(await place.events_of(ask.id, "ask.opened")) == 1
    if answered == "after it asked again":
        await answer(place, ask)
        [told] = (await next_one.heartbeat(work, again)).answers
        assert told.answer == "yes"
    await next_one.complete(work)
    assert await state_of(place, ask) == ("closed" if answered == "never" else "answered")


async def test_a_question_in_other_words_or_with_other_options_is_another(place):
    await place.queue(await place.agent())
    killed, next_one = await place.runner("coder", name="killed"), await place.runner("coder", name="next")
    ask = await killed.ask(await killed.begin(), "Go on?", "yes", "no")
    await silence(place)
    work = await next_one.begin()
    others = [
        await next_one.ask(work, "Go on?"),
        await next_one.ask(work, "Go on?", "no", "yes"),
        await next_one.ask(work, "Go on!", "yes", "no"),
    ]
    assert len({ask.id, *(other.id for other in others)}) == 4


async def test_a_run_that_gives_up_its_claim_for_what_was_answered_behind_its_back_is_queued_at_once(place):
    run_id = await place.queue(await place.agent())
    killed, next_one = await place.runner("coder", name="killed"), await place.runner("coder", name="next")
    ask = await killed.ask(await killed.begin(), "Which region?")
    await silence(place)
    work = await next_one.begin()
    await answer(place, ask, "eu")
    assert (await next_one.complete(work, "needs_input", text="Which region?")).state == "queued"
    assert [one.answer for one in (await next_one.take()).answers] == ["eu"]
    assert (await place.events(run_id))[-1]["data"]["reason"] == "answered"


async def test_a_run_that_gives_up_its_claim_for_a_question_that_is_open_waits_for_that_one(place):
    run_id = await place.queue(await place.agent())
    killed, next_one = await place.runner("coder", name="killed"), await place.runner("coder", name="next")
    ask = await killed.ask(await killed.begin(), "Which region?", timeout_seconds=3600)
    await silence(place)
    work = await next_one.begin()
    assert (await next_one.complete(work, "needs_input", text="Which region?")).state == "needs_input"
    [waiting] = await place.room.asks.list_asks(place.tenant)
    assert (waiting.id, waiting.released, waiting.expires_at) == (ask.id, True, None)
    await answer(place, ask, "eu")
    assert await place.state(run_id) == "queued"


async def test_an_older_question_that_is_answered_does_not_queue_a_run_that_waits_for_another(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.begin()
    aside = await runner.ask(work, "By the way?")
    await runner.complete(work, "needs_input", text="Which region?")
    await answer(place, aside)
    assert await place.state(run_id) == "needs_input"
    await place.room.asks.answer_run(place.admin, run_id, "eu")
    assert [one.answer for one in (await runner.take()).answers] == ["yes", "eu"]


@pytest.mark.parametrize("how", ["done", "failed", "blocked", "cancelled"])
async def test_a_run_that_ends_closes_what_it_asked(place, how):
    await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.begin()
    ask = await runner.ask(work)
    await runner.complete(work, how)
    closed = await place.room.asks.get(place.tenant, ask.id)
    assert (closed.state, closed.reason) == ("closed", f"the run is {how}")
    with pytest.raises(Conflict) as late:
        await answer(place, ask)
    assert late.value.code == "ask_closed"


async def test_a_cancelled_run_closes_what_it_asked_whether_or_not_somebody_holds_it(place):
    agent = await place.agent(slots=2)
    held, waits = await place.queue(agent), await place.queue(agent)
    runner = await place.runner("coder")
    work, other = await runner.begin(slots=(0,)), await runner.begin(slots=(1,))
    ask = await runner.ask(work)
    await runner.complete(other, "needs_input", text="Go on?")
    for run_id in (held, waits):
        await place.room.runs.cancel(place.admin, run_id)
    assert await place.room.asks.list_asks(place.tenant) == []
    beat = await runner.heartbeat(work, ask)
    assert (beat.cancel, [told.state for told in beat.answers]) == (True, ["closed"])
    assert [await place.state(run_id) for run_id in (held, waits)] == ["running", "cancelled"]
    with pytest.raises(Conflict):
        await answer(place, ask)
    # what asks for input though it was told to stop is stopped
    assert (await runner.complete(work, "needs_input", text="Really?")).state == "cancelled"
    assert await place.room.asks.list_asks(place.tenant) == []


async def test_a_lost_runs_question_stays_open_and_its_replay_is_given_the_answer(place):
    run_id = await place.queue(await place.agent())
    for n in range(3):
        runner = await place.runner("coder", name=f"r{n}")
        ask = await runner.ask(await runner.begin())
        await silence(place)
    assert await place.state(run_id) == "lost"
    assert [one.id for one in await place.room.asks.list_asks(place.tenant)] == [ask.id]
    await answer(place, ask)
    assert await place.state(run_id) == "lost"
    await place.room.runs.retry(place.admin, run_id)
    assert [one.answer for one in (await runner.take()).answers] == ["yes"]


async def test_a_discarded_runs_questions_are_closed(place):
    run_id = await place.queue(await place.agent())
    for n in range(3):
        runner = await place.runner("coder", name=f"r{n}")
        ask = await runner.ask(await runner.begin())
        await silence(place)
    async with place.home.spine.open(place.tenant) as tx:
        await place.room.verbs.discard_runs(tx, [run_id], "obsolete", place.admin)
    assert await state_of(place, ask) == "closed"


async def test_another_tenants_question_is_not_there(place, home):
    other = await make_place(home)
    await place.queue(await place.agent())
    runner = await place.runner("coder")
    ask = await runner.ask(await runner.begin())
    with pytest.raises(NotFound):
        await place.room.asks.answer(other.admin, ask.id, "yes")
    with pytest.raises(NotFound):
        await place.room.asks.get(other.tenant, ask.id)
    assert await place.room.asks.list_asks(other.tenant) == []


@pytest.mark.parametrize("point", ["append.before_commit", "append.after_commit"])
@pytest.mark.parametrize("released", [True, False])
async def test_an_answer_cut_off_by_a_death_is_given_again(place, point, released):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.begin()
    if released:
        await runner.complete(work, "needs_input", text="Go on?")
        [ask] = await place.room.asks.list_asks(place.tenant)
    else:
        ask = await runner.ask(work)
    faultpoints.arm(f"{point}:raise")
    try:
        with pytest.raises(FaultRaised):
            await answer(place, ask)
    finally:
        faultpoints.disarm()
    assert await state_of(place, ask) == ("open" if point == "append.before_commit" else "answered")
    assert (await answer(place, ask)).answer == "yes"
    assert len(await place.events_of(ask.id, "ask.answered")) == 1
    assert await place.state(run_id) == ("queued" if released else "running")


@pytest.mark.parametrize("point", ["append.before_commit", "append.after_commit"])
async def test_a_question_cut_off_by_a_death_is_asked_again_and_is_one(place, point):
    await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.begin()
    request = new_id()
    faultpoints.arm(f"{point}:raise")
    try:
        with pytest.raises(FaultRaised):
            await runner.ask(work, request_id=request)
    finally:
        faultpoints.disarm()
    ask = await runner.ask(work, request_id=request)
    assert [one.id for one in await place.room.asks.list_asks(place.tenant)] == [ask.id]
    assert len(await place.events_of(ask.id, "ask.opened")) == 1


# At the same moment ---------------------------------------------------------------------------------------------


async def test_of_two_answers_at_once_one_counts(place):
    agent = await place.agent()
    runner = await place.runner("coder")
    for n in range(8):
        released = n % 2 == 0
        run_id = await place.queue(agent)
        work = await runner.begin()
        if released:
            await runner.complete(work, "needs_input", text="Go on?")
            [ask] = await place.room.asks.list_asks(place.tenant)
        else:
            ask = await runner.ask(work)
        said = await asyncio.gather(
            *(answer(place, ask, text) for text in ("yes", "no", "perhaps")), return_exceptions=True
        )
        counted = [one for one in said if isinstance(one, Ask)]
        assert [one.code for one in said if isinstance(one, Conflict)] == ["ask_answered"] * 2
        assert counted == [await place.room.asks.get(place.tenant, ask.id)]
        assert len(await place.events_of(ask.id, "ask.answered")) == 1
        if released:
            assert (await place.kinds(run_id)).count("run.queued") == 2
            work = await runner.begin()
        else:
            [told] = (await runner.heartbeat(work, ask)).answers
            assert told.answer == counted[0].answer
        await runner.complete(work)


async def test_of_an_answer_and_a_cancel_at_once_the_run_is_cancelled_and_the_answer_is_told_whether_it_counts(
    place,
):
    agent = await place.agent()
    runner = await place.runner("coder")
    outcomes = set()
    for n in range(10):
        run_id = await place.queue(agent)
        await runner.complete(await runner.begin(), "needs_input", text="Go on?")
        [ask] = await place.room.asks.list_asks(place.tenant)
        acts = [answer(place, ask), place.room.runs.cancel(place.admin, run_id)]
        said = await asyncio.gather(*(acts if n % 2 else acts[::-1]), return_exceptions=True)
        [told] = [one for one in said if isinstance(one, Ask | Conflict)]
        assert await place.state(run_id) == "cancelled"
        now = await state_of(place, ask)
        outcomes.add(now)
        assert now == ("answered" if isinstance(told, Ask) else "closed")
        assert (await runner.claim()).work is None
    assert outcomes <= {"answered", "closed"}


async def test_an_answer_waits_for_a_cancel_that_holds_the_run_and_is_told_that_it_came_too_late(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    await runner.complete(await runner.begin(), "needs_input", text="Go on?")
    [ask] = await place.room.asks.list_asks(place.tenant)
    async with place.home.spine.open(place.tenant) as tx:
        await place.room.verbs.cancel_run(tx, run_id, place.admin)
        late = asyncio.create_task(answer(place, ask), context=contextvars.Context())
        await place.somebody_waits_for_a_lock()
    with pytest.raises(Conflict) as refused:
        await late
    assert (refused.value.code, await place.state(run_id)) == ("ask_closed", "cancelled")


async def test_a_cancel_waits_for_an_answer_that_holds_the_run_and_cancels_what_it_has_queued(place):
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    await runner.complete(await runner.begin(), "needs_input", text="Go on?")
    [ask] = await place.room.asks.list_asks(place.tenant)
    asks = AskVerbs(place.room.verbs, boards)
    async with place.home.spine.open(place.tenant) as tx:
        run = await lock_run(tx, run_id)
        await asks.answer(tx, run, ask.id, "yes", place.admin)
        cancel = asyncio.create_task(
            place.room.runs.cancel(place.admin, run_id), context=contextvars.Context()
        )
        await place.somebody_waits_for_a_lock()
    assert (await cancel).run.state is RunState.CANCELLED
    assert await state_of(place, ask) == "answered"
    assert (await place.kinds(run_id))[-2:] == ["run.queued", "run.cancelled"]


async def test_a_heartbeat_waits_for_an_answer_that_holds_the_run_and_carries_it_whatever_the_clock_says(
    place,
):
    """The question's time runs out while its answer is being written: the person was told that it counts."""
    run_id = await place.queue(await place.agent())
    runner = await place.runner("coder")
    work = await runner.begin()
    ask = await runner.ask(work, timeout_seconds=3600)
    asks = AskVerbs(place.room.verbs, boards)
    async with place.home.spine.open(place.tenant) as tx:
        run = await lock_run(tx, run_id)
        await asks.answer(tx, run, ask.id, "yes", place.admin)
        beat = asyncio.create_task(runner.heartbeat(work, ask), context=contextvars.Context())
        await place.somebody_waits_for_a_lock()
        await tx.handle.execute(
            "update mainspring.asks set expires_at = clock_timestamp() where tenant_id = $1", tx.tenant
        )
    [told] = (await beat).answers
    assert (told.state, told.answer) == ("answered", "yes")


async def test_of_an_answer_and_a_lease_that_runs_out_at_once_neither_is_lost(place):
    agent = await place.agent()
    runner = await place.runner("coder")
    for n in range(8):
        run_id = await place.queue(agent)
        work = await runner.begin()
        ask = await runner.ask(work)
        await place.home.age(61)
        acts = [answer(place, ask), place.room.silence.expire_runs()]
        if n % 4 > 1:
            acts.append(runner.heartbeat(work, ask))  # it is late, and lives after all
        await asyncio.gather(*(acts if n % 2 else acts[::-1]), return_exceptions=True)
        assert await state_of(place, ask) == "answered"
        if await place.state(run_id) == "running":
            [told] = (await runner.heartbeat(work, ask)).answers
            assert told.answer == "yes"
        else:
            work = await runner.begin()
            assert [one.answer for one in work.answers] == ["yes"]
        await runner.complete(work)


async def test_of_an_answer_and_a_timeout_at_once_both_sides_are_told_the_same(place):
    agent = await place.agent()
    runner = await place.runner("coder")
    for n in range(8):
        await place.queue(agent)
        work = await runner.begin()
        ask = await runner.ask(work, timeout_seconds=60)
        await place.home.age(59.995, only="asks")
        acts = [answer(place, ask), runner.heartbeat(work, ask)]
        said = await asyncio.gather(*(acts if n % 2 else acts[::-1]), return_exceptions=True)
        counts = any(isinstance(one, Ask) for one in said)
        await place.home.age(1, only="asks")
        [told] = (await runner.heartbeat(work, ask)).answers
        assert told.state == ("answered" if counts else "expired")
        await runner.complete(work)


async def test_of_an_answer_and_a_claims_second_asking_at_once_it_is_told_once(place):
    agent = await place.agent()
    for n in range(6):
        await place.queue(agent)
        killed, next_one = (
            await place.runner("coder", name=f"k{n}"),
            await place.runner("coder", name=f"n{n}"),
        )
        ask = await killed.ask(await killed.begin())
        await silence(place)
        work = await next_one.begin()
        again, _ = await asyncio.gather(next_one.ask(work), answer(place, ask))
        assert again.id == ask.id
        if again.state is AskState.OPEN:
            [told] = (await next_one.heartbeat(work, again)).answers
            assert told.answer == "yes"
        else:
            assert again.answer == "yes"
        await next_one.complete(work)


async def test_of_an_answer_and_the_runs_end_at_once_the_answer_is_told_whether_it_counts(place):
    agent = await place.agent()
    runner = await place.runner("coder")
    for n in range(6):
        await place.queue(agent)
        work = await runner.begin()
        ask = await runner.ask(work)
        acts = [answer(place, ask), runner.complete(work)]
        said = await asyncio.gather(*(acts if n % 2 else acts[::-1]), return_exceptions=True)
        [told] = [one for one in said if isinstance(one, Ask | Conflict)]
        assert await state_of(place, ask) == ("answered" if isinstance(told, Ask) else "closed")
