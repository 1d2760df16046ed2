"""What is said on the wire: whom we trust there; and the protocol's JSON, read once at the edge, as a value or one of `errors`.

Reading is lenient: a field that is not known here is left alone, so that a newer server can talk to an older SDK.
"""

from __future__ import annotations

import functools
import json
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from mainspring.sdk.errors import NotFound, Unreachable, refusal

API = "/api/v1"
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})


@functools.cache
def tls() -> ssl.SSLContext:
    """Return what connections trust, read once for all: it takes longer than anything else that a client needs."""
    return httpx.create_ssl_context()


def segment(ref: object) -> str:
    """Return a reference as one segment of a path, whatever characters it has. Raises NotFound for what cannot be one."""
    text = str(ref)
    if text in {"", ".", ".."}:  # with one of these the path would name another thing
        raise NotFound(404, {"code": "not_found", "detail": f"{text!r} names nothing"})
    return quote(text, safe="", errors="replace")


def read_answer(status: int, content: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the object that the server answered ({} for an empty answer), or raise what the answer means.

    The problem's own `retryable` is believed; where it says nothing, the status decides.
    """
    if 200 <= status < 300:
        return _object(content)
    problem = _problem(content)
    if problem.get("retryable", status in _LATER):
        said = problem.get("detail") or problem.get("title") or "no reason given"
        raise Unreachable(f"the server answered {status}: {said}", retry_after_seconds=_retry_after(headers))
    raise refusal(status, problem)


def _object(content: bytes) -> dict[str, Any]:
    if not content:
        return {}
    try:
        said = json.loads(content)
    except ValueError as error:  # a proxy's page with status 200 is no answer of the server's
        raise Unreachable(f"the answer is no JSON: {content[:80]!r}") from error
    if not isinstance(said, dict):
        raise Unreachable(f"the answer is no object: {content[:80]!r}")
    return said


def _problem(content: bytes) -> dict[str, Any]:
    try:
        said = json.loads(content)
    except ValueError:
        return {"detail": content[:200].decode("utf-8", "replace")} if content else {}
    return said if isinstance(said, dict) else {}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return None  # absent, or a date: our own backoff will do
