"""The one table of moves, and what each outcome makes of its row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from itertools import product
from math import inf
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.spine.effects import (
    CRASHES_ALONE,
    CRASHES_MAX,
    DEFER_LIMIT_SECONDS,
    FINAL,
    KEY_LENGTH_MAX,
    KIND_LENGTH_MAX,
    LIVE,
    TEXT_LENGTH_MAX,
    TRANSITIONS,
    Deferred,
    Done,
    Dropped,
    Effect,
    EffectKind,
    EffectState,
    Failed,
    Held,
    Move,
    NewEffect,
    Outcome,
    Retry,
    Settlement,
    Unknown,
    bury_crashed,
    checked,
    clean,
    outcome_of,
    resolve,
    step,
)
from mainspring.spine.errors import (
    BadData,
    Definitive,
    LeaseLost,
    LogBroken,
    Misuse,
    OutcomeUnknown,
    Transient,
)

EXTERNAL = EffectKind(name="mail", max_attempts=3)
ONCE = EffectKind(name="charge", idempotent=False)
TRANSACTIONAL = EffectKind(name="launch", transactional=True)
MIDDLE = 0.5  # the randomness that spreads nothing


def an_effect(**more: object) -> Effect:
    values = {
        "tenant_id": UUID(int=9), "id": UUID(int=1), "kind": "mail", "key": "42", "payload": {}, "event_seq": None,
        "rule_id": None, "rule_version": None, "target": "", "attempts": 0, "crashes": 0, "epoch": 0,
        "claim_id": UUID(int=5), "deferred_seconds": 0.0, "waited_seconds": 0.0, "reclaimed": False,
    }  # fmt: skip
    return Effect(**(values | more))


# The table of moves -------------------------------------------------------------------------------------------

EXPECTED = """
    pending claim   claimed
    pending cancel  dropped
    claimed reclaim claimed
    claimed finish  done
    claimed drop    dropped
    claimed wait    pending
    claimed bury    dead
    claimed cancel  claimed
    dead    replay  pending
    dead    discard discarded
