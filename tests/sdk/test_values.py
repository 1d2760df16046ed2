"""The SDK's pure parts: waits, outcomes, verdicts on how a handler ended, where address and token come from."""

from __future__ import annotations

import asyncio
import fcntl
import json
from pathlib import Path

import pytest

from mainspring.sdk import (
    Blocked,
    Cancelled,
    Done,
    Failed,
    NeedsInput,
    NotConfigured,
    Outcome,
    Retry,
    profile,
)
from mainspring.sdk.backoff import CAP_SECONDS, delay_seconds
from mainspring.sdk.errors import ClaimLost, Conflict, NotAuthorized, NotFound, Refused, Unreachable
from mainspring.sdk.execution import Ending, Raised, Returned, Why, judge
from mainspring.sdk.outcomes import RESULT_LIMIT, HandedBack, to_wire
from mainspring.sdk.wire import read_answer

# Waits --------------------------------------------------------------------------------------------------------


def test_waits_double_up_to_a_cap_and_half_of_each_is_jitter() -> None:
    longest = [delay_seconds(n, 1.0) for n in range(1, 12)]
    assert longest == sorted(longest)
    assert longest[-1] == CAP_SECONDS == delay_seconds(10_000, 1.0)
    assert delay_seconds(3, 0.0) == delay_seconds(3, 1.0) / 2


def test_the_servers_retry_after_is_a_floor() -> None:
    assert delay_seconds(1, 0.0, at_least=30) == 30


# Outcomes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "body"),
    [
        (Done("ok"), {"outcome": "done", "result": "ok"}),
        (Failed("no"), {"outcome": "failed", "error": "no"}),
        (Blocked("wait"), {"outcome": "blocked", "reason": "wait"}),
        (Retry("later", after_seconds=5), {"outcome": "retry", "after_seconds": 5, "error": "later"}),
        (Cancelled(), {"outcome": "cancelled"}),
        (
            HandedBack(),
            {"outcome": "retry", "after_seconds": 0, "error": "the runner shut down", "handed_back": True},
        ),
    ],
)
def test_an_outcome_has_one_body(outcome: Outcome | HandedBack, body: dict[str, object]) -> None:
    assert to_wire(outcome) == body


def test_of_a_text_too_long_the_end_is_sent_and_says_so() -> None:
    sent = to_wire(Failed("x" * RESULT_LIMIT + "the cause"))["error"]
    assert len(sent) == RESULT_LIMIT
    assert sent.startswith("[cut")
    assert sent.endswith("the cause")


def test_text_that_no_server_takes_does_not_cost_a_result() -> None:
    assert to_wire(Done("a\0b\udc80c"))["result"] == "a\ufffdb?c"


# Verdicts -----------------------------------------------------------------------------------------------------

CUT_OFF = Raised(asyncio.CancelledError())


@pytest.mark.parametrize(
    ("why", "decided", "ending", "outcome"),
    [
        (None, None, Returned("text"), Done("text")),
        (None, None, Returned(None), Done()),
        (None, None, Returned(Retry("x")), Retry("x")),
        (None, Blocked("b"), Returned("text"), Blocked("b")),
        ("cancel", None, CUT_OFF, Cancelled()),
        ("cancel", None, Raised(ValueError()), Cancelled()),
        ("cancel", None, Returned("in time"), Done("in time")),
        ("timeout", None, Returned("in time"), Done("in time")),
        ("drain", None, CUT_OFF, HandedBack()),
        ("drain", None, Returned("in time"), Done("in time")),
        ("refused", None, Returned("in time"), Done("in time")),
        ("lost", None, Returned("in time"), None),
        ("lost", Failed("f"), CUT_OFF, None),
    ],
)
def test_how_a_handler_ended_and_why_it_was_stopped_decide_the_outcome(
    why: Why | None, decided: Outcome | None, ending: Ending, outcome: Outcome | HandedBack | None
) -> None:
    assert judge(why, decided, ending, 60) == outcome


def test_a_run_whose_heartbeats_are_refused_spends_its_attempt() -> None:
    verdict = judge("refused", None, CUT_OFF, 60)
    assert isinstance(verdict, Retry)
    assert verdict.error.startswith("the server refused the run's heartbeats")


@pytest.mark.parametrize("said_by", ["the run", "return"])
@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Done({"a": 1}), "Done, and dict where a text belongs"),  # type: ignore[arg-type]
        (Failed(None), "Failed, and NoneType where a text belongs"),  # type: ignore[arg-type]
        (Blocked(7), "Blocked, and int where a text belongs"),  # type: ignore[arg-type]
        (Retry(b"x"), "Retry, and bytes where a text belongs"),  # type: ignore[arg-type]
        (Retry(after_seconds=float("inf")), "Retry, and after_seconds=inf"),
        (Retry(after_seconds=float("nan")), "Retry, and after_seconds=nan"),
        (Retry(after_seconds=True), "Retry, and bool where seconds belong"),
        (Retry(after_seconds="5"), "Retry, and str where seconds belong"),  # type: ignore[arg-type]
        (NeedsInput(None), "NeedsInput, and NoneType where a text belongs"),  # type: ignore[arg-type]
        (NeedsInput("q", "ab"), "NeedsInput, and options that are no list of texts"),  # type: ignore[arg-type]
        (NeedsInput("q", (1,)), "NeedsInput, and options that are no list of texts"),  # type: ignore[arg-type]
    ],
)
def test_an_outcome_of_a_value_that_is_none_is_a_failure(outcome: Outcome, error: str, said_by: str) -> None:
    decided, ending = (outcome, CUT_OFF) if said_by == "the run" else (None, Returned(outcome))
    assert judge(None, decided, ending, 60) == Failed(f"the handler ended with {error}")


