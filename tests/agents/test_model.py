"""The run's table of moves, and every decision about a run, without a database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from mainspring.agents import model
from mainspring.agents.model import (
    DEAD,
    EVENT_KINDS,
    FINAL,
    HANDED_BACK,
    LIVE,
    RETURNS_AT_ONCE,
    TRANSITIONS,
    ClaimLost,
    Completion,
    Conclusion,
    Run,
    RunMove,
    RunPolicy,
    RunState,
    Unchanged,
    after_silence,
    conclude,
    step,
)
from mainspring.agents.views import waiting_for
from mainspring.spine.errors import Misuse
from mainspring.spine.events import Trust

POLICY = RunPolicy(attempts_max=3)
CLAIM, OTHER = UUID(int=1), UUID(int=2)
THEN = datetime(2025, 1, 1, tzinfo=UTC)
RUN = Run(
    id=UUID(int=10),
    agent_id=UUID(int=11),
    agent_handle="coder",
    card_id=UUID(int=12),
    card_key="OPS-1",
    effect_kind="launch",
    effect_key="7:rule",
    event_seq=7,
    rule_id=UUID(int=13),
    rule_version=1,
    card_state_version=2,
    state=RunState.RUNNING,
    attempts=1,
    unbegun=0,
    claim_id=CLAIM,
    runner="laptop",
    slot=0,
    lease_until=THEN,
    not_before=THEN,
    cancel_requested=False,
    prompt="do it",
    trigger={},
    via=(UUID(int=13),),
    depth=1,
    trust=Trust.MEMBER,
    runner_labels=(),
    outcome=None,
    error=None,
    log_bytes=0,
    created_at=THEN,
    started_at=THEN,
    ended_at=None,
)


def test_every_state_is_reached_and_has_one_nature():
    assert set(TRANSITIONS.values()) | {RunState.QUEUED} == set(RunState)
    assert set(RunState) == LIVE | DEAD | FINAL
    assert not LIVE & DEAD
    assert not (LIVE | DEAD) & FINAL


def test_final_states_have_no_way_out_and_dead_ones_only_what_the_desk_and_a_late_result_do():
    assert not {state for state, _ in TRANSITIONS} & FINAL
    ways = {(state, move) for state, move in TRANSITIONS if state in DEAD}
    late = {
        RunMove.FINISH, RunMove.BLOCK, RunMove.FAIL, RunMove.STOP, RunMove.ASK, RunMove.REQUEUE, RunMove.RESUME,
    }  # fmt: skip
    desk = {RunMove.REPLAY, RunMove.DISCARD}
    assert ways == {(RunState.FAILED, move) for move in desk} | {
        (RunState.LOST, move) for move in desk | late
    }


def test_every_state_but_claimed_has_an_event():
    assert set(EVENT_KINDS) == set(RunState) - {RunState.CLAIMED}


@pytest.mark.parametrize("state", list(RunState))
@pytest.mark.parametrize("move", list(RunMove))
def test_a_move_that_the_table_does_not_have_raises(state: RunState, move: RunMove):
    if (state, move) in TRANSITIONS:
        assert step(state, move) is TRANSITIONS[state, move]
    else:
        with pytest.raises(Misuse):
            step(state, move)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [("done", "done"), ("failed", "failed"), ("blocked", "blocked"), ("cancelled", "cancelled")],
)
@pytest.mark.parametrize("before", [RunState.RUNNING, RunState.QUEUED, RunState.LOST])
def test_the_last_claims_result_ends_the_run_even_when_it_was_taken_back_meanwhile(outcome, state, before):
    verdict = conclude(
        replace(RUN, state=before), CLAIM, Completion(outcome=outcome, text="so"), POLICY, random=0.5
    )
    assert isinstance(verdict, Conclusion)
    assert (verdict.state, verdict.outcome) == (state, "so")


@pytest.mark.parametrize("before", sorted(FINAL | {RunState.FAILED, RunState.NEEDS_INPUT}))
def test_a_run_that_somebody_has_ended_takes_no_result(before):
    verdict = conclude(replace(RUN, state=before), CLAIM, Completion(outcome="done"), POLICY, random=0.5)
    assert isinstance(verdict, ClaimLost)


def test_another_claims_result_is_refused():
    assert isinstance(conclude(RUN, OTHER, Completion(outcome="done"), POLICY, random=0.5), ClaimLost)


def test_a_claim_that_never_started_has_to_be_started_first():
    with pytest.raises(Misuse):
        conclude(replace(RUN, state=RunState.CLAIMED), CLAIM, Completion(outcome="done"), POLICY, random=0.5)


def test_retry_waits_for_the_backoff_until_the_attempts_are_spent():
    again = conclude(RUN, CLAIM, Completion(outcome="retry", error="busy"), POLICY, random=0.5)
    assert again == Conclusion(state=RunState.QUEUED, error="busy", delay_seconds=5.0, note={"retry": "busy"})
    later = conclude(
        RUN, CLAIM, Completion(outcome="retry", error="busy", after_seconds=90), POLICY, random=0.5
    )
    assert isinstance(later, Conclusion)
    assert later.delay_seconds == 90
    spent = conclude(replace(RUN, attempts=3), CLAIM, Completion(outcome="retry"), POLICY, random=0.5)
    assert isinstance(spent, Conclusion)
    assert (spent.state, spent.outcome) == (RunState.LOST, "attempts spent")


def test_retry_of_a_cancelled_run_ends_it():
    verdict = conclude(
        replace(RUN, cancel_requested=True), CLAIM, Completion(outcome="retry"), POLICY, random=0.5
    )
    assert isinstance(verdict, Conclusion)
    assert verdict.state is RunState.CANCELLED


@pytest.mark.parametrize("before", [RunState.QUEUED, RunState.LOST])
def test_a_late_retry_changes_nothing(before):
    verdict = conclude(replace(RUN, state=before), CLAIM, Completion(outcome="retry"), POLICY, random=0.5)
    assert verdict == Unchanged()


GIVEN_BACK = Completion(outcome="retry", error="the runner shut down", after_seconds=0, handed_back=True)


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_run_that_is_handed_back_spends_no_attempt(attempts):
    verdict = conclude(replace(RUN, attempts=attempts), CLAIM, GIVEN_BACK, POLICY, random=0.5)
    assert verdict == Conclusion(
        state=RunState.QUEUED,
        error="the runner shut down",
        attempts=attempts - 1,
        note={"reason": HANDED_BACK},
    )


@pytest.mark.parametrize("before", [RunState.QUEUED, RunState.LOST])
def test_a_run_that_is_handed_back_late_gets_its_attempt_back_if_it_had_begun(before):
    late = replace(RUN, state=before, attempts=3)
    verdict = conclude(late, CLAIM, GIVEN_BACK, POLICY, random=0.5)
    assert isinstance(verdict, Conclusion)
    assert (verdict.state, verdict.attempts) == (RunState.QUEUED, 2)
    assert conclude(late, CLAIM, GIVEN_BACK, POLICY, random=0.5, begun=False) == Unchanged()


def test_a_cancelled_run_that_is_handed_back_ends():
    verdict = conclude(replace(RUN, cancel_requested=True), CLAIM, GIVEN_BACK, POLICY, random=0.5)
    assert isinstance(verdict, Conclusion)
    assert verdict.state is RunState.CANCELLED


def test_a_run_that_is_handed_back_again_and_again_waits_longer_each_time():
    waits = []
    for returns in range(RETURNS_AT_ONCE + 3):
        verdict = conclude(RUN, CLAIM, GIVEN_BACK, POLICY, random=0.5, returns=returns)
        assert isinstance(verdict, Conclusion)
        waits.append(verdict.delay_seconds)
    assert waits == [0, 0, 0, 5, 15, 45]


@pytest.mark.parametrize(
    ("completion", "wait"),
    [
        (Completion(outcome="retry", error="busy"), 5),
        (Completion(outcome="retry", error="busy", after_seconds=90), 90),
        (GIVEN_BACK, 0),
    ],
)
def test_a_retry_of_a_claim_that_never_began_spends_no_attempt(completion, wait):
    claimed = replace(RUN, state=RunState.CLAIMED, attempts=2)
    verdict = conclude(claimed, CLAIM, completion, POLICY, random=0.5, begun=False)
    assert isinstance(verdict, Conclusion)
    assert (verdict.state, verdict.attempts, verdict.delay_seconds) == (RunState.QUEUED, 2, wait)


@pytest.mark.parametrize(
    ("state", "attempts", "cancel", "after"),
    [
        (RunState.CLAIMED, 0, False, RunState.QUEUED),
        (RunState.CLAIMED, 3, False, RunState.QUEUED),  # it never began: free of charge
        (RunState.CLAIMED, 0, True, RunState.CANCELLED),
        (RunState.RUNNING, 1, False, RunState.QUEUED),
        (RunState.RUNNING, 3, False, RunState.LOST),
        (RunState.RUNNING, 1, True, RunState.CANCELLED),
    ],
)
def test_silence(state, attempts, cancel, after):
    run = replace(RUN, state=state, attempts=attempts, cancel_requested=cancel)
    assert after_silence(run, POLICY).state is after


@pytest.mark.parametrize(
    ("state", "unbegun", "cancel", "after"),
    [
        (RunState.CLAIMED, 3, False, RunState.QUEUED),
        (RunState.CLAIMED, 4, False, RunState.LOST),
        (RunState.CLAIMED, 4, True, RunState.CANCELLED),
        (RunState.RUNNING, 4, False, RunState.QUEUED),  # it has begun: that is an attempt
    ],
)
def test_claims_that_never_begin_are_free_but_not_for_ever(state, unbegun, cancel, after):
    run = replace(RUN, state=state, unbegun=unbegun, cancel_requested=cancel)
    assert after_silence(run, POLICY).state is after


def test_an_agent_is_trusted_no_further_than_an_agent_or_what_made_it_run():
    assert RUN.agents_cause.trust is Trust.AGENT
    assert replace(RUN, trust=Trust.STRANGER).agents_cause.trust is Trust.STRANGER
    assert RUN.agents_cause.via == RUN.via


def test_hostile_text_is_kept_readable_and_short():
    assert model.clean(None) is None
    assert model.clean("a\0b") == "a\ufffdb"
    cleaned = model.clean("x\ud800y")
    assert cleaned is not None
    assert cleaned.encode()
    assert model.clean("\U0001f600") == "\U0001f600"
    long = model.clean("x" * 100, length_max=20)
    assert long is not None
    assert len(long) == 20
    assert long.endswith("(cut)")


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"paused": True, "served": True, "slots": 1, "held": 0}, "paused"),
        ({"paused": False, "served": True, "slots": 1, "held": 0, "early": True}, "next attempt"),
        ({"paused": False, "served": True, "slots": 1, "held": 1}, "slot"),
        ({"paused": False, "served": False, "slots": 1, "held": 0}, "waiting for a runner"),
    ],
)
def test_a_queued_run_says_what_it_waits_for(facts, says):
    waiting = waiting_for(**facts)
    assert waiting is not None
    assert says in waiting


def test_a_served_run_waits_for_nothing():
    assert waiting_for(paused=False, served=True, slots=1, held=0) is None
