"""Refusals and failures as problem documents (RFC 9457). Takes any error; leaves one shape that names the way out.

Every problem has `type` (an address in the docs), `title`, `status`, `code`, `detail`, `retryable`, `request_id`, and
`errors[]` with a JSON pointer each when fields are at fault. Only `retryable` ones are worth sending again as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import Scope

from mainspring.rooms import Conflict, Forbidden, Invalid, Newer, NotFound, Refusal, VersionConflict
from mainspring.server.auth import Unauthorized
from mainspring.server.load import Busy
from mainspring.spine.errors import BadData, Misuse, OutcomeUnknown, SpineError, Transient

MEDIA_TYPE = "application/problem+json"
DOCS = "/docs/problems/"
RETRY_AFTER_SECONDS = 1
METHOD_NOT_ALLOWED = 405


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a code means: its HTTP status, its title, and what to do about it."""

    status: int
    title: str
    way_out: str
    retryable: bool = False


CODES: Mapping[str, Meaning] = {
    "bad_request": Meaning(400, "The request cannot be read", "Mend the request; the detail says what is wrong."),
    "unauthorized": Meaning(401, "A valid token is needed", "Send `Authorization: Bearer <token>`; ask an operator for a new one."),
    "forbidden": Meaning(403, "The token does not reach this", "Use a token of the role that the detail names."),
    "not_found": Meaning(404, "There is no such thing", "Check the id or key. What you may not see answers the same."),
    "method_not_allowed": Meaning(405, "The path does not know this method", "`Allow` lists the methods that it knows."),
    "conflict": Meaning(409, "It does not fit the present state", "Read the thing again; the detail says what stands in the way."),
    "board_key_taken": Meaning(409, "There is a board of that key", "Choose another key, or use the board that is there."),
    "rule_name_taken": Meaning(409, "There is a rule of that name", "Choose another name, or edit the rule that is there."),
    "channel_name_taken": Meaning(409, "There is a channel of that name", "Choose another name, or use the channel that is there."),
    "topic_name_taken": Meaning(409, "There is a topic of that name", "Choose another name, or post to the topic that is there."),
    "pins_changed": Meaning(409, "Somebody has pinned meanwhile", "Read the pins again, and say which ones you expect."),
    "channel_archived": Meaning(409, "The channel is archived", "Nothing is said in it any more; use another."),
    "channel_full": Meaning(409, "The channel has as many members as one may have", "Make another channel."),
    "message_edited": Meaning(409, "The message was edited meanwhile", "Read it again; the detail says at which revision it is."),
    "parked_malformed": Meaning(409, "What is parked is no reference", "Nobody could take it again: discard it."),
    "session_live": Meaning(409, "Another session of this agent lives", "End that one, wait for its lease, or begin yours with `takeover`."),
    "session_displaced": Meaning(409, "Another session has taken over", "Stop: the agent's inbox is that one's. Do not take over in turn."),
    "session_lost": Meaning(409, "The session is over", "Begin another: what this one was offered and had not acked is offered to that one."),
    "ack_out_of_order": Meaning(409, "An earlier delivery of the topic is left out", "Ack in the order in which they came."),
    "rule_disabled": Meaning(409, "The rule is switched off", "It does nothing already; enable it first."),
    "rule_not_paused": Meaning(409, "The rule is not paused", "There is nothing to resume; read how it stands."),
    "handle_taken": Meaning(409, "Somebody has that handle", "Choose another handle."),
    "claim_lost": Meaning(409, "This claim is over", "Stop working on the run; another claim, or nobody, has it now."),
    "run_ended": Meaning(409, "The run has ended", "There is nothing left to cancel."),
    "run_not_dead": Meaning(409, "The run is neither failed nor lost", "Only a dead run is retried; read what state it is in."),
    "ask_answered": Meaning(409, "Somebody has answered first", "The detail says who, and what: the first answer counts."),
    "ask_closed": Meaning(409, "Nobody waits for the answer any more", "The run is over, or has gone on without it."),
    "run_not_asking": Meaning(409, "The run waits for no answer", "`GET /asks` lists the questions that are open."),
    "run_asks_more": Meaning(409, "The run asks more than one thing", "Answer each by its id: `POST /asks/{id}/answer`."),
    "key_in_progress": Meaning(
        409, "The same Idempotency-Key is being carried out", "Send it again after `Retry-After`: the answer is kept.", retryable=True
    ),
    "answer_withheld": Meaning(
        409, "It was done, and its secret is not kept", "`current` is what was made: revoke it, and make another with a new key."
    ),
    "too_old": Meaning(410, "The log does not reach back that far", "Read things as they are now, then go on from `oldest_seq` or later."),
    "not_dead": Meaning(409, "It does not lie on the desk", "Only what is dead is replayed or discarded; read what state it is in."),
    "effect_ended": Meaning(409, "The effect has ended", "There is nothing left to cancel."),
    "no_hole": Meaning(409, "The log has no hole where the drain stands", "There is nothing to skip; `verify` says where holes are."),
    "operation_ended": Meaning(409, "The operation has ended", "There is nothing left to stop."),
    "version_conflict": Meaning(412, "It was changed meanwhile", "`current` is what it is now: decide again, and send its version."),
    "body_too_large": Meaning(413, "The body is too large", "Bodies are at most 1 MiB."),
    "unsupported_media_type": Meaning(415, "The body is of the wrong type", "Send application/json."),
    "request_id_reused": Meaning(422, "Another message was posted under that request id", "`current` is that message: edit it, or use a fresh request id for another."),
    "invalid": Meaning(422, "The input is refused", "`errors` names each field and what is wrong with it."),
    "key_reused": Meaning(422, "The Idempotency-Key stood for another request", "Take a new key for each command."),
    "not_available_yet": Meaning(422, "This release does not know it yet", "`errors` names each field; leave them out."),
    "too_many_requests": Meaning(429, "Too much at once", "Wait as long as `Retry-After` says.", retryable=True),
    "internal": Meaning(500, "The server has a defect", "It is logged under `request_id`; nothing was changed, or it says so."),
    "unavailable": Meaning(503, "The database is away or busy", "Send it again after `Retry-After`; nothing was written.", retryable=True),
    "overloaded": Meaning(503, "The server has more to do than it can", "Send it again after `Retry-After`; it was not looked at.", retryable=True),
    "newer_release": Meaning(
        503, "A newer release has written it, and this server does not know it", "Send it again: during an upgrade newer servers answer, too.", retryable=True
    ),
    "outcome_unknown": Meaning(
        503, "It may or may not have happened", "Read the thing before you send this again.", retryable=True
    ),
}  # fmt: skip
_BY_STATUS = {meaning.status: code for code, meaning in reversed(list(CODES.items()))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem document, before it is tied to a request."""

    code: str
    status: int
    detail: str
    retryable: bool = False
    errors: Sequence[Mapping[str, str]] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def coded(cls, code: str, detail: str = "", **more: Any) -> Problem:
        """Return a problem with the status of a known code."""
        meaning = CODES[code]
        return cls(
            code=code,
            detail=detail or meaning.way_out,
            **{"status": meaning.status, "retryable": meaning.retryable, **more},
        )

    def document(self, request_id: str) -> dict[str, Any]:
        """Return the document as it is sent."""
        meaning = CODES.get(self.code) or CODES[_BY_STATUS.get(self.status, "bad_request")]
        return {
            "type": DOCS + self.code,
            "title": meaning.title,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            "retryable": self.retryable,
            "request_id": request_id,
            **({"errors": [dict(error) for error in self.errors]} if self.errors else {}),
            **self.more,
        }

    def response(self, scope: Scope) -> JSONResponse:
        """Return the response to the request of an ASGI scope."""
        retry = {"Retry-After": str(RETRY_AFTER_SECONDS)} if self.retryable else {}
        return JSONResponse(
            self.document(request_id_of(scope)),
            self.status,
            headers={**retry, **self.headers},
            media_type=MEDIA_TYPE,
        )


def request_id_of(scope: Scope) -> str:
    """Return the id that the middleware gave this request."""
    return str(scope.get("state", {}).get("request_id", ""))


# Errors to problems -------------------------------------------------------------------------------------------


def of_refusal(refusal: Refusal) -> Problem:
    """Return what a command's refusal answers."""
    detail = str(refusal)
    match refusal:
        case Unauthorized():
            return Problem.coded("unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})
        case Busy(code=code):
            return Problem.coded(code, detail)
        case Newer():
            return Problem.coded("newer_release", detail)
        case NotFound():
            return Problem.coded("not_found", detail)
        case Forbidden():
            return Problem.coded("forbidden", detail)
        case Invalid(errors=errors, code=code, current=current):
            named = [{"pointer": error.pointer, "detail": error.detail} for error in errors]
            more = {} if current is None else {"current": current}
            return Problem(code=code, status=422, detail=detail, errors=named, more=more)
        case VersionConflict(current=current):
            return Problem.coded("version_conflict", detail, more={"current": current})
        case Conflict(code=code):
            again = code in CODES and CODES[code].retryable
            return Problem(code=code, status=409, detail=detail, retryable=again)
        case _:
            return Problem(code=refusal.code, status=400, detail=detail)


def of_spine(error: SpineError) -> Problem:
    """Return what an error of the engine answers."""
    match error:
        case Transient():
            return Problem.coded("unavailable")
        case OutcomeUnknown():
            return Problem.coded("outcome_unknown")
        case BadData():
            return Problem.coded("invalid", _first_line(error))
        case Misuse() | _:
            return Problem.coded("internal")


def of_http(error: HTTPException) -> Problem:
    """Return what the framework's own refusals answer: no such path, no such method, a body that cannot be read."""
    code = _BY_STATUS.get(error.status_code, "bad_request")
    return Problem(
        code=code,
        status=error.status_code,
        detail=str(error.detail),
        retryable=CODES[code].retryable,
        headers=error.headers or {},
    )


def of_validation(error: RequestValidationError) -> Problem:
    """Return the fields at fault, each with its place (`in`) and its JSON pointer."""
    named = []
    for found in error.errors():
        place, *path = found["loc"] or ("body",)
        if found["type"] == "json_invalid":
            path = []  # an offset, not a field
        named.append({"in": str(place), "pointer": pointer(path), "detail": str(found["msg"])})
    detail = "; ".join(f"{one['in']} {one['pointer'] or '/'}: {one['detail']}" for one in named[:3])
    return Problem.coded("invalid", detail, errors=named)


def pointer(path: Sequence[str | int]) -> str:
    """Return a JSON pointer (RFC 6901) to a place in a document."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:500]


def _methods(app: FastAPI, path: str) -> list[str]:
    """Return the methods that a path knows, as the API's description has them; the most literal template counts."""
    found: list[tuple[int, list[str]]] = []
    for template, operations in app.openapi()["paths"].items():
        pattern, _, names = compile_path(template)
        if pattern.match(path):
            found.append((len(names), sorted(method.upper() for method in operations)))
    return min(found, default=(0, []))[1]


def install(app: FastAPI) -> None:
    """Make an application answer every error as a problem. Unforeseen ones are the outermost middleware's to catch."""

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> JSONResponse:
        return of_refusal(error).response(request.scope)

    @app.exception_handler(SpineError)
    async def engine(request: Request, error: SpineError) -> JSONResponse:
        return of_spine(error).response(request.scope)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        problem = of_http(error)
        if error.status_code == METHOD_NOT_ALLOWED:
            # the framework names the methods of the first route alone; a path's others are routes of their own
            problem = replace(problem, headers={"Allow": ", ".join(_methods(app, request.scope["path"]))})
        return problem.response(request.scope)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return of_validation(error).response(request.scope)
