"""What rules look like over HTTP: what is taken in, as it is described, and what is answered, as it is checked."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Body
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from mainspring.spine.events import Trust
from mainspring.triggers.model import WHILE_RUNNING
from mainspring.triggers.rehearsal import LAST_DEFAULT, LAST_MAX
from mainspring.triggers.terms import CHANGES, LISTED, RULE_KINDS

# What a rule says is read by the triggers room, which names what is wrong; here it is only described.
_VALUES = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": 64},
    "minItems": 1,
    "maxItems": 64,
}
_SECONDS = {"type": "number", "exclusiveMinimum": 0, "maximum": 2_592_000}
_PARTS: dict[str, Any] = {
    "name": {"type": "string", "minLength": 1, "maxLength": 200},
    "when": {
        "type": "object",
        "description": "All terms must hold; inside one any value will do, but for labels_all. What is left out asks nothing.",
        "properties": {
            **dict.fromkeys(LISTED, _VALUES),
            "kinds": {
                **_VALUES,
                "items": {
                    "anyOf": [
                        {"type": "string", "enum": sorted(RULE_KINDS)},
                        {"type": "string", "pattern": "^custom\\.[a-z0-9_-]+$"},
                    ]
                },
                "description": "What happened; cards and runs when nothing is said",
            },
            "actors": {**_VALUES, "description": "members, agents, anyone, or handles"},
            "agents": {**_VALUES, "description": "Whose run it is, for run.* events"},
            "changes": {
                **_VALUES,
                "items": {"type": "string", "enum": sorted(CHANGES)},
                "description": "What became of a rule, for rule.changed",
            },
            "fields": {
                "type": "object",
                "minProperties": 1,
                "maxProperties": 64,
                "description": "The card's fields, by name: a value, or a list of which one will do; null is for none",
            },
            "min_trust": {
                "type": "string",
                "enum": list(Trust),
                "default": "agent",
                "description": "How far what happened must be trusted",
            },
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
                    "runner_labels": {
                        "type": "array",
                        "items": {"type": "string", "minLength": 1, "maxLength": 64},
                        "maxItems": 20,
                        "description": "Only a runner that has all of these takes the run",
                    },
                },
                "required": ["agent"],
                "additionalProperties": False,
            },
            "promote": {
                "type": "object",
                "description": "Pin the card to the agent, unless a person has pinned it",
                "properties": {"agent": {"type": "string", "minLength": 1, "maxLength": 64}},
                "required": ["agent"],
                "additionalProperties": False,
            },
            "webhook": {
                "type": "object",
                "description": "Send the event there, signed; the answer that makes the rule holds the secret",
                "properties": {"url": {"type": "string", "minLength": 8, "maxLength": 2000}},
                "required": ["url"],
                "additionalProperties": False,
            },
        },
        "minProperties": 1,
        "maxProperties": 1,
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
            "max_event_age_seconds": {
                **_SECONDS,
                "description": "What happened longer ago is not acted upon",
            },
            "cooldown_seconds": {
                **_SECONDS,
                "description": "After it fired on a card, the rule rests on that card; 7 days at most",
            },
            "max_per_hour": {
                "type": "integer",
                "minimum": 1,
                "maximum": 10_000,
                "description": "One more pauses the rule: what it owes is held until somebody resumes it",
            },
            "while_running": {
                "type": "string",
                "enum": list(WHILE_RUNNING),
                "default": "allow",
                "description": "While a run of this card and agent has not ended: launch beside it, not at all, or the latest after it",
            },
            "queued_timeout_seconds": {
                **_SECONDS,
                "description": "A run that no runner takes for so long is lost",
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
_TEST = {
    "title": "TestRule",
    "type": "object",
    "properties": {
        **{name: part for name, part in _PARTS.items() if name != "enabled"},
        "last": {"type": "integer", "minimum": 1, "maximum": LAST_MAX, "default": LAST_DEFAULT},
    },
    "required": ["do"],
    "additionalProperties": False,
}
NewRule = Annotated[dict[str, Any], WithJsonSchema(_NEW), Body(examples=[_EXAMPLE])]
TestedRule = Annotated[dict[str, Any], WithJsonSchema(_TEST), Body(examples=[_EXAMPLE | {"last": 100}])]
EditRule = Annotated[dict[str, Any], WithJsonSchema(_EDIT), Body(examples=[{"when": _EXAMPLE["when"]}])]


class RuleOut(BaseModel):
    """A rule. It judges the events behind `from_seq`, the seq of its own last change."""

    id: UUID
    name: str
    when: dict[str, Any]
    do: dict[str, Any]
    options: dict[str, Any]
    enabled: bool
    paused_because: str | None = Field(
        description="What it owes is held until somebody resumes it; null: it is not paused"
    )
    paused_at: datetime | None
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
    secret: str | None = Field(
        description="What its webhook is signed with, when the rule is given it: keep it, it is not shown again"
    )


class ShownOut(RuleOut):
    """A rule, and how much of what it owes is held because it is paused."""

    held: int


class ResumedOut(RuleOut):
    """A rule as it was resumed, and how many held rows were set free, or given up."""

    held: int


class Pause(BaseModel):
    """Why a rule is paused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    because: str | None = Field(default=None, min_length=1, max_length=500, description="By whom, by default")


class Resume(BaseModel):
    """What becomes of what a paused rule owes by now, held already or not."""

    model_config = ConfigDict(extra="forbid", strict=True)

    owed: Literal["run", "discard"] = Field(
        description="Run it whatever its age and the rule's rate, or give it up"
    )


class Last(BaseModel):
    """On how many events a rule is tried out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    last: int = Field(default=LAST_DEFAULT, ge=1, le=LAST_MAX)


class TriedOut(BaseModel):
    """What the rule would have made of one event."""

    seq: int
    kind: str
    occurred_at: datetime
    subject: str = Field(description="The card's key, where there is one")
    actor: str
    matched: bool
    failed_term: str | None
    why: str
    happens: bool
    then: str | None = Field(description="What would have come of a match, its limits played through")


class RehearsalOut(BaseModel):
    """What the rule would have made of the last events, oldest first. Nothing was done."""

    events: int
    matched: int
    would_happen: int
    missed_by: dict[str, int] = Field(description="How many events failed at which term, the most first")
    remarks: list[RemarkOut]
    data: list[TriedOut]


class RulePage(BaseModel):
    """A page of rules, oldest first."""

    data: list[RuleOut]
    next: str | None
