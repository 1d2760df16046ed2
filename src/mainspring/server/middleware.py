"""What stands before every handler: a request id, a body of bounded size and clean text, and a net under all of it.

Takes raw ASGI requests; leaves only those whose body and query can be stored as they are. PostgreSQL keeps no NUL, and no
encoder takes a lone surrogate: found here they are one answer that names the field, found later they are three kinds of failure.
A member that an object has twice is found here or nowhere: whoever reads it later has the last one alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainspring import telemetry, tracing
from mainspring.db import as_request
from mainspring.ids import new_id
from mainspring.rooms import FieldError
from mainspring.server.load import Load
from mainspring.server.problems import Problem, pointer

BODY_BYTES_MAX = 1 << 20
CLIENT_LEFT = 499
WAITING = frozenset({"runner.claim", "event.stream"})  # how long they take says nothing
WATCHED = frozenset({"/livez", "/readyz", "/metrics"})  # asked exactly when there is too much to do
DEPTH_MAX = 64  # deeper than any document of ours, and far from where parsers overflow their stack
FAULTS_MAX = 20
_INT_MAX = 2**63
_ONCE = ("if-match", "idempotency-key", "last-event-id", "authorization")
_SURROGATE = re.compile("[\ud800-\udfff]")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

log = logging.getLogger("mainspring.server")


class Edge:
    """Gives each request an id, turns away what is too much, and turns what nobody caught into a problem.

    A handler of `Exception` would answer too, but then raise on, and the server would cut the connection unannounced.
    """

    def __init__(self, app: ASGIApp, *, load: Load | None = None) -> None:
        """Wraps the application; more requests at once than `load` allows are turned away, and never queued."""
        self._app = app
        self._load = load or Load()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else new_id().hex
        scope.setdefault("state", {})["request_id"] = request_id
        if self._load.full and scope["path"] not in WATCHED:
            telemetry.requests_turned_away.labels("overloaded").inc()
            await Problem.coded("overloaded").response(scope)(scope, receive, send)
            return
        traceparent = Headers(scope=scope).get("traceparent")
        traced = tracing.arrived_with(traceparent) if traceparent else nullcontext()
        with self._load.work(), as_request(), traced:
            await self._served(scope, receive, send, request_id)

    async def _served(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        status = 0
        began = asyncio.get_running_loop().time()

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, tagged)
        except Exception as error:
            telemetry.requests_failed.labels(type(error).__name__).inc()
            log.exception("request failed", extra={"request_id": request_id, "path": scope["path"]})
            if status:  # half an answer is out: only a cut connection says that it is not whole
                raise
            await Problem.coded("internal").response(scope)(scope, receive, tagged)
        finally:
            _count(scope, status, asyncio.get_running_loop().time() - began)


def _count(scope: Scope, status: int, seconds: float) -> None:
    """Count a request under its verb, or the path of a route without one; a client who left before the answer is 499."""
    route = scope.get("route")
    name = getattr(route, "verb", None) or getattr(route, "path", None) or "none"
    telemetry.requests.labels(name, str(status or CLIENT_LEFT)).inc()
    if name not in WAITING:
        telemetry.request_seconds.labels(name).observe(seconds)


class Guard:
    """Refuses bodies that are too large, and text that cannot be stored, before anything reads them."""

    def __init__(self, app: ASGIApp, *, limit: int = BODY_BYTES_MAX) -> None:
        """Wraps the application; `limit` is in bytes."""
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if (
            problem := address_problem(scope) or header_problem(headers) or self._announced(headers)
        ) is not None:
            await problem.response(scope)(scope, receive, send)
            return
        body = await self._read(receive)
        if body is None:
            return  # the client has gone
        if (problem := self._content(body)) is not None:
            await problem.response(scope)(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)

    def _announced(self, headers: Headers) -> Problem | None:
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._limit:
            return self._too_large()
        return None

    def _content(self, body: bytes) -> Problem | None:
        if len(body) > self._limit:
            return self._too_large()
        return body_problem(body) if body else None

    def _too_large(self) -> Problem:
        # the rest of the body is still coming: nothing after it on this connection could be told apart
        return Problem.coded(
            "body_too_large", f"a body is at most {self._limit} bytes", headers={"Connection": "close"}
        )

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the whole body, or its first bytes when it is over the limit; None when the client left."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._limit or not message.get("more_body", False):
                return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a receive that gives the body once, and then what the server says (that the client left)."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


# What text may come in. Pure ----------------------------------------------------------------------------------


def header_problem(headers: Headers) -> Problem | None:
    """Return what is wrong where a header that decides is given twice: one of them would be passed over."""
    twice = [name for name in _ONCE if len(headers.getlist(name)) > 1]
    if not twice:
        return None
    errors = [
        {"in": "header", "pointer": pointer([name]), "detail": "is given more than once"} for name in twice
    ]
    return Problem.coded("invalid", "a header is given more than once", errors=errors)


def address_problem(scope: Scope) -> Problem | None:
    """Return what is wrong with the text of path and query, or None."""
    if "\x00" in scope["path"] or _SURROGATE.search(scope["path"]):
        return Problem.coded("invalid", "the path holds a character that cannot be stored")
    errors = []
    for pair in scope.get("query_string", b"").split(b"&"):
        name, _, value = pair.replace(b"+", b" ").partition(b"=")
        if (
            fault := _bytes_fault(unquote_to_bytes(name)) or _bytes_fault(unquote_to_bytes(value))
        ) is not None:
            shown = unquote_to_bytes(name).decode("utf-8", "backslashreplace").replace("\x00", "\\x00")
            errors.append({"in": "query", "pointer": pointer([shown]), "detail": fault})
    if errors:
        return Problem.coded("invalid", "the query holds text that cannot be stored", errors=errors)
    return None


class _Doubled(dict[str, Any]):
    """An object in which a name stands more than once; it holds the last of each, as readers of JSON do."""

    __slots__ = ("names",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.names = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Doubled(pairs)


_JSON = json.JSONDecoder(object_pairs_hook=_object)


def body_problem(body: bytes) -> Problem | None:
    """Return what is wrong with a JSON body before anyone asks for its fields, or None."""
    try:
        value = _JSON.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Problem.coded("invalid", f"the body is not UTF-8 at byte {error.start}")
    except RecursionError:
        return Problem.coded("invalid", f"the body is nested deeper than {DEPTH_MAX}")
    except ValueError as error:
        return Problem.coded("invalid", f"the body is not JSON: {error}")
    errors = []
    for fault in faults(value):
        errors.append({"in": "body", "pointer": fault.pointer, "detail": fault.detail})
        if len(errors) == FAULTS_MAX:
            break
    if errors:
        return Problem.coded(
            "invalid", f"{errors[0]['pointer'] or '/'}: {errors[0]['detail']}", errors=errors
        )
    return None


def faults(document: Any) -> Iterator[FieldError]:
    """Yield every place of a document that holds what no column, index or encoder of ours can, or says one thing twice."""
    todo: list[tuple[tuple[str | int, ...], Any]] = [((), document)]
    while todo:
        path, value = todo.pop()
        if len(path) > DEPTH_MAX:
            yield FieldError(pointer(path), f"nested deeper than {DEPTH_MAX}")
            continue
        match value:
            case dict():
                for name in value:
                    if (fault := text_fault(name)) is not None:
                        yield FieldError(pointer((*path, _shown(name))), f"the name {fault}")
                if isinstance(value, _Doubled):
                    for name in value.names:
                        yield FieldError(pointer((*path, _shown(name))), "is given more than once")
                todo += [((*path, _shown(name)), one) for name, one in value.items()]
            case list():
                todo += [((*path, n), one) for n, one in enumerate(value)]
            case _ if (fault := _scalar_fault(value)) is not None:
                yield FieldError(pointer(path), fault)


def text_fault(text: str) -> str | None:
    """Return why a text cannot be stored, or None."""
    if "\x00" in text:
        return "holds a NUL character"
    if not text.isascii() and _SURROGATE.search(text):
        return "holds half a character (a lone surrogate)"
    return None


def _scalar_fault(value: Any) -> str | None:
    match value:
        case str():
            return text_fault(value)
        case bool() | None:
            return None
        case int() if not -_INT_MAX <= value < _INT_MAX:
            return "is beyond 64 bits"
        case float() if not math.isfinite(value):
            return "is not a finite number"
        case _:
            return None


def _bytes_fault(raw: bytes) -> str | None:
    try:
        return text_fault(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return "is not UTF-8"


def _shown(name: str) -> str:
    """Return an object's name as a pointer may carry it back."""
    return name.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\u0000")
