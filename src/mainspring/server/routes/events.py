"""`/events`: the log, in the order of commits. `after` is a seq, so that whoever follows the log can start anywhere."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from mainspring.operators.custom import NewCustom
from mainspring.operators.log import REASON_LENGTH_MAX, shown
from mainspring.operators.tails import Filter, Stream, Tails
from mainspring.rooms import FieldError, Invalid, NotFound
from mainspring.server.answers import EventOut, EventPage
from mainspring.server.auth import VERBS, Caller, Role, Unauthorized, authenticate, require
from mainspring.server.keyed import Route
from mainspring.server.pages import LIMIT_DEFAULT, LIMIT_MAX
from mainspring.server.problems import Problem
from mainspring.server.streams import MEDIA_TYPE, EventStream, told

router = APIRouter(prefix="/events", tags=["events"], route_class=Route)

Seq = Annotated[int, Path(ge=1, lt=2**63, description="Place in the log")]
SEQ_MAX = 2**63 - 1
Kind = Annotated[str | None, Query(max_length=100, description="`card.moved`, or `card.*` for all of a noun")]
Subject = Annotated[str | None, Query(max_length=200, description="The id of what it is about")]


@router.get("", response_model=EventPage)
async def list_events(
    request: Request,
    caller: Annotated[Caller, require("event.list")],
    after: Annotated[int, Query(ge=0, le=SEQ_MAX, description="Only events behind this seq")] = 0,
    kind: Kind = None,
    subject: Subject = None,
    last: Annotated[int | None, Query(ge=1, le=LIMIT_MAX, description="Only the last so many")] = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT,
) -> dict[str, Any]:
    """List events, oldest first. `next` is the seq to go on behind; at the end of the log it is null.

    What was said in channels that the caller does not see is left out: a page may be shorter than asked for, and not be the last.
    """
    log = request.app.state.services.log
    if last is not None:
        found = await log.last_events(caller.reader, kind=kind, subject=subject, limit=last)
        return {"data": [shown(event) for event in found if event.seq > after], "next": None}
    events, following = await log.events(caller.reader, after=after, kind=kind, subject=subject, limit=limit)
    return {
        "data": [shown(event) for event in events],
        "next": None if following is None else str(following),
    }


class Skip(BaseModel):
    """Why a hole in the log is left behind."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str = Field(min_length=1, max_length=REASON_LENGTH_MAX)


@router.post("/skip", response_model=EventOut)
async def skip_hole(
    request: Request, caller: Annotated[Caller, require("event.skip")], body: Skip
) -> dict[str, Any]:
    """Let the drain go on behind a hole in the log, where it stands still. What is missing is judged by nobody.

    409 when there is no hole where it stands: nothing that is there can be skipped.
    """
    return shown(await request.app.state.services.log.skip_hole(caller.actor, body.reason))


class NewEvent(BaseModel):
    """What has happened, as somebody outside says. The same `key` is one event, for as long as the log is kept."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str = Field(max_length=100, description="`custom.<name>`; rules name it")
    subject: str = Field(default="", max_length=200, description="What it is about, in your words")
    card: str | None = Field(
        default=None,
        max_length=100,
        description="The card it is about: id or key. Runs that it launches are on it",
    )
    data: dict[str, Any] = Field(default_factory=dict, description="JSON of your own, at most 64 KiB")
    key: str | None = Field(default=None, min_length=1, max_length=200)


@router.post(
    "",
    status_code=201,
    response_model=EventOut,
    responses={200: {"description": "Posted before", "model": EventOut}},
)
async def post_event(
    request: Request, response: Response, body: NewEvent, caller: Annotated[Caller, require("event.post")]
) -> dict[str, Any]:
    """Append an event of your own; rules may match it. Under a key that was posted before, answer that event."""
    if body.card is not None and not caller.reaches_card(body.card):
        raise NotFound("card", body.card)
    new = NewCustom(kind=body.kind, subject=body.subject, card=body.card, data=body.data, key=body.key)
    event, is_new = await request.app.state.services.custom.post(caller.actor, new)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"{request.url.path.rstrip('/')}/{event.seq}"
    return shown(event)


@router.get(
    "/stream",
    response_class=Response,
    responses={
        200: {
            "description": "Server-sent events: `id` is the seq, `data` an event; `reset` and `bye` are of the stream itself",
            "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
        }
    },
)
async def stream_events(
    request: Request,
    caller: Annotated[Caller, require("event.stream")],
    after: Annotated[
        int | None,
        Query(ge=0, le=SEQ_MAX, description="Begin behind this seq; by default, at what comes next"),
    ] = None,
    kind: Kind = None,
    subject: Subject = None,
    card: Annotated[
        str | None, Query(max_length=100, description="Only what is about this card: id or key")
    ] = None,
    last_event_id: Annotated[
        str | None,
        Header(max_length=30, description="Where a stream that broke off goes on: it counts before `after`"),
    ] = None,
) -> Response:
    """Tell events as they are committed, and first those behind where the reader was."""
    services = request.app.state.services
    tails: Tails = services.tails
    seen = after if not last_event_id else _seq(last_event_id)
    wanted = Filter(
        kind, subject, None if card is None else (await services.boards.get_card(caller.tenant_id, card)).id
    )
    with ExitStack() as held:
        held.enter_context(request.app.state.load.wait(caller.tenant_id))
        bounds = await tails.bounds(caller.tenant_id)
        if seen is not None and seen + 1 < bounds.oldest:
            oldest = {"oldest_seq": bounds.oldest}
            return Problem.coded("too_old", more=oldest).response(request.scope)
        beyond = seen is not None and seen > bounds.head
        stream = Stream(
            tenant_id=caller.tenant_id,
            token_id=caller.token_id,
            reader=caller.reader,
            position=bounds.head if seen is None or beyond else seen,
            wanted=wanted,
            allowed=lambda role: role is not None and Role.named(role) >= VERBS["event.stream"].least,
        )
        lines = told(
            tails, stream, reset_to=bounds.head if beyond else None, recheck=lambda: _role_now(request)
        )
        return EventStream(lines, held=held.pop_all())


def _seq(last_event_id: str) -> int:
    text = last_event_id.strip()
    if text.isascii() and text.isdigit() and int(text) <= SEQ_MAX:
        return int(text)
    raise Invalid(FieldError("/Last-Event-ID", "the id of an event of this stream: a whole number"))


async def _role_now(request: Request) -> str | None:
    """Return the role of the request's token, if it is still good for anything."""
    try:
        return (await authenticate(request)).role.name.lower()
    except Unauthorized:
        return None


@router.get("/{seq:int}", response_model=EventOut)
async def show_event(
    request: Request, caller: Annotated[Caller, require("event.show")], seq: Seq
) -> dict[str, Any]:
    """Show one event, with its immutable snapshot."""
    return shown(await request.app.state.services.log.event(caller.reader, seq))
