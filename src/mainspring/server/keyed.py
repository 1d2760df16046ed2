"""`Idempotency-Key`: a command that is sent again with the same key is not carried out again; its answer is.

Takes any route of a command; leaves it as it is without the header. With it, whoever may not do the verb is refused first, so
that a kept answer reaches nobody whom the command would not reach. A refusal has written nothing, and is not kept.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Coroutine, Iterator
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from mainspring import telemetry
from mainspring.commands.keys import KEY_LENGTH_MAX, Answer, Keyed, KeyService
from mainspring.rooms import FieldError, Invalid
from mainspring.server.audited import CHANGING, is_audited, noted
from mainspring.server.auth import Caller, Requirement, known
from mainspring.server.problems import Problem

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotency-Replayed"
# The runner protocol has keys of its own; a plan changes nothing; a fault is armed in a process, not in the database.
UNKEYED: Final = frozenset(
    {
        "runner.claim",
        "runner.leave",
        "run.heartbeat",
        "run.append_log",
        "run.ask",
        "run.complete",
        "session.heartbeat",
        "session.settle",
        "session.ack",
        "session.live",
        "desk.plan",
        "rule.test",
        "dev.fault",
    }
)
_KEPT_HEADERS: Final = ("content-type", "etag", "location", "cache-control")
_KEY: Final = re.compile(rf"[\x21-\x7e]{{1,{KEY_LENGTH_MAX}}}")
_DESCRIPTION: Final = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "Sent again with the same key within 48 hours, the command is answered, and not carried out again",
    "schema": {"type": "string", "minLength": 1, "maxLength": KEY_LENGTH_MAX, "pattern": "^[!-~]+$"},
}

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Route(APIRoute):
    """A route of the API; those of commands take an Idempotency-Key."""

    def __init__(self, *given: Any, **named: Any) -> None:
        """Takes what APIRoute takes."""
        super().__init__(*given, **named)
        if self.is_keyed:
            extra = self.openapi_extra or {}
            self.openapi_extra = {**extra, "parameters": [*extra.get("parameters", ()), _DESCRIPTION]}

    @cached_property
    def verb(self) -> str | None:
        """The verb that the route asks for."""
        return next(verbs_of(self.dependant), None)

    @cached_property
    def is_command(self) -> bool:
        """Whether it is sent as commands are."""
        return bool((self.methods or set()) & CHANGING) and self.verb is not None

    @cached_property
    def is_keyed(self) -> bool:
        """Whether it is a command's that takes a key."""
        return self.is_command and self.verb not in UNKEYED

    def get_route_handler(self) -> Handler:
        """Return what serves a request."""
        plain = super().get_route_handler()
        verb = self.verb
        if verb is None or not self.is_command:
            return plain

        async def audited(request: Request) -> Response:
            return await noted(request, verb, plain)

        handler = audited if is_audited(verb) else plain
        if not self.is_keyed:
            return handler

        async def serve(request: Request) -> Response:
            key = request.headers.get(HEADER)
            return await (handler(request) if key is None else _once(request, verb, key, handler))

        return serve


def verbs_of(dependant: Dependant) -> Iterator[str]:
    """Yield the verbs that a route's dependencies ask for."""
    for one in dependant.dependencies:
        if isinstance(one.call, Requirement):
            yield one.call.verb
        yield from verbs_of(one)


async def _once(request: Request, verb: str, key: str, plain: Handler) -> Response:
    await known(request)
    caller: Caller = request.state.caller
    if (refusal := caller.refusal(verb, request.path_params)) is not None:
        raise refusal
    if _KEY.fullmatch(key) is None:
        raise Invalid(
            FieldError(f"/{HEADER}", f"1 to {KEY_LENGTH_MAX} printable ASCII characters, no spaces")
        )
    keys: KeyService = request.app.state.services.keys
    asked = Keyed(
        tenant_id=caller.tenant_id,
        caller_id=_caller_id(caller),
        key=key,
        request=digest(request, await request.body()),
    )
    first: list[Response] = []

    async def work() -> Answer:
        first.append(await plain(request))
        return kept(first[0])

    answer, replayed = await keys.once(asked, work)
    if not replayed:
        return first[0]
    telemetry.commands_replayed.labels(verb).inc()
    if answer.withheld:
        told = json.loads(answer.body)
        return Problem.coded("answer_withheld", more={"current": told}).response(request.scope)
    return Response(answer.body, answer.status, headers={**answer.headers, REPLAYED: "true"})


def _caller_id(caller: Caller) -> UUID:
    """Return whose keys these are: a run's are its own, however many tokens it is given."""
    return caller.run_id or caller.actor.account_id or caller.token_id


def digest(request: Request, body: bytes) -> bytes:
    """Return what tells one request from another: method, address, version asked for and body, each with its length."""
    parts = (
        request.method.encode(),
        request.url.path.encode(),
        request.url.query.encode(),
        request.headers.get("if-match", "").encode(),
        body,
    )
    return hashlib.sha256(b"".join(b"%d:" % len(part) + part for part in parts)).digest()


def kept(response: Response) -> Answer:
    """Return what is kept of an answer: all of it, but for a secret that no cache may store either."""
    body = bytes(response.body).decode()
    withheld = "no-store" in response.headers.get("cache-control", "")
    if withheld:
        body = json.dumps({**json.loads(body), "secret": None})
    headers = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
    return Answer(status=response.status_code, headers=headers, body=body, withheld=withheld)
