"""The HTTP client: one call is one command or question, asked again until it is answered or patience runs out.

A command (`post`, `patch`) carries an idempotency key made once per call, so asking again after a lost answer does it
once.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import httpx

from mainspring.sdk import profile as profiles
from mainspring.sdk.backoff import delay_seconds
from mainspring.sdk.errors import NotAuthorized, Unreachable
from mainspring.sdk.wire import API, read_answer, tls

_log = logging.getLogger("mainspring.sdk")

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
PATIENCE_SECONDS = 60.0
UNAUTHORIZED = 401
FOR_EVER = float("inf")


class Client:
    """Talks to one server as whoever its token says. Use it as `async with Client() as client:`.

    `patience_seconds` is how long a call keeps asking while the server is out of reach, before `Unreachable` is raised.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        http: httpx.AsyncClient | None = None,
        renew: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.profile = profiles.find(url, token)
        self.patience_seconds = patience_seconds
        self._renew = renew
        self._owns_http = http is None
        # No bound on connections: a runner's long polls hold some, and a complete must not wait for one of them.
        self._http = http or httpx.AsyncClient(
            verify=tls(), limits=httpx.Limits(max_connections=None, max_keepalive_connections=20)
        )

    def __repr__(self) -> str:
        return f"<Client {self.profile.url} (from {self.profile.source})>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the connections back, if they are its own."""
        if self._owns_http:
            await self._http.aclose()

    def acting_as(
        self,
        token: str,
        *,
        patience_seconds: float,
        renew: Callable[[str], Awaitable[None]] | None = None,
    ) -> Client:
        """Return a client with another token on the same connections.

        `renew` is called with a token that is not valid any more: it replaces it, or raises.
        """
        return Client(
            self.profile.url, token, patience_seconds=patience_seconds, http=self._http, renew=renew
        )

    def replace_token(self, token: str) -> None:
        """Send another token from the next request on."""
        self.profile = replace(self.profile, token=token)

    async def get(self, path: str, **params: Any) -> dict[str, Any]:
        """Ask `path` below /api/v1. Raises NotFound, NotAuthorized, Refused or Unreachable."""
        asked = {name: value for name, value in params.items() if value is not None}
        return await self.call("GET", path, params=asked)

    async def post(
        self, path: str, body: Mapping[str, Any], *, if_version: int | None = None
    ) -> dict[str, Any]:
        """Command `path`. Raises Conflict if the thing is no longer at `if_version`."""
        return await self.call("POST", path, body=body, key=str(uuid.uuid4()), if_version=if_version)

    async def patch(
        self, path: str, body: Mapping[str, Any], *, if_version: int | None = None
    ) -> dict[str, Any]:
        """Change some fields of `path`. Raises Conflict if the thing is no longer at `if_version`."""
        return await self.call("PATCH", path, body=body, key=str(uuid.uuid4()), if_version=if_version)

    async def pages(self, path: str, **params: Any) -> AsyncIterator[dict[str, Any]]:
        """Yield every row of a paged answer, page after page."""
        after: str | None = None
        while True:
            page = await self.get(path, **params, after=after)
            for row in page.get("data") or ():
                yield row
            after = page.get("next")
            if after is None:
                return

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        key: str | None = None,
        if_version: int | None = None,
        answer_seconds: float = ANSWER_SECONDS,
        patience_seconds: float | None = None,
    ) -> dict[str, Any]:
        """Send one request until it is answered, and return the answer's object.

        `key` is its idempotency key: what else makes asking again safe, a reader's or the protocol's own, needs none.
        """
        headers = {} if key is None else {"idempotency-key": key}
        if if_version is not None:
            headers["if-match"] = f'"{if_version}"'
        patience = self.patience_seconds if patience_seconds is None else patience_seconds
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + patience
        failures = 0
        while True:
            try:
                answer = await self._known(method, path, body, params, headers, answer_seconds)
            except Unreachable as error:
                failures += 1
                wait = delay_seconds(failures, random.random(), at_least=error.retry_after_seconds)  # noqa: S311
                if loop.time() + wait > give_up_at:
                    raise
                level = logging.WARNING if failures == 1 else logging.DEBUG
                _log.log(level, "%s %s: %s; asking again in %.1f s", method, path, error, wait)
                await asyncio.sleep(wait)
            else:
                if failures:
                    _log.info("%s %s: answered after %d failures", method, path, failures)
                return answer

    async def _known(self, *asked: Any) -> dict[str, Any]:
        """Send one request; once more with a renewed token, if ours is not valid any more."""
        token = self.profile.token
        try:
            return await self._once(*asked)
        except NotAuthorized as refused:
            if refused.status != UNAUTHORIZED or self._renew is None:
                raise
            await self._renew(token)
        return await self._once(*asked)

    async def _once(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        params: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        answer_seconds: float,
    ) -> dict[str, Any]:
        try:
            answer = await self._http.request(
                method,
                self.profile.url + API + path,
                json=body,
                params=params,
                headers={
                    "authorization": f"Bearer {self.profile.token}",
                    "accept": "application/json",
                    **headers,
                },
                timeout=httpx.Timeout(answer_seconds, connect=CONNECT_SECONDS),
            )
        except httpx.TransportError as error:
            raise Unreachable(
                f"{self.profile.url} is out of reach: {type(error).__name__} {error}".rstrip()
            ) from error
        return read_answer(answer.status_code, answer.content, answer.headers)
