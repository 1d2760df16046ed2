"""The CLI's way to the server: plain HTTP by the standard library, since every start pays for what it imports.

Address and token are found where the SDK finds them (`mainspring.sdk.profile`): environment, the running `mainspring dev` of
this folder, login profile. Whatever the server refuses is raised as `ApiProblem`, which carries its exit code.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from mainspring.cli.exits import CliError, ExitCode
from mainspring.sdk import profile
from mainspring.sdk.errors import NotConfigured

API = "/api/v1"
TIMEOUT_SECONDS = 60.0
_ONLY_ASK = frozenset({"GET", "HEAD", "OPTIONS"})  # what is asked again at no risk


class Unreachable(CliError):
    """Nobody answers at the address; trying again may help."""

    def __init__(self, message: str) -> None:
        """Says where."""
        super().__init__(message, code=ExitCode.TRY_AGAIN, problem=_problem("unreachable", message))


class TimedOut(CliError):
    """The answer took too long; the command may have been carried out."""

    def __init__(self, message: str) -> None:
        """Says how long was waited."""
        super().__init__(message, code=ExitCode.TIMEOUT, problem=_problem("timeout", message))


class CutOff(TimedOut):
    """The link broke after a command was sent: it may have been carried out."""


class ApiProblem(CliError):
    """The server refused: `problem` is its problem+json."""

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        """Keeps both; the message names every field at fault, once."""
        said = str(document.get("detail") or document.get("title") or f"HTTP {status}")
        told = [(one.get("pointer") or "/", str(one.get("detail"))) for one in document.get("errors", [])]
        lines = [said, *(f"  {pointer}: {detail}" for pointer, detail in told if detail not in said)]
        if status >= 500 and document.get("request_id"):
            lines.append(f"  request {document['request_id']}")
        super().__init__("\n".join(lines), code=exit_code_of(status), problem=document)
        self.status = status


def exit_code_of(status: int) -> ExitCode:
    """Return what a command exits with when the server answers this status."""
    match status:
        case 404 | 410:
            return ExitCode.NOT_FOUND
        case 401 | 403:
            return ExitCode.AUTH
        case 409 | 412:
            return ExitCode.CONFLICT
        case 408 | 504:
            return ExitCode.TIMEOUT
        case 429 | 502 | 503:
            return ExitCode.TRY_AGAIN
        case _:
            return ExitCode.OK if status < 400 else ExitCode.ERROR


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: `body` is decoded JSON, or text when it is none."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: Any


@dataclass(frozen=True, slots=True)
class Client:
    """Calls the API of one server as one token."""

    url: str
    token: str | None = field(repr=False, default=None)
    source: str = "the command's arguments"  # the place that named them

    @classmethod
    def here(cls) -> Client:
        """Return the client that environment, the running `mainspring dev` of this folder or the login profile name."""
        try:
            found = profile.find()
        except NotConfigured as error:
            raise CliError(str(error), code=ExitCode.AUTH) from error
        return cls(found.url, found.token, found.source)

    def get(self, path: str, **query: Any) -> Any:
        """Return what the API has at a path under /api/v1."""
        return self.call("GET", path, query=query).body

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        """Send a command; return its answer."""
        return self.call("POST", path, body={} if body is None else body, query=query).body

    def patch(self, path: str, body: Any, *, version: int | None = None) -> Any:
        """Change a thing; with `version` only if it is still that one."""
        return self.call("PATCH", path, body=body, headers=_if_match(version)).body

    def put(self, path: str, body: Any, *, version: int | None = None) -> Any:
        """Replace a thing; with `version` only if it is still that one."""
        return self.call("PUT", path, body=body, headers=_if_match(version)).body

    def delete(self, path: str, *, version: int | None = None) -> Any:
        """Delete a thing."""
        return self.call("DELETE", path, headers=_if_match(version)).body

    def pages(self, path: str, *, limit: int | None = None, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield the rows of a list, page after page, at most `limit` of them."""
        after: str | None = query.pop("after", None)
        left = limit
        while left is None or left > 0:
            page = self.get(path, **query, after=after, limit=min(200, left) if left is not None else None)
            yield from page["data"]
            left = None if left is None else left - len(page["data"])
            after = page["next"]
            if after is None:
                return

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> Answer:
        """Send one request; raise ApiProblem when it is refused. A path that does not begin with / stands under /api/v1."""
        answer = self.send(
            method, path, body=body, query=query, headers=headers, timeout_seconds=timeout_seconds
        )
        if answer.status >= 400:
            document = answer.body if isinstance(answer.body, dict) else {"detail": str(answer.body)}
            raise ApiProblem(answer.status, document)
        return answer

    def send(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> Answer:
        """Send one request and return whatever comes back."""
        try:
            with self._sent(method, path, body, query or {}, headers or {}, timeout_seconds) as (_, reply):
                raw = reply.read()
        except TimeoutError as error:
            raise TimedOut(f"{self.url} did not answer within {timeout_seconds:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            if method not in _ONLY_ASK:
                raise CutOff(
                    f"{self.url} broke off before it answered ({error}): it may have been done"
                ) from error
            raise self._nobody(error) from error
        return Answer(reply.status, {k.lower(): v for k, v in reply.getheaders()}, _decoded(raw))

    @contextmanager
    def opened(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> Iterator[tuple[http.client.HTTPConnection, http.client.HTTPResponse]]:
        """Send one request and give out its answer before it has ended; raise ApiProblem when it is refused."""
        try:
            with self._sent(method, path, None, query or {}, headers or {}, timeout_seconds) as (conn, reply):
                if reply.status >= 400:
                    document = _decoded(reply.read())
                    raise ApiProblem(
                        reply.status, document if isinstance(document, dict) else {"detail": str(document)}
                    )
                yield conn, reply
        except (OSError, http.client.HTTPException) as error:
            raise self._nobody(error) from error

    def _connect(self, conn: http.client.HTTPConnection) -> None:
        """Find somebody who listens: whoever does not get so far has sent nothing, and may send it again."""
        try:
            conn.connect()
        except TimeoutError:
            raise
        except OSError as error:
            raise self._nobody(error) from error

    def _nobody(self, error: Exception) -> Unreachable:
        return Unreachable(f"nobody answers at {self.url} ({error}): is the server running?")

    @contextmanager
    def _sent(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, Any],
        headers: Mapping[str, str],
        timeout_seconds: float,
    ) -> Iterator[tuple[http.client.HTTPConnection, http.client.HTTPResponse]]:
        where = urlsplit(self.url)
        target = where.path + (path if path.startswith("/") else f"{API}/{path}") + _query(query)
        kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
        conn = kind(where.hostname or "localhost", where.port, timeout=timeout_seconds)
        sent = {
            "Accept": "application/json",
            **({"Authorization": f"Bearer {self.token}"} if self.token else {}),
        }
        data: bytes | None = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        try:
            self._connect(conn)
            conn.request(method, target, data, {**sent, **headers})
            yield conn, conn.getresponse()
        finally:
            conn.close()


def segment(ref: object) -> str:
    """Return a reference as one path segment."""
    return quote(str(ref), safe="")


def _if_match(version: int | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"{version}"'}


def _query(query: Mapping[str, Any]) -> str:
    pairs = [
        (name, one if not isinstance(one, bool) else str(one).lower())
        for name, value in query.items()
        for one in (value if isinstance(value, list | tuple) else [value])
        if one is not None
    ]
    return f"?{urlencode(pairs)}" if pairs else ""


def _decoded(raw: bytes) -> Any:
    if not raw:
        return None
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")


def _problem(code: str, detail: str) -> dict[str, Any]:
    return {"code": code, "title": code.replace("_", " "), "detail": detail, "retryable": True}
