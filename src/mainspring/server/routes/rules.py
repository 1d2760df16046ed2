"""`/rules`: create, list, show, edit, enable, disable, delete. A rule is named by id or by its name."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Body, Path, Request, Response
from pydantic import BaseModel, Field, WithJsonSchema

from mainspring.rooms import FieldError, Invalid
from mainspring.server.auth import Caller, require
from mainspring.server.keyed import Route
from mainspring.server.pages import Paging
from mainspring.server.versions import IfMatch, etag, expected
from mainspring.triggers.model import RULE_KINDS, TERMS, Rule
from mainspring.triggers.service import RuleService

router = APIRouter(prefix="/rules", tags=["rules"], route_class=Route)

Ref = Annotated[str, Path(max_length=200, description="Id or name")]

# What a rule says is read by the triggers room, which names what is wrong; here it is only described.
_VALUES = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": 64},
    "minItems": 1,
    "maxItems": 64,
}
_PARTS: dict[str, Any] = {
    "name": {"type": "string", "minLength": 1, "maxLength": 200},
    "when": {
        "type": "object",
        "description": "All terms must hold; inside one any value will do, but for labels_all. What is left out asks nothing.",
        "properties": {
            **dict.fromkeys(TERMS, _VALUES),
            "kinds": {**_VALUES, "items": {"type": "string", "enum": sorted(RULE_KINDS)}},
            "actors": {**_VALUES, "description": "members, agents, anyone, or handles"},
            "agents": {**_VALUES, "description": "Whose run it is, for run.* events"},
        },
        "additionalProperties": False,
    },
    "do": {
        "type": "object",
        "properties": {
            "launch": {
                "type": "object",
                "properties": {
                    "agent": {"type": "string", "minLength": 1, "maxLength": 64},
                    "prompt": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": 65_536,
                        "description": "Names like {{card.title}} are filled in; the card's title and body by default",
                    },
                },
                "required": ["agent"],
                "additionalProperties": False,
            }
        },
        "required": ["launch"],
        "additionalProperties": False,
    },
    "options": {
        "type": "object",
        "properties": {
            "consume_label": {
                "type": "boolean",
                "description": "The launch takes labels_all off the card; one that finds them gone launches nobody",
            },
            "recheck": {
                "type": "boolean",
                "description": "The card must still match when the launch is carried out",
            },
            "self_trigger": {
                "type": "boolean",
                "description": "Match what this rule's own launches led to, too",
            },
        },
        "additionalProperties": False,
    },
    "enabled": {"type": "boolean", "default": True},
}
_EXAMPLE = {
    "name": "ready → coder",
    "when": {"kinds": ["card.moved"], "boards": ["OPS"], "to_states": ["ready"], "actors": ["members"]},
    "do": {"launch": {"agent": "coder", "prompt": "Do {{card.key}}: {{card.title}}\n\n{{card.body}}"}},
}
_NEW = {
    "title": "NewRule",
    "type": "object",
    "properties": _PARTS,
    "required": ["name", "do"],
    "additionalProperties": False,
}
_EDIT = {
    "title": "EditRule",
    "type": "object",
    "properties": {**_PARTS, "expected_version": {"type": "integer", "minimum": 1}},
    "additionalProperties": False,
}
NewRule = Annotated[dict[str, Any], WithJsonSchema(_NEW), Body(examples=[_EXAMPLE])]
EditRule = Annotated[dict[str, Any], WithJsonSchema(_EDIT), Body(examples=[{"when": _EXAMPLE["when"]}])]


class RuleOut(BaseModel):
    """A rule. It judges the events behind `from_seq`, the seq of its own last change."""

    id: UUID
    name: str
    when: dict[str, list[str]]
    do: dict[str, Any]
    options: dict[str, bool]
    enabled: bool
    version: int
    from_seq: int
    created_at: datetime
    changed_at: datetime
    changed_by: str


class RemarkOut(BaseModel):
    """Something about a rule that was accepted and yet may not be what its author means."""

    pointer: str
    detail: str


class WrittenOut(RuleOut):
    """A rule as it was written."""

    remarks: list[RemarkOut] = Field(description="Names in it that stand for nothing, and the like")


class RulePage(BaseModel):
    """A page of rules, oldest first."""

    data: list[RuleOut]
    next: str | None


def _rules(request: Request) -> RuleService:
    service: RuleService = request.app.state.services.rules
    return service


def _answer(response: Response, rule: Rule) -> dict[str, Any]:
    response.headers.update(etag(rule.version))
    return rule.as_json()


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
    _answer(response, written.rule)
    return written.as_json()


@router.get("/{rule}", response_model=RuleOut)
async def show_rule(
    request: Request, response: Response, rule: Ref, caller: Annotated[Caller, require("rule.show")]
) -> dict[str, Any]:
    """Show one rule."""
    return _answer(response, await _rules(request).show(caller.tenant_id, rule))


@router.patch("/{rule}", response_model=WrittenOut)
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
    _answer(response, written.rule)
    return written.as_json()


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


@router.delete("/{rule}", status_code=204)
async def delete_rule(
    request: Request, rule: Ref, if_match: IfMatch, caller: Annotated[Caller, require("rule.delete")]
) -> None:
    """Delete a rule; what it owes and has not launched yet is dropped, what it launched goes on."""
    await _rules(request).delete(caller.actor, rule, expected_version=if_match)
