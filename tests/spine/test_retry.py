"""How long to wait before trying again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.spine.retry import DEFAULT_BACKOFF, Backoff

MIDDLE = 0.5  # the randomness that spreads nothing
spread = st.floats(0, 1, exclude_max=True, allow_nan=False)


def test_delays_grow_by_the_factor_until_the_cap():
    delays = [DEFAULT_BACKOFF.delay_seconds(n, random=MIDDLE) for n in range(8)]
    assert delays == pytest.approx([5, 15, 45, 135, 405, 1215, 3600, 3600])


def test_the_default_waits_add_up_to_some_six_hours():
    waits = sum(DEFAULT_BACKOFF.delay_seconds(n, random=MIDDLE) for n in range(11))  # 12 attempts, 11 waits
    assert 5.5 * 3600 < waits < 6.5 * 3600


@given(before=st.integers(0, 10_000), random=spread)
def test_a_delay_stays_within_the_jitter_around_the_plain_one(before: int, random: float):
    plain = DEFAULT_BACKOFF.delay_seconds(before, random=MIDDLE)
    delay = DEFAULT_BACKOFF.delay_seconds(before, random=random)
    assert 0.8 * plain - 1e-6 <= delay <= 1.2 * plain + 1e-6


@given(random=spread)
def test_more_failures_never_wait_less(random: float):
    delays = [DEFAULT_BACKOFF.delay_seconds(n, random=random) for n in range(30)]
    assert delays == sorted(delays)


def test_a_row_that_failed_a_million_times_still_has_a_delay():
    assert DEFAULT_BACKOFF.delay_seconds(1_000_000, random=MIDDLE) == pytest.approx(3600)


def test_without_jitter_randomness_changes_nothing():
    backoff = Backoff(base_seconds=1, factor=2, cap_seconds=100, jitter=0)
    assert {backoff.delay_seconds(3, random=random) for random in (0.0, 0.25, 0.999)} == {8.0}


@pytest.mark.parametrize(("before", "random"), [(-1, 0.0), (0, 1.0), (0, -0.1)])
def test_what_cannot_be_is_asserted(before: int, random: float):
    with pytest.raises(AssertionError):
        DEFAULT_BACKOFF.delay_seconds(before, random=random)