"""
LEGAL = {
    (before, move): after
    for before, move, after in (line.split() for line in EXPECTED.split("\n") if line.strip())
}


@pytest.mark.parametrize(("before", "move"), list(product(EffectState, Move)))
def test_every_pair_of_state_and_move_is_in_the_table_or_refused(before: EffectState, move: Move):
    if (before, move) in LEGAL:
        assert step(before, move) == LEGAL[before, move]
        return
    table = dict(TRANSITIONS)
    with pytest.raises(Misuse, match=f"{before} cannot {move}"):
        step(before, move)
    assert table == TRANSITIONS


def test_final_states_have_no_way_out_and_every_other_has_one():
    leaving = {before for before, _ in TRANSITIONS}
    assert frozenset(EffectState) - leaving == FINAL
    assert set(LIVE) == {EffectState.PENDING, EffectState.CLAIMED}
    assert not FINAL & LIVE


def test_every_state_can_be_reached_from_pending():
    reached, before = {EffectState.PENDING}, set()
    while reached != before:
        before = set(reached)
        reached |= {after for (state, _), after in TRANSITIONS.items() if state in before}
    assert reached == set(EffectState)


@pytest.mark.parametrize("move", [Move.REPLAY, Move.DISCARD, Move.CLAIM])
def test_a_settlement_can_only_make_a_move_of_a_claimed_effect(move: Move):
    settlement = resolve(an_effect(), Done(), EXTERNAL, random=MIDDLE)
    with pytest.raises(Misuse):
        _ = replace(settlement, move=move).state


# What is owed -------------------------------------------------------------------------------------------------


def test_kind_and_key_have_bounds():
    NewEffect("k" * KIND_LENGTH_MAX, key="x" * KEY_LENGTH_MAX)
    for kind, key in [
        ("", "1"),
        ("k" * (KIND_LENGTH_MAX + 1), "1"),
        ("mail", ""),
        ("mail", "x" * (KEY_LENGTH_MAX + 1)),
    ]:
        with pytest.raises(Misuse):
            NewEffect(kind, key=key)


@pytest.mark.parametrize("seconds", [-0.1, float("nan"), float("inf"), 1e12])
def test_nothing_waits_for_a_moment_that_has_passed_or_never_comes(seconds: float):
    waits: list[Callable[[], object]] = [
        lambda: NewEffect("mail", key="1", delay_seconds=seconds),
        lambda: Retry("busy", after_seconds=seconds),
        lambda: Deferred(after_seconds=seconds),
    ]
    for wait in waits:
        with pytest.raises(Misuse, match="delay"):
            wait()


def test_a_kind_needs_an_attempt_and_a_lease():
    for wrong in ({"max_attempts": 0}, {"lease_seconds": 0.0}, {"lease_seconds": -1.0}):
        with pytest.raises(Misuse, match="kind mail"):
            EffectKind(name="mail", **wrong)


def test_values_do_not_change():
    with pytest.raises(FrozenInstanceError):
        an_effect().attempts = 1  # type: ignore[misc]


# The idempotency key ------------------------------------------------------------------------------------------


def test_the_key_is_the_same_for_every_attempt():
    first = an_effect()
    later = an_effect(
        attempts=3, crashes=1, claim_id=UUID(int=6), id=UUID(int=2), reclaimed=True, payload={"a": 1}
    )
    assert first.idempotency_key == later.idempotency_key


@pytest.mark.parametrize("other", [{"epoch": 1}, {"key": "43"}, {"kind": "fax"}, {"tenant_id": UUID(int=8)}])
def test_the_key_differs_with_tenant_kind_key_and_epoch(other: dict[str, object]):
    assert an_effect().idempotency_key != an_effect(**other).idempotency_key


@given(st.text(min_size=1, max_size=6), st.text(min_size=1, max_size=6), st.text(max_size=3))
def test_moving_a_character_from_kind_to_key_makes_another_key(kind: str, key: str, moved: str):
    one, other = an_effect(kind=kind + moved, key=key), an_effect(kind=kind, key=moved + key)
    assert (one.idempotency_key == other.idempotency_key) == ((one.kind, one.key) == (other.kind, other.key))


# Outcomes -----------------------------------------------------------------------------------------------------


def moved(outcome: Outcome, kind: EffectKind = EXTERNAL, **of: object) -> Settlement:
    effect = an_effect(**of)
    settlement = resolve(effect, outcome, kind, random=MIDDLE)
    assert (settlement.tenant_id, settlement.id, settlement.claim_id) == (
        effect.tenant_id,
        effect.id,
        effect.claim_id,
    )
    return settlement


def test_done_finishes_without_spending_an_attempt():
    settlement = moved(Done(), attempts=2)
    assert (settlement.state, settlement.outcome, settlement.attempts) == (EffectState.DONE, "done", 2)
    assert settlement.error is None


def test_done_keeps_the_note():
    assert moved(Done("run 12")).outcome == "run 12"


@pytest.mark.parametrize(("of", "plain"), [({}, True), ({"attempts": 1}, False), ({"crashes": 1}, False)])
def test_only_a_success_at_the_first_attempt_leaves_no_attempt_row(of: dict[str, object], plain: bool):
    assert moved(Done(), **of).plain is plain


@pytest.mark.parametrize("outcome", [Dropped("spent"), Retry("x"), Failed("x"), Unknown("x")])
def test_every_other_outcome_leaves_an_attempt_row(outcome: Outcome):
    assert not moved(outcome).plain


def test_what_was_not_tried_leaves_no_attempt_row():
    """A launch that waits an hour behind another looks again hundreds of times."""
    assert moved(Deferred(after_seconds=1)).plain


def test_what_could_not_be_tried_is_no_attempt():
    assert moved(Deferred(after_seconds=1), attempts=2, crashes=1).plain


def test_what_is_told_to_come_back_later_is_an_attempt_and_comes_back_later_every_time():
    """Or one that is told "in a second" for a week would be sent, and noted, six hundred thousand times."""
    told = Deferred("answered 429", after_seconds=1, tried=True)
    waits = [moved(told, deferrals=n) for n in range(4)]
    assert not any(one.plain for one in waits)
    assert {(one.attempts, one.deferred) for one in waits} == {(0, True)}
    assert [one.delay_seconds for one in waits] == [5, 15, 45, 135]
    assert moved(Deferred(after_seconds=600, tried=True)).delay_seconds == 600


def test_dropped_says_why():
    settlement = moved(Dropped("rule disabled"))
    assert (settlement.state, settlement.outcome) == (EffectState.DROPPED, "dropped(rule disabled)")


def test_failed_is_dead_at_once_and_spends_the_attempt():
    settlement = moved(Failed("no such address"))
    assert (settlement.state, settlement.outcome, settlement.error) == (
        EffectState.DEAD,
        "failed",
        "no such address",
    )
    assert settlement.attempts == 1


def test_retry_waits_longer_each_time_until_its_attempts_are_spent():
    first, second, third = (moved(Retry("busy"), attempts=n) for n in range(3))
    assert (first.state, first.attempts, first.delay_seconds) == (EffectState.PENDING, 1, pytest.approx(5))
    assert (second.state, second.attempts, second.delay_seconds) == (
        EffectState.PENDING,
        2,
        pytest.approx(15),
    )
    assert (third.state, third.attempts, third.outcome, third.error) == (
        EffectState.DEAD,
        3,
        "exhausted",
        "busy",
    )
    assert not first.deferred


def test_retry_after_a_time_the_executor_names_replaces_the_backoff():
    assert moved(Retry("throttled", after_seconds=0.0), attempts=1).delay_seconds == 0.0
    assert moved(Retry("throttled", after_seconds=90.0)).delay_seconds == 90.0


def test_a_kind_with_one_attempt_is_dead_at_its_first_retry():
    assert moved(Retry("x"), EffectKind(name="mail", max_attempts=1)).outcome == "exhausted"


@pytest.mark.parametrize("random", [0.0, 0.999])
def test_randomness_spreads_the_backoff(random: float):
    settlement = resolve(an_effect(), Retry("x"), EXTERNAL, random=random)
    assert settlement.delay_seconds == pytest.approx(5 * (0.8 + 0.4 * random))


def test_deferred_spends_nothing_and_says_so():
    settlement = moved(Deferred("mail server down", after_seconds=30), attempts=2)
    assert (settlement.state, settlement.attempts, settlement.delay_seconds) == (EffectState.PENDING, 2, 30)
    assert (settlement.outcome, settlement.error, settlement.deferred) == (
        "deferred",
        "mail server down",
        True,
    )


def test_held_waits_for_somebody_and_spends_nothing():
    settlement = moved(Held("rule paused"), attempts=2, deferred_seconds=DEFER_LIMIT_SECONDS + 1)
    assert (settlement.state, settlement.attempts, settlement.delay_seconds) == (EffectState.PENDING, 2, inf)
    assert (settlement.outcome, settlement.error, settlement.deferred, settlement.plain) == (
        "held",
        "rule paused",
        False,
        True,
    )


def test_deferred_without_a_break_for_too_long_is_dead_without_spending_an_attempt():
    held = moved(Deferred(after_seconds=30), deferred_seconds=DEFER_LIMIT_SECONDS)
    assert held.state == EffectState.PENDING
    over = moved(
        Deferred(after_seconds=30), deferred_seconds=DEFER_LIMIT_SECONDS + 1, attempts=2, target="smtp"
    )
    assert (over.state, over.outcome, over.attempts) == (EffectState.DEAD, "target_down", 2)
    assert over.error


def test_what_has_no_target_and_was_deferred_for_too_long_says_what_it_waited_for_and_blames_no_target():
    over = moved(Deferred("its run goes on", after_seconds=30), deferred_seconds=DEFER_LIMIT_SECONDS + 1)
    assert (over.state, over.outcome, over.attempts) == (EffectState.DEAD, "exhausted", 0)
    assert over.error == "deferred for too long: its run goes on"


def test_unknown_is_tried_again_when_twice_is_as_good_as_once():
    settlement = moved(Unknown("timed out"))
    assert (settlement.state, settlement.attempts, settlement.outcome) == (EffectState.PENDING, 1, "unknown")
    assert settlement.delay_seconds == pytest.approx(5)


def test_unknown_is_dead_when_twice_would_harm():
    settlement = moved(Unknown("timed out"), ONCE)
    assert (settlement.state, settlement.outcome, settlement.attempts) == (EffectState.DEAD, "unknown", 1)


def test_unknown_is_tried_again_when_only_a_transaction_is_in_doubt():
    # the settle is part of it: if it did commit, the claim is gone and this settle is refused
    kind = EffectKind(name="launch", transactional=True, idempotent=False)
    assert moved(Unknown("link broke at commit"), kind).state == EffectState.PENDING


def test_unknown_exhausts_its_attempts_like_a_retry():
    assert moved(Unknown("timed out"), attempts=2).outcome == "exhausted"


outcomes = st.one_of(
    st.builds(Done, st.text(max_size=3)),
    st.builds(Dropped, st.text(max_size=3)),
    st.builds(Retry, st.text(max_size=3), after_seconds=st.none() | st.floats(0, 1e6)),
    st.builds(Deferred, st.text(max_size=3), after_seconds=st.floats(0, 1e6)),
    st.builds(Held, st.text(max_size=3)),
    st.builds(Failed, st.text(max_size=3)),
    st.builds(Unknown, st.text(max_size=3)),
)


@given(
    outcomes,
    st.integers(0, 20),
    st.integers(1, 12),
    st.booleans(),
    st.booleans(),
    st.floats(0, 1, exclude_max=True),
)
def test_no_outcome_loses_a_row_or_gives_it_more_attempts_than_allowed(
    outcome: Outcome, attempts: int, allowed: int, idempotent: bool, transactional: bool, random: float
):
    kind = EffectKind(name="mail", max_attempts=allowed, idempotent=idempotent, transactional=transactional)
    settlement = resolve(an_effect(attempts=attempts), outcome, kind, random=random)
    assert attempts <= settlement.attempts <= attempts + 1
    assert settlement.delay_seconds >= 0
    match settlement.state:
        case EffectState.PENDING:
            assert settlement.attempts < allowed or settlement.deferred or settlement.outcome == "held"
        case EffectState.DONE | EffectState.DROPPED:
            assert settlement.error is None
        case EffectState.DEAD:
            assert settlement.outcome in {"failed", "exhausted", "unknown", "target_down"}
        case other:
            raise AssertionError(other)


# What an executor raised --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Transient("x"), Retry), (Definitive("x"), Failed), (BadData("x"), Failed), (Misuse("x"), Failed),
        (OutcomeUnknown("x"), Unknown), (TimeoutError("x"), Unknown), (LeaseLost("x"), Retry), (LogBroken("x"), Retry),
        (ValueError("x"), Retry), (OSError("x"), Retry),
    ],
)  # fmt: skip
def test_an_error_is_classified_by_what_to_do_about_it(error: Exception, expected: type[Outcome]):
    outcome = outcome_of(error)
    assert isinstance(outcome, expected)
    assert outcome.error == f"{type(error).__name__}: x"


@pytest.mark.parametrize("answer", [None, True, "done", Done, object()])
def test_an_answer_that_is_none_of_the_outcomes_is_misuse(answer: object):
    with pytest.raises(Misuse, match="Done"):
        checked(answer)


@given(st.text(st.characters(exclude_categories=[]), max_size=20))
def test_a_cleaned_text_can_be_stored_and_keeps_what_it_can(text: str):
    cleaned = clean(text)
    assert "\x00" not in cleaned
    assert cleaned.encode().decode() == cleaned
    assert len(cleaned) == len(text)
    assert clean(cleaned) == cleaned


def test_a_cleaned_text_is_not_endless():
    assert len(clean("x" * 10**6)) == TEXT_LENGTH_MAX


# Crashes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [EXTERNAL, TRANSACTIONAL])
def test_a_row_that_may_run_twice_is_buried_at_its_last_crash_only(kind: EffectKind):
    for crashes in range(CRASHES_MAX):
        assert bury_crashed(an_effect(crashes=crashes, reclaimed=crashes > 0), kind) is None
    settlement = bury_crashed(an_effect(crashes=CRASHES_MAX, attempts=1, reclaimed=True), kind)
    assert settlement is not None
    assert (settlement.state, settlement.outcome, settlement.attempts) == (
        EffectState.DEAD,
        "worker_crashed",
        1,
    )
    assert f"{CRASHES_MAX} workers" in (settlement.error or "")


def test_a_crash_is_unknown_for_what_must_not_happen_twice():
    settlement = bury_crashed(an_effect(crashes=1, reclaimed=True), ONCE)
    assert settlement is not None
    assert (settlement.state, settlement.outcome) == (EffectState.DEAD, "unknown")


def test_a_transaction_that_crashed_did_not_happen_so_it_runs_again():
    kind = EffectKind(name="launch", transactional=True, idempotent=False)
    assert bury_crashed(an_effect(crashes=1, reclaimed=True), kind) is None


def test_a_row_without_crashes_runs_even_when_it_must_not_happen_twice():
    assert bury_crashed(an_effect(), ONCE) is None


def test_rows_run_alone_before_they_are_buried():
    assert 1 < CRASHES_ALONE < CRASHES_MAX
