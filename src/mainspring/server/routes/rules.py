"""`/rules`: create, list, show, edit, switch on and off, pause, resume, try out, delete. A rule is named by id or by its name."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from starlette.convertors import StringConvertor, register_url_convertor

from mainspring.rooms import FieldError, Invalid
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging
from mainspring.server.rule_shapes import (
    EditRule,
    Last,
    NewRule,
    Pause,
    RehearsalOut,
    Resume,
    ResumedOut,
    RuleOut,
    RulePage,
    ShownOut,
    TestedRule,
    WrittenOut,
)
from mainspring.server.versions import IfMatch, etag, expected
from mainspring.triggers.model import Rule
from mainspring.triggers.rehearsal import LAST_DEFAULT, LAST_MAX
from mainspring.triggers.service import RuleService, Written


class _Named(StringConvertor):
    """A rule's id or name in a path that has nothing behind it; `rules/test` is a command, and known to no other method."""

    regex = "(?!test$)[^/]+"


register_url_convertor("rule", _Named())

router = APIRouter(prefix="/rules", tags=["rules"], route_class=Route)

Ref = Annotated[str, Path(max_length=200, description="Id or name")]


def _rules(request: Request) -> RuleService:
    service: RuleService = request.app.state.services.rules
    return service


def _answer(response: Response, rule: Rule) -> dict[str, Any]:
    response.headers.update(etag(rule.version))
    return rule.as_json()


def _written(response: Response, written: Written) -> dict[str, Any]:
    """Answer with a rule as it was written; an answer that holds its secret is kept nowhere."""
    _answer(response, written.rule)
    if written.secret is not None:
        response.headers["Cache-Control"] = "no-store"
    return written.as_json()


def _enabled(body: dict[str, Any]) -> bool | None:
    """Take the switch out of the body; None when it is not there. It is no part of what a rule says."""
    value = body.pop("enabled", None)
    if value is None or isinstance(value, bool):
        return value
    raise Invalid(FieldError("/enabled", "must be true or false"))


def _expected_version(body: dict[str, Any]) -> int | None:
    """Take the version that the caller has seen out of the body; None when it is not there."""
    value = body.pop("expected_version", None)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise Invalid(FieldError("/expected_version", "must be a whole number from 1 on"))


def _last(body: dict[str, Any]) -> int:
    """Take the number of events to try out on out of the body."""
    value = body.pop("last", LAST_DEFAULT)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LAST_MAX:
        return value
    raise Invalid(FieldError("/last", f"must be a whole number from 1 to {LAST_MAX}"))


@router.get("", response_model=RulePage)
async def list_rules(
    request: Request, paging: Paging, caller: Annotated[Caller, require("rule.list")]
) -> dict[str, Any]:
    """List the rules, oldest first."""
    rows = await _rules(request).list(caller.tenant_id, after=paging.after_id(), limit=paging.limit + 1)
    return paging.page(rows, Rule.as_json, key=lambda rule: (rule.id,))


@router.post("", status_code=201, response_model=WrittenOut)
async def create_rule(
    request: Request, response: Response, body: NewRule, caller: Annotated[Caller, require("rule.create")]
) -> dict[str, Any]:
    """Make a rule. One that could never fire is refused with the reason; 409 when its name is taken."""
    enabled = _enabled(body)
    written = await _rules(request).create(caller.actor, body, enabled=enabled is not False)
    response.headers["Location"] = f"{request.url.path.rstrip('/')}/{written.rule.id}"
    return _written(response, written)


@router.post("/test", response_model=RehearsalOut)
async def try_unsaved_rule(
    request: Request, body: TestedRule, caller: Annotated[Caller, require("rule.test")]
) -> dict[str, Any]:
    """Try a rule out on the last events before it is made. Changes nothing."""
    last = _last(body)
    return (await _rules(request).test_unsaved(caller.tenant_id, body, last=last)).as_json()


@router.get("/{rule:rule}", response_model=ShownOut)
async def show_rule(
    request: Request, response: Response, rule: Ref, caller: Annotated[Caller, require("rule.show")]
) -> dict[str, Any]:
    """Show one rule."""
    found = await _rules(request).show(caller.tenant_id, rule)
    return _answer(response, found) | {"held": await _rules(request).held(caller.tenant_id, found)}


@router.patch("/{rule:rule}", response_model=WrittenOut)
async def edit_rule(
    request: Request,
    response: Response,
    rule: Ref,
    body: EditRule,
    if_match: IfMatch,
    caller: Annotated[Caller, require("rule.update")],
) -> dict[str, Any]:
    """Replace name, when, do or options, each as a whole. What came before is judged as it was."""
    seen, enabled = expected(if_match, _expected_version(body)), _enabled(body)
    written = await _rules(request).edit(caller.actor, rule, body, enabled=enabled, expected_version=seen)
    return _written(response, written)


@router.post("/{rule}/enable", response_model=RuleOut)
async def enable_rule(
    request: Request,
    response: Response,
    rule: Ref,
    if_match: IfMatch,
    caller: Annotated[Caller, require("rule.enable")],
) -> dict[str, Any]:
    """Switch a rule on, for what comes after."""
    return _answer(response, await _rules(request).enable(caller.actor, rule, expected_version=if_match))


@router.post("/{rule}/disable", response_model=RuleOut)
async def disable_rule(
    request: Request,
    response: Response,
    rule: Ref,
    if_match: IfMatch,
    caller: Annotated[Caller, require("rule.disable")],
) -> dict[str, Any]:
    """Switch a rule off; what it owes and has not launched yet is dropped."""
    return _answer(response, await _rules(request).disable(caller.actor, rule, expected_version=if_match))


@router.post("/{rule}/pause", response_model=RuleOut)
async def pause_rule(
    request: Request,
    response: Response,
    rule: Ref,
    caller: Annotated[Caller, require("rule.pause")],
    body: Pause | None = None,
) -> dict[str, Any]:
    """Pause a rule: what it owes, and what it will owe meanwhile, is held until somebody resumes it."""
    because = body.because if body else None
    return _answer(response, await _rules(request).pause(caller.actor, rule, because=because))


@router.post("/{rule}/resume", response_model=ResumedOut)
async def resume_rule(
    request: Request,
    response: Response,
    rule: Ref,
    body: Resume,
    caller: Annotated[Caller, require("rule.resume")],
) -> dict[str, Any]:
    """Resume a paused rule, and say what becomes of what it owes by now."""
    resumed = await _rules(request).resume(caller.actor, rule, owed=body.owed)
    _answer(response, resumed.rule)
    return resumed.as_json()


@router.post("/{rule}/test", response_model=RehearsalOut)
async def try_rule(
    request: Request,
    rule: Ref,
    caller: Annotated[Caller, require("rule.test")],
    body: Last | None = None,
) -> dict[str, Any]:
    """Try a rule out on the last events, as it is now. Changes nothing."""
    last = (body or Last()).last
    return (await _rules(request).test(caller.tenant_id, rule, last=last)).as_json()


@router.delete("/{rule:rule}", status_code=204)
async def delete_rule(
    request: Request, rule: Ref, if_match: IfMatch, caller: Annotated[Caller, require("rule.delete")]
) -> None:
    """Delete a rule; what it owes and has not launched yet is dropped, what it launched goes on."""
    await _rules(request).delete(caller.actor, rule, expected_version=if_match)
