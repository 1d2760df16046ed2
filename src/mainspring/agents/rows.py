"""Rows of this room's tables as values, and the statements they come from. A leaf of the room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.agents.model import Agent, Run, RunAttempt, RunNow, RunState
from mainspring.spine.events import Cause, Trust
from mainspring.sql import Queries

if TYPE_CHECKING:
    from asyncpg import Record

SQL = Queries("mainspring.agents.sql")


def agent_of(row: Record) -> Agent:
    """Return an agent from its row."""
    return Agent(
        id=row["id"],
        handle=row["handle"],
        name=row["name"],
        slots=row["slots"],
        paused=row["paused"],
        wake=row["wake"],
        version=row["version"],
        created_at=row["created_at"],
    )


def cause_of(row: Record) -> Cause:
    """Return the cause that a run's row carries."""
    return Cause(seq=row["event_seq"], via=tuple(row["via"]), depth=row["depth"], trust=Trust(row["trust"]))


def run_of(row: Record) -> Run:
    """Return a run from its row."""
    return Run(
        id=row["id"],
        agent_id=row["agent_id"],
        agent_handle=row["agent_handle"],
        card_id=row["card_id"],
        card_key=row["card_key"],
        effect_kind=row["effect_kind"],
        effect_key=row["effect_key"],
        event_seq=row["event_seq"],
        rule_id=row["rule_id"],
        rule_version=row["rule_version"],
        card_state_version=row["card_state_version"],
        state=RunState(row["state"]),
        attempts=row["attempts"],
        unbegun=row["unbegun"],
        claim_id=row["claim_id"],
        runner=row["runner"],
        slot=row["slot"],
        lease_until=row["lease_until"],
        not_before=row["not_before"],
        cancel_requested=row["cancel_requested"],
        prompt=row["prompt"],
        trigger=row["trigger"],
        via=tuple(row["via"]),
        depth=row["depth"],
        trust=Trust(row["trust"]),
        runner_labels=tuple(row["runner_labels"]),
        outcome=row["outcome"],
        error=row["error"],
        log_bytes=row["log_bytes"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )


def run_now_of(row: Record) -> RunNow:
    """Return what reflection needs of a run from its row."""
    return RunNow(
        id=row["id"],
        state=RunState(row["state"]),
        card_id=row["card_id"],
        card_state_version=row["card_state_version"],
        newest_of_card=row["newest_of_card"],
        agent_handle=row["agent_handle"],
        cause=cause_of(row),
    )


def attempt_of(row: Record) -> RunAttempt:
    """Return an attempt from its row."""
    return RunAttempt(
        n=row["n"],
        claim_id=row["claim_id"],
        runner=row["runner"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=row["outcome"],
        error=row["error"],
    )
