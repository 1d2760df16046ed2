"""What users test their agents with: a real server, killed where they say."""

from __future__ import annotations

import contextlib

import httpx
import pytest

from mainspring import testing
from mainspring.testing import DevServer, TooLong, server

__all__ = ["server"]  # the fixture, as users import it

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_a_server_is_killed_where_it_is_told_to_be_and_what_was_posted_is_answered(server: DevServer) -> None:
    posted = {"text": "@echo are you there?", "request_id": "once"}
    with server.crash_at("post.after_commit"), contextlib.suppress(httpx.TransportError):
        server.call("POST", "/channels/general/messages", posted)
    again = server.call("POST", "/channels/general/messages", posted)

    def answered() -> bool:
        said = server.call("GET", "/channels/general/messages")["data"]
        return any(one["author"] == "echo" and one["channel_seq"] > again["channel_seq"] for one in said)

    testing.wait_until(answered, "an answer of echo")
    said = [one["text"] for one in server.call("GET", "/channels/general/messages")["data"]]
    assert said.count(posted["text"]) == 1


def test_a_point_that_is_not_reached_is_told_and_stays_armed_for_nobody(server: DevServer) -> None:
    with (
        pytest.raises(TooLong, match=r"post\.after_commit reached"),
        server.crash_at("post.after_commit", seconds=0.2),
    ):
        pass
    with pytest.raises(ZeroDivisionError), server.crash_at("post.after_commit"):
        raise ZeroDivisionError
    # and whoever gets there later is not killed
    server.call("POST", "/channels/general/messages", {"text": "nobody is called"})
