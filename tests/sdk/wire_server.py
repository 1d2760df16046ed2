"""The other end of the wire, for tests of the SDK alone: it answers what the test says and remembers what was asked.

It knows the protocol's words and none of its rules; whether our server means the same is for the tests against the real
one. It runs in threads, so that a test may block its own event loop.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PATIENCE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class Says:
    """One answer. `cut` ends the connection instead of answering, after the request was read."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


CUT = Says(cut=True)


def problem(status: int, code: str, **more: Any) -> Says:
    """An RFC 9457 answer."""
    return Says(status, {"status": status, "code": code, "title": code, **more})


CLAIM_LOST = problem(409, "claim_lost", retryable=False)


def a_run(agent: str = "coder", **changes: Any) -> dict[str, Any]:
    """A claimed run as the protocol writes it."""
    return {
        "id": str(uuid.uuid4()),
        "claim_id": str(uuid.uuid4()),
        "slot": 0,
        "agent": {"id": str(uuid.uuid4()), "handle": agent},
        "attempt": 1,
        "max_attempts": 3,
        "prompt": "do it",
        "trigger": {
            "kind": "card.moved",
            "seq": 41,
            "summary": "OPS-12 moved to doing",
            "rule": {"name": "doing"},
        },
        "event": None,
        "card": {"id": str(uuid.uuid4()), "key": "OPS-12"},
        "token": "ms_run_secret",
        "lease_seconds": 60.0,
        "heartbeat_seconds": 0.05,
        **changes,
    }


class WireServer:
    """Answers by (method, last part of the path): first what is scripted there, then the default."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []
        self._changed = threading.Condition()
        self._runs: list[dict[str, Any]] = []
        self._scripts: dict[str, list[Says]] = {}
        self._always: dict[str, Says] = {}
        self._closing = False

    def offer(self, run: dict[str, Any]) -> dict[str, Any]:
        """Let the next claim for its agent have this run."""
        with self._changed:
            self._runs.append(run)
            self._changed.notify_all()
        return run

    def script(self, verb: str, *answers: Says) -> None:
        """Answer the next requests of `verb` so, each once."""
        with self._changed:
            self._scripts.setdefault(verb, []).extend(answers)

    def always(self, verb: str, answer: Says) -> None:
        """Answer every request of `verb` so from now on."""
        with self._changed:
            self._always[verb] = answer

    def of(self, verb: str) -> list[Asked]:
        """Every request of this verb so far."""
        with self._changed:
            return [asked for asked in self.asked if asked.path.endswith("/" + verb)]

    def wait_for(self, seen: Callable[[], object]) -> None:
        """Block until `seen()` is true; it is looked at after every request."""
        with self._changed:
            assert self._changed.wait_for(seen, timeout=PATIENCE_SECONDS), [a.path for a in self.asked]

    def wait_asked(self, verb: str, times: int = 1) -> None:
        """Block until `verb` was asked so often."""
        self.wait_for(lambda: len([a for a in self.asked if a.path.endswith("/" + verb)]) >= times)

    def close(self) -> None:
        """Answer the waiting polls."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def answer(self, asked: Asked) -> Says:
        """Remember the request and find its answer."""
        verb = asked.path.rsplit("/", 1)[-1]
        with self._changed:
            self.asked.append(asked)
            self._changed.notify_all()
            if self._scripts.get(verb):
                return self._scripts[verb].pop(0)
            if verb in self._always:
                return self._always[verb]
            if verb == "claim":
                return self._claim(asked)
        match verb:
            case "whoami":
                return Says(body={"token_kind": "runner"})
            case "heartbeat":
                return Says(body={"cancel": False, "drain": False, "steer": []})
            case "leave":
                return Says(204, b"")
            case "log":
                return Says(body={"next": 0, "truncated": False})
            case "complete":
                return Says(body={"state": asked.body["outcome"], "recorded": False})
            case _:
                return problem(404, "not_found", detail=f"nothing at {asked.path}")

    def _claim(self, asked: Asked) -> Says:
        agents = asked.body["agents"]

        def is_gone() -> bool:
            return any(
                later.path.endswith("/leave") and later.body["incarnation"] == asked.body["incarnation"]
                for later in self.asked
            )

        def mine() -> bool:
            return self._closing or is_gone() or any(run["agent"]["handle"] in agents for run in self._runs)

        self._changed.wait_for(mine, timeout=float(asked.query["wait"][0]))
        for run in [] if is_gone() else self._runs:
            if run["agent"]["handle"] in agents:
                self._runs.remove(run)
                return Says(body={"run": {**run, "slot": asked.body["slots"][0]}, "drain": False})
        return Says(body={"run": None, "drain": False})


@contextmanager
def serving() -> Iterator[WireServer]:
    """A server on a free port, until the block ends."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    http.daemon_threads = True
    wire = WireServer(f"http://127.0.0.1:{http.server_address[1]}")
    http.wire = wire  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield wire
    finally:
        wire.close()
        http.shutdown()
        http.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for the client's delayed acknowledgement

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def log_message(self, *args: Any) -> None:
        """Stay silent."""

    def _answer(self) -> None:
        where = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        asked = Asked(
            method=self.command,
            path=where.path.removeprefix("/api/v1"),
            query=parse_qs(where.query),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=json.loads(body) if body else None,
        )
        says = self.server.wire.answer(asked)  # type: ignore[attr-defined]
        if says.cut:
            self.close_connection = True
            return
        raw = says.body if isinstance(says.body, bytes) else json.dumps(says.body).encode()
        try:
            self.send_response(says.status)
            for name, value in says.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)
        except OSError:
            self.close_connection = True  # the client left during its poll
