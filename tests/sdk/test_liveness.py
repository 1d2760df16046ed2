"""The thread that keeps claims, one pass at a time on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainspring.sdk.liveness import (
    ASKS_MAX,
    Broken,
    CancelAsked,
    DrainAsked,
    Liveness,
    Lost,
    News,
    Overdue,
    TurnedAway,
)
from mainspring.sdk.profile import Profile
from mainspring.sdk.protocol import Claimed, Trigger
from tests.sdk.wire_server import CLAIM_LOST, CUT, Says, WireServer, problem

CLAIM = Claimed(
    run_id="r",
    claim_id="c",
    slot=0,
    agent="coder",
    attempt=1,
    max_attempts=3,
    prompt="",
    trigger=Trigger(None, None, "", None, {}),
    event=None,
    card=None,
    token="t",
    lease_seconds=60,
    heartbeat_seconds=20,
)


class Kept:
    """A liveness whose clock the test turns."""

    def __init__(self, wire: WireServer) -> None:
        self.now = 0.0
        self.news: list[tuple[str | None, News]] = []
        self.profile = Profile(wire.url, "t", "test")
        self.liveness = Liveness(lambda: self.profile, self._told, clock=lambda: self.now)

    def _told(self, claim_id: str | None, news: News) -> None:
        self.news.append((claim_id, news))

    def at(self, seconds: float) -> None:
        """Make one pass at this time."""
        self.now = seconds
        self.liveness.run_once()


@pytest.fixture
def kept(wire: WireServer) -> Iterator[Kept]:
    kept = Kept(wire)
    yield kept
    kept.liveness.stop()


def test_a_claim_is_renewed_every_third_of_its_lease(kept: Kept, wire: WireServer) -> None:
    kept.liveness.hold(CLAIM)
    for seconds in (0, 19, 20, 21, 39, 40):
        kept.at(seconds)
    assert [asked.body for asked in wire.of("heartbeat")] == [{"claim_id": "c"}] * 2
    assert kept.news == []


def test_a_replaced_token_is_the_next_beats(kept: Kept, wire: WireServer) -> None:
    kept.liveness.hold(CLAIM)
    kept.at(20)
    kept.profile = Profile(wire.url, "fresh", "test")
    kept.at(40)
    assert [asked.headers["authorization"] for asked in wire.of("heartbeat")] == ["Bearer t", "Bearer fresh"]


def test_a_released_claim_is_not(kept: Kept, wire: WireServer) -> None:
    kept.liveness.hold(CLAIM)
    kept.liveness.release("c")
    kept.at(100)
    assert wire.asked == []


def test_cancel_and_drain_are_told(kept: Kept, wire: WireServer) -> None:
    kept.liveness.hold(CLAIM)
    wire.script("heartbeat", Says(body={"cancel": True, "drain": True}))
    kept.at(20)
    assert kept.news == [("c", CancelAsked()), (None, DrainAsked())]


@pytest.mark.parametrize(
    ("answer", "news"),
    [
        (CLAIM_LOST, Lost),
        (problem(404, "not_found"), Lost),
        (problem(401, "unauthorized"), TurnedAway),
        (problem(422, "invalid"), TurnedAway),
    ],
)
def test_a_claim_that_is_lost_or_turned_away_is_told_once_and_kept_no_longer(
    kept: Kept, wire: WireServer, answer: Says, news: type[News]
) -> None:
    kept.liveness.hold(CLAIM)
    wire.always("heartbeat", answer)
    kept.at(20)
    kept.at(40)
    assert [claim_id for claim_id, _ in kept.news] == ["c"]
    assert isinstance(kept.news[0][1], news)
    assert len(wire.of("heartbeat")) == 1


def test_a_server_out_of_reach_costs_no_claim_and_is_asked_sooner(kept: Kept, wire: WireServer) -> None:
    kept.liveness.hold(CLAIM)
    wire.script("heartbeat", CUT, problem(503, "unavailable"), problem(429, "busy"))
    for seconds in (20, 22, 24, 26):
        kept.at(seconds)
    kept.at(30)
    assert len(wire.of("heartbeat")) == 4
    assert kept.news == []


def test_our_own_clock_ends_what_has_gone_on_too_long_without_asking(kept: Kept, wire: WireServer) -> None:
    kept.liveness.hold(CLAIM, for_seconds=30)
    kept.at(20)
    kept.at(40)
    assert len(wire.of("heartbeat")) == 1
    assert kept.news == [("c", Overdue())], "which is not for the server's Lost to say"


def test_more_questions_than_a_beat_may_name_are_named_by_turns(kept: Kept, wire: WireServer) -> None:
    kept.liveness.hold(CLAIM)
    asked = [f"ask-{n}" for n in range(ASKS_MAX + 20)]
    for one in asked:
        kept.liveness.listen("c", one)
    kept.at(20)
    kept.at(40)
    named = [beat.body["asks"] for beat in wire.of("heartbeat")]
    assert [len(names) for names in named] == [ASKS_MAX, ASKS_MAX]
    assert set(named[0]) | set(named[1]) == set(asked)


def test_a_longer_limit_replaces_the_first(kept: Kept, wire: WireServer) -> None:
    kept.liveness.hold(CLAIM, for_seconds=30)
    kept.liveness.hold(CLAIM)
    kept.at(40)
    assert len(wire.of("heartbeat")) == 1
    assert kept.news == []


def test_an_error_of_its_own_is_told_and_not_died_of_in_silence(wire: WireServer) -> None:
    news: list[News] = []
    broken = RuntimeError("a clock that broke")

    def clock() -> float:
        raise broken

    liveness = Liveness(lambda: Profile(wire.url, "t", "test"), lambda _, one: news.append(one), clock=clock)
    liveness.start()
    assert liveness._thread is not None
    liveness._thread.join(20)
    assert news == [Broken(broken)]
    liveness.stop()
