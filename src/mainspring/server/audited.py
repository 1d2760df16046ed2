"""Every command that asks for an operator is noted with its effect: takes a route's handler, leaves it noting what it did.

The handler's transactions and the note are one. What is noted is what was asked: the path, the query, the body as far as it is
short, and never a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from fastapi import Request, Response

from mainspring.operators.deeds import Deed
from mainspring.server.auth import VERBS, Caller, Role, known
from mainspring.server.problems import request_id_of

BODY_BYTES_MAX: Final = 8_192
LETTERS_NAMED_MAX: Final = 3
CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# They are sent as commands are, and change nothing
_ONLY_ASK: Final = frozenset({"desk.plan", "rule.test"})
_SECRET: Final = re.compile(r"secret|password|token|signature|credential", re.IGNORECASE)

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def is_audited(verb: str) -> bool:
    """Tell whether a command of this verb is noted."""
    return VERBS[verb].least is Role.OPERATOR and verb not in _ONLY_ASK


async def noted(request: Request, verb: str, plain: Handler) -> Response:
    """Serve a request and note it, in one transaction; called inside a unit of the caller's tenant, or opens one."""
    await known(request)
    caller: Caller = request.state.caller
    audit = request.app.state.services.audit
    if (refusal := caller.refusal(verb, request.path_params)) is not None:
        raise refusal
    async with audit.beside(caller.tenant_id):
        response = await plain(request)
        if response.status_code < 400:
            await audit.note(caller.tenant_id, await _deed(request, caller, verb, response))
    return response


async def _deed(request: Request, caller: Caller, verb: str, response: Response) -> Deed:
    return Deed(
        account_id=caller.actor.account_id,
        handle=caller.actor.handle,
        token_id=caller.token_id,
        verb=verb,
        subject=_subject(request, response),
        asked=_asked(request, await request.body()),
        request_id=request_id_of(request.scope),
    )


def _subject(request: Request, response: Response) -> str:
    """Return what a command was about: what its path names, else what its answer does."""
    named = next(iter(request.path_params.values()), None)
    if named is not None:
        return str(named)
    try:
        answer = json.loads(bytes(response.body))
    except ValueError:
        return ""
    if not isinstance(answer, dict):
        return ""
    for word in ("replayed", "discarded"):
        if isinstance(decided := answer.get(word), list):
            return letters_told(decided)
    found = answer.get("token", answer)
    return str(found.get("id", "")) if isinstance(found, dict) else ""


def letters_told(decided: Sequence[Mapping[str, Any]]) -> str:
    """Return how many letters were decided on, and the first of them."""
    count = f"{len(decided)} letter{'' if len(decided) == 1 else 's'}"
    named = ", ".join(f"{one['kind']} {one['id']}" for one in decided[:LETTERS_NAMED_MAX])
    more = len(decided) - LETTERS_NAMED_MAX
    return count + (f": {named}" if named else "") + (f" and {more} more" if more > 0 else "")


def _asked(request: Request, body: bytes) -> dict[str, Any]:
    asked: dict[str, Any] = {"method": request.method, "path": request.url.path}
    if request.url.query:
        asked["query"] = dict(request.query_params)
    if len(body) > BODY_BYTES_MAX:
        asked["body_bytes"] = len(body)
    elif body:
        try:
            asked["body"] = without_secrets(json.loads(body))
        except ValueError:  # a command that takes no body is not refused for having one
            asked["body_bytes"] = len(body)
    return asked


def without_secrets(value: Any) -> Any:
    """Return a JSON value in which nothing stands under a name that sounds like a secret's."""
    match value:
        case Mapping():
            return {
                name: "…" if _SECRET.search(name) and isinstance(inner, str) else without_secrets(inner)
                for name, inner in value.items()
            }
        case list():
            return [without_secrets(one) for one in value]
        case _:
            return value