def test_an_error_that_is_an_exception_is_its_text() -> None:
    verdict = judge(None, None, Returned(Failed(ValueError("no such branch"))), 60)  # type: ignore[arg-type]
    assert verdict == Failed("ValueError: no such branch\n")


def test_a_handler_that_cancels_itself_has_failed() -> None:
    verdict = judge(None, None, CUT_OFF, 60)
    assert isinstance(verdict, Failed)
    assert verdict.error.startswith("the handler cancelled itself")


# Answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, {}, NotAuthorized),
        (403, {}, NotAuthorized),
        (404, {}, NotFound),
        (409, {"code": "claim_lost"}, ClaimLost),
        (409, {"code": "exists"}, Conflict),
        (409, {"code": "still_running", "retryable": True}, Unreachable),
        (412, {}, Conflict),
        (422, {"errors": [{"pointer": "/state", "detail": "unknown"}]}, Refused),
        (429, {}, Unreachable),
        (500, {}, Unreachable),
        (500, {"retryable": False}, Refused),
        (503, {}, Unreachable),
    ],
)
def test_an_answer_means_one_error(status: int, body: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        read_answer(status, json.dumps(body).encode(), {})
    assert type(caught.value) is error


def test_a_refusal_names_the_field() -> None:
    body = {"detail": "invalid", "errors": [{"pointer": "/state", "detail": "no such state"}]}
    with pytest.raises(Refused, match="invalid; /state: no such state"):
        read_answer(422, json.dumps(body).encode(), {})


def test_a_proxys_page_is_no_answer() -> None:
    with pytest.raises(Unreachable):
        read_answer(200, b"<html>please log in</html>", {})


def test_retry_after_is_read_when_it_is_seconds() -> None:
    for said, seconds in (("7", 7.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("", None)):
        with pytest.raises(Unreachable) as caught:
            read_answer(503, b"", {"retry-after": said})
        assert caught.value.retry_after_seconds == seconds


# Address and token --------------------------------------------------------------------------------------------


def put(path: Path, url: str, token: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"url": url, "token": token}))


def test_the_first_place_that_names_a_server_is_believed(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    environment = home | {"MAINSPRING_URL": "http://env", "MAINSPRING_TOKEN": "e"}
    with pytest.raises(NotConfigured, match="mainspring login"):
        profile.find(environ=home, folder=tmp_path)
    put(tmp_path / ".mainspring" / "dev.json", "http://dev/", "d")
    assert profile.find(environ=home, folder=tmp_path).url == "http://dev"
    put(tmp_path / "config" / "mainspring" / "profile.json", "http://login", "l")
    assert profile.find(environ=home, folder=tmp_path).url == "http://login"
    with (tmp_path / ".mainspring" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert profile.find(environ=home, folder=tmp_path).url == "http://dev", "the one that runs here"
        assert profile.find(environ=home, folder=tmp_path / "else").url == "http://login"
        assert profile.find(environ=environment, folder=tmp_path).token == "e"
    assert profile.find(environ=home, folder=tmp_path).url == "http://login", "nobody stands behind it"
    assert profile.find("http://arg", "a", environ=environment, folder=tmp_path).token == "a"


def test_a_stored_token_is_never_sent_to_an_address_from_elsewhere(tmp_path: Path) -> None:
    put(tmp_path / ".mainspring" / "dev.json", "http://dev", "d")
    with pytest.raises(NotConfigured, match=r"no token.*MAINSPRING_TOKEN_FILE"):
        profile.find(environ={"MAINSPRING_URL": "http://elsewhere"}, folder=tmp_path)


def test_a_token_without_an_address_goes_to_the_server_of_this_folder_or_nowhere(tmp_path: Path) -> None:
    put(tmp_path / ".mainspring" / "dev.json", "http://dev", "d")
    environ = {"MAINSPRING_TOKEN": "mine"}
    with pytest.raises(NotConfigured, match="set MAINSPRING_URL"):
        profile.find(environ=environ, folder=tmp_path)
    with (tmp_path / ".mainspring" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = profile.find(environ=environ, folder=tmp_path)
    assert (found.url, found.token) == ("http://dev", "mine")


def test_a_token_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    environ = {"MAINSPRING_URL": "http://env", "MAINSPRING_TOKEN_FILE": str(tmp_path / "token")}
    found = profile.find(environ=environ, folder=tmp_path)
    assert found.token == "secret"
    assert "secret" not in repr(found)
