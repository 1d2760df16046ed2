"""Events and rule versions made out of thin air, for tests of the pure parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any
from uuid import UUID

from mainspring.ids import new_id
from mainspring.spine.events import Event, Trust
from mainspring.triggers.model import Launch, Options, RuleVersion
from mainspring.triggers.terms import Terms

TENANT = new_id()
PLAIN = Options()


def card(
    *, board: str = "OPS", state: str = "ready", labels: Iterable[str] = (), **more: Any
) -> dict[str, Any]:
    return {
        "id": str(UUID(int=7)), "key": f"{board}-1", "board_id": str(UUID(int=8)), "board": board, "number": 1, "title": "t",
        "body": "b", "state": state, "labels": sorted(labels), "agent_id": None, "agent": None, "assignee_id": None,
        "priority": 0, "fields": {}, "version": 1, "state_version": 1, "eligible_version": None,
    } | more  # fmt: skip


def event(
    kind: str = "card.moved",
    *,
    seq: int = 10,
    depth: int = 0,
    via: tuple[UUID, ...] = (),
    trust: Trust = Trust.MEMBER,
    **data: Any,
) -> Event:
    said = {"card": card(), "actor": {"id": None, "kind": "human", "handle": "ana"}} | data
    if kind == "card.moved":
        said = {"from": "inbox", "to": (said["card"] or {}).get("state")} | said
    return Event(
        tenant_id=TENANT, seq=seq, id=new_id(), kind=kind, subject="s", actor_id=None, data=said, cause_seq=None, via=via,
        depth=depth, trust=trust, traceparent=None, occurred_at=datetime(2020, 1, 1, tzinfo=UTC),
    )  # fmt: skip


def rule(
    *,
    rule_id: UUID | None = None,
    version: int = 1,
    enabled: bool = True,
    from_seq: int = 0,
    until_seq: int | None = None,
    options: Options = PLAIN,
    fields: Mapping[str, Any] = MappingProxyType({}),
    min_trust: Trust | None = None,
    **terms: Iterable[str],
) -> RuleVersion:
    asked: Mapping[str, frozenset[str]] = {term: frozenset(values) for term, values in terms.items()}
    told = Terms.from_json({"fields": fields}).fields
    return RuleVersion(
        rule_id=rule_id or new_id(),
        name="r",
        version=version,
        enabled=enabled,
        terms=Terms(**asked, fields=told, min_trust=min_trust),
        action=Launch(agent="echo", prompt="go"),
        options=options,
        from_seq=from_seq,
        until_seq=until_seq,
    )
