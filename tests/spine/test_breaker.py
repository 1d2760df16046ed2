"""What outcomes make of a breaker, and what a failure then costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.spine.breaker import (
    FAILURES_MAX,
    OPEN,
    Breaker,
    Evidence,
    Report,
    evidence_of,
    is_worth_telling,
    rule,
)
from mainspring.spine.effects import (
    DEFER_LIMIT_SECONDS,
    TARGET_LENGTH_MAX,
    Deferred,
    Done,
    Dropped,
    EffectKind,
    EffectState,
    Failed,
    Held,
    NewEffect,
    Outcome,
    Retry,
    Unknown,
    put_off,
)
from mainspring.spine.errors import Misuse
from tests.spine.test_effects import an_effect

MIDDLE = 0.5
WORKED, FAILED, PUT_OFF, NONE = (Report(evidence) for evidence in Evidence)
OPENED = Breaker(failures=FAILURES_MAX, trips=1)
KIND = EffectKind(name="mail", max_attempts=3)


def probe(evidence: Evidence) -> Report:
    return Report(evidence, probe=True)


@pytest.mark.parametrize(
    ("outcome", "evidence"),
    [
        (Done(), Evidence.WORKED),
        (Retry("refused"), Evidence.FAILED),
        (Unknown("time ran out"), Evidence.FAILED),
        (Deferred("too many", after_seconds=9), Evidence.PUT_OFF),
        (Failed("no such address"), Evidence.NONE),
        (Dropped("gone"), Evidence.NONE),
        (Held("paused"), Evidence.NONE),
    ],
)
def test_each_outcome_says_something_of_the_target_or_nothing(outcome: Outcome, evidence: Evidence):
    assert evidence_of(outcome) == evidence


def test_so_many_failures_in_a_row_open_it_whichever_effects_they_were():
    ruling = rule(Breaker(), [FAILED] * (FAILURES_MAX - 1), random=MIDDLE)
    assert (ruling.breaker.is_closed, ruling.open_seconds) == (True, None)
    ruling = rule(ruling.breaker, [FAILED], random=MIDDLE)
    assert (ruling.breaker, ruling.open_seconds) == (OPENED, OPEN.base_seconds)


def test_whatever_works_in_between_begins_the_count_again():
    ruling = rule(
        Breaker(), [FAILED] * (FAILURES_MAX - 1) + [WORKED] + [FAILED] * (FAILURES_MAX - 1), random=MIDDLE
    )
    assert ruling.breaker == Breaker(failures=FAILURES_MAX - 1)


def test_two_hundred_that_fail_at_once_pay_for_the_few_that_opened_it():
    ruling = rule(Breaker(), [FAILED] * 200, random=MIDDLE)
    assert ruling.free == (False,) * FAILURES_MAX + (True,) * (200 - FAILURES_MAX)
    assert (ruling.breaker.trips, ruling.open_seconds) == (1, OPEN.base_seconds)


def test_a_failed_probe_costs_nothing_and_opens_it_for_longer():
    ruling = rule(OPENED, [probe(Evidence.FAILED)], random=MIDDLE)
    assert (ruling.free, ruling.breaker.trips) == ((True,), 2)
    assert ruling.open_seconds == OPEN.base_seconds * OPEN.factor


def test_a_probe_that_was_put_off_has_not_shown_that_it_works():
    assert rule(OPENED, [probe(Evidence.PUT_OFF)], random=MIDDLE).breaker.trips == 2


def test_a_probe_that_says_nothing_lets_the_next_one_try_at_once():
    ruling = rule(OPENED, [probe(Evidence.NONE)], random=MIDDLE)
    assert (ruling.breaker, ruling.open_seconds) == (OPENED, 0.0)


@pytest.mark.parametrize("report", [FAILED, PUT_OFF, NONE])
def test_what_began_before_it_opened_changes_nothing(report: Report):
    ruling = rule(OPENED, [report], random=MIDDLE)
    assert (ruling.breaker, ruling.open_seconds) == (OPENED, None)


@pytest.mark.parametrize("report", [WORKED, probe(Evidence.WORKED)])
def test_whatever_works_closes_it_probe_or_not(report: Report):
    ruling = rule(OPENED, [report], random=MIDDLE)
    assert (ruling.breaker, ruling.open_seconds) == (Breaker(), 0.0)


reports = st.builds(Report, st.sampled_from(Evidence), st.booleans())


@given(st.lists(reports, max_size=40), st.floats(0, 0.99))
def test_a_failure_is_free_exactly_while_it_is_open(given_reports: list[Report], random: float):
    breaker, paid = Breaker(), 0
    for report in given_reports:
        ruling = rule(breaker, [report], random=random)
        [free] = ruling.free
        assert free == (report.evidence is Evidence.FAILED and not breaker.is_closed)
        paid = (
            0
            if report.evidence is Evidence.WORKED
            else paid + (report.evidence is Evidence.FAILED and not free)
        )
        assert (
            paid <= FAILURES_MAX
        )  # since it last worked, its effects have paid no more than this between them
        assert ruling.breaker.is_closed or ruling.breaker.failures == FAILURES_MAX
        if breaker.is_closed and not ruling.breaker.is_closed:
            assert ruling.open_seconds
        breaker = ruling.breaker
    assert rule(Breaker(), given_reports, random=random).breaker == breaker


@given(st.lists(reports, max_size=5), st.booleans())
def test_what_is_not_worth_telling_changes_nothing(some: list[Report], doubted: bool):
    if not is_worth_telling(some, doubted=doubted):
        assert rule(Breaker(), some, random=MIDDLE).breaker == Breaker()


# what is put off ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [Retry("refused"), Unknown("time ran out")])
def test_a_failure_that_is_the_targets_waits_longer_every_time_and_spends_nothing(outcome: Outcome):
    delays = []
    for deferrals in range(3):
        settlement = put_off(an_effect(attempts=2, deferrals=deferrals), outcome, KIND, random=MIDDLE)
        assert settlement is not None
        assert (settlement.state, settlement.attempts, settlement.deferred) == (EffectState.PENDING, 2, True)
        assert settlement.error
        delays.append(settlement.delay_seconds)
    assert delays == [5, 15, 45]


def test_it_waits_at_least_as_long_as_the_target_asked_for():
    settlement = put_off(an_effect(), Retry("busy", after_seconds=600), KIND, random=MIDDLE)
    assert settlement is not None
    assert settlement.delay_seconds == 600


def test_it_was_tried_and_its_attempts_say_so():
    settlement = put_off(an_effect(), Retry("refused"), KIND, random=MIDDLE)
    assert settlement is not None
    assert not settlement.plain


def test_it_does_not_wait_for_ever():
    waited = an_effect(deferred_seconds=DEFER_LIMIT_SECONDS + 1, target="smtp")
    over = put_off(waited, Retry("refused"), KIND, random=MIDDLE)
    assert over is not None
    assert (over.state, over.outcome, over.error) == (EffectState.DEAD, "target_down", "refused")


@pytest.mark.parametrize("outcome", [Done(), Failed("x"), Dropped("x"), Held("x"), Deferred(after_seconds=1)])
def test_only_failures_are_put_off(outcome: Outcome):
    assert put_off(an_effect(), outcome, KIND, random=MIDDLE) is None


def test_what_must_not_happen_twice_is_not_tried_again_whoever_is_to_blame():
    once = EffectKind(name="charge", idempotent=False)
    assert put_off(an_effect(), Unknown("cut off"), once, random=MIDDLE) is None


def test_a_targets_name_has_an_end():
    for declare in (
        lambda name: NewEffect("mail", key="1", target=name),
        lambda name: EffectKind(name="mail", target=name),
    ):
        declare("x" * TARGET_LENGTH_MAX)
        with pytest.raises(Misuse, match="target"):
            declare("x" * (TARGET_LENGTH_MAX + 1))
