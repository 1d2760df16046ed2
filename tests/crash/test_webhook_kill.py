"""A server is really killed between the request and the settle: the webhook is sent again, under the same id."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from standardwebhooks import Webhook

from mainspring.faultpoints import FaultPoint
from mainspring.testing import dev_server, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]

Got = list[tuple[dict[str, str], bytes]]


@contextmanager
def receiver() -> Iterator[tuple[str, Got]]:
    """A server that thanks for everything; yields its address and what it got."""
    got: Got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_kill_between_the_request_and_the_settle_sends_it_again_under_the_same_id() -> None:
    leases = {"lease_seconds_transactional": 2, "lease_seconds_external": 2}
    with receiver() as (url, got), dev_server(webhook_allow_private=True, **leases) as server:
        server.call(
            "POST", "/boards", {"key": "HOOK", "name": "Hook", "states": [{"name": "todo"}, {"name": "done"}]}
        )
        when = {"kinds": ["card.moved"], "boards": ["HOOK"]}
        rule = server.call("POST", "/rules", {"name": "hook", "when": when, "do": {"webhook": {"url": url}}})
        card = server.call("POST", "/cards", {"board": "HOOK", "title": "a card"})
        victim = server.pid("server")
        assert victim is not None
        server.arm(FaultPoint.WORKER_AFTER_EXECUTE)
        server.call("POST", f"/cards/{card['key']}/move", {"state": "done"})

        wait_until(lambda: len(got) == 1, "the first request")
        wait_until(lambda: server.pid("server") not in (None, victim), "the kill")
        wait_until(lambda: len(got) == 2, "the second request")
        wait_until(server.is_up, "the server up")

        told = [Webhook(rule["secret"]).verify(body, headers) for headers, body in got]
        assert told[0] == told[1]
        assert json.dumps(told[0]).count(card["id"]) > 0
        assert len({headers["webhook-id"] for headers, _ in got}) == 1
        [effect] = server.call("GET", "/effects?kind=webhook")["data"]
        wait_until(lambda: server.call("GET", f"/effects/{effect['id']}")["state"] == "done", "the settle")
        assert server.call("GET", "/verify")["ok"]
