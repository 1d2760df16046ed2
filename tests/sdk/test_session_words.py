"""The words of the session protocol, over a wire whose other end answers what the test says."""

from __future__ import annotations

import pytest

from mainspring.sdk import Client, Conflict, sessions
from mainspring.sdk.messages import message_from
from mainspring.sdk.sessions import Delivery, Known, Session
from tests.sdk.wire_server import CUT, Says, WireServer, problem

SESSION = Session(id="s", claim_id="c", agent="echo", heartbeat_seconds=10)


def a_delivery(name: str, message: str, revision: int) -> Delivery:
    said = {
        "id": message,
        "revision": revision,
        "author": "anna",
        "author_kind": "human",
        "channel": "general",
    }
    place = {"channel_id": "g", "topic": "general", "topic_id": "t"}
    return Delivery(id=name, message=message_from({**said, **place}))


def test_what_was_read_is_known_by_its_delivery_and_by_its_message_at_that_revision() -> None:
    known = Known()
    known.add([a_delivery("d", "m", 1)])
    assert a_delivery("d", "m", 1) in known
    assert a_delivery("d", "m", 2) in known  # edited meanwhile, and owed to nobody for it
    assert a_delivery("e", "m", 1) in known  # owed twice, and both say the same
    assert a_delivery("e", "m", 2) not in known  # finished by its author, and owed again


async def test_an_ack_that_comes_out_of_order_ends_nothing(wire: WireServer) -> None:
    async with Client(wire.url, "ms_agent_secret") as client:
        wire.script("ack", problem(409, "ack_out_of_order"), problem(409, "another"))
        await sessions.ack(client, SESSION, ["d"])
        with pytest.raises(Conflict):
            await sessions.ack(client, SESSION, ["d"])


async def test_a_session_is_begun_with_one_key_however_often_that_is_said(wire: WireServer) -> None:
    begun = Says(201, {"id": "s", "claim_id": "c", "agent": "echo"})
    async with Client(wire.url, "ms_agent_secret") as client:
        wire.script("sessions", CUT, begun, begun)
        await sessions.start(client, "echo")
        await sessions.start(client, "echo")
    first, again, another = [asked.headers["idempotency-key"] for asked in wire.of("sessions")]
    assert first == again != another
