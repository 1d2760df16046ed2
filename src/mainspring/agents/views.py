"""What people and runners see of this room: values with what they wait for, and their JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from mainspring.agents.asking import Answered, Ask, AskEnded, AskState
from mainspring.agents.model import Agent, Run, RunAttempt, RunPolicy, RunState, having, snapshot
from mainspring.spine.events import Event

WAITING_FOR_RUNNER = "waiting for a runner"
WAITING_FOR_SLOT = "waiting for a free slot of the agent"
WAITING_PAUSED = "waiting: the agent is paused"
WAITING_LATER = "waiting for its next attempt"


def waiting_for(
    *, paused: bool, served: bool, slots: int, held: int, early: bool = False, labels: Sequence[str] = ()
) -> str | None:
    """Say what an agent's queued run waits for; None when a runner is about to take it."""
    if paused:
        return WAITING_PAUSED
    if early:
        return WAITING_LATER
    if held >= slots:
        return WAITING_FOR_SLOT
    return None if served else WAITING_FOR_RUNNER + having(labels)


def waiting_for_answer(asks: Sequence[Ask]) -> str | None:
    """Say since when a run waits for a person; None when it does not."""
    since = min((ask.asked_at for ask in asks if ask.state is AskState.OPEN), default=None)
    return None if since is None else f"waiting for an answer since {since:%Y-%m-%d %H:%M:%S}"


def at(moment: datetime | None) -> str | None:
    """Return a moment as JSON carries it."""
    return moment.isoformat() if moment else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentView:
    """An agent, how much it has to do, and whether a live runner serves it."""

    agent: Agent
    queued: int
    held: int
    served: bool
    runs: tuple[Run, ...] = ()

    @property
    def waiting(self) -> str | None:
        """What its queued runs wait for; None when it has none, or when they are about to be taken."""
        if self.queued == 0:
            return None
        return waiting_for(
            paused=self.agent.paused, served=self.served, slots=self.agent.slots, held=self.held
        )

    def as_json(self) -> dict[str, Any]:
        """Return the agent as the API shows it in lists."""
        return {
            "id": str(self.agent.id),
            "handle": self.agent.handle,
            "name": self.agent.name,
            "slots": self.agent.slots,
            "paused": self.agent.paused,
            "wake": self.agent.wake,
            "version": self.agent.version,
            "queued": self.queued,
            "running": self.held,
            "served": self.served,
            "waiting": self.waiting,
            "created_at": at(self.agent.created_at),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run with every attempt and question, and what it waits for: a runner, or a person."""

    run: Run
    attempts: tuple[RunAttempt, ...]
    waiting: str | None
    asks: tuple[Ask, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the whole run as the API shows it."""
        return shown_run(self.run) | {
            "waiting": self.waiting,
            "runner_labels": list(self.run.runner_labels),
            "prompt": self.run.prompt,
            "cause": {
                "event_seq": self.run.event_seq,
                "rule_id": str(self.run.rule_id) if self.run.rule_id else None,
                "rule_version": self.run.rule_version,
                "effect_kind": self.run.effect_kind,
                "effect_key": self.run.effect_key,
                "via": [str(rule) for rule in self.run.via],
                "depth": self.run.depth,
                "trust": str(self.run.trust),
            },
            "attempt_list": [shown_attempt(attempt) for attempt in self.attempts],
            "asks": [shown_ask(ask) for ask in self.asks],
        }


def shown_run(run: Run) -> dict[str, Any]:
    """Return a run as lists show it: its snapshot, why it runs, who holds it, and when."""
    return snapshot(run) | {
        "card": run.card_key,
        "trigger": dict(run.trigger),
        "runner": run.runner if run.state in (RunState.CLAIMED, RunState.RUNNING) else None,
        "slot": run.slot if run.state in (RunState.CLAIMED, RunState.RUNNING) else None,
        "cancel_requested": run.cancel_requested,
        "not_before": at(run.not_before) if run.state is RunState.QUEUED else None,
        "lease_until": at(run.lease_until),
        "log_bytes": run.log_bytes,
        "created_at": at(run.created_at),
        "started_at": at(run.started_at),
        "ended_at": at(run.ended_at),
    }


def shown_ask(ask: Ask) -> dict[str, Any]:
    """Return a question as the API shows it."""
    return {
        "id": str(ask.id),
        "run_id": str(ask.run_id),
        "run_state": str(ask.run_state),
        "agent": ask.agent_handle,
        "card": ask.card_key,
        "question": ask.question,
        "options": list(ask.options),
        "released": ask.released,
        "state": str(ask.state),
        "answer": ask.answer,
        "answered_by": ask.answered_by,
        "reason": ask.reason,
        "asked_at": at(ask.asked_at),
        "expires_at": at(ask.expires_at),
        "ended_at": at(ask.ended_at),
    }


def shown_ended(ask: AskEnded) -> dict[str, Any]:
    """Return a question that is over as a heartbeat carries it."""
    return {"id": str(ask.id), "state": str(ask.state), "answer": ask.answer, "reason": ask.reason}


def shown_answered(one: Answered) -> dict[str, Any]:
    """Return an answered question as a claim carries it."""
    return {
        "id": str(one.id),
        "question": one.question,
        "options": list(one.options),
        "answer": one.answer,
        "answered_by": one.answered_by,
        "answered_at": at(one.answered_at),
    }


def shown_attempt(attempt: RunAttempt) -> dict[str, Any]:
    """Return an attempt as the API shows it."""
    return {
        "n": attempt.n,
        "claim_id": str(attempt.claim_id),
        "runner": attempt.runner,
        "started_at": at(attempt.started_at),
        "ended_at": at(attempt.ended_at),
        "outcome": attempt.outcome,
        "error": attempt.error,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of a run's log."""

    n: int
    at: datetime
    text: str

    def as_json(self) -> dict[str, Any]:
        """Return the line as the API shows it."""
        return {"n": self.n, "at": at(self.at), "text": self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerView:
    """A runner: `live` while it was heard of within one lease. `runs` are those that it holds."""

    id: UUID
    name: str
    incarnation: UUID
    agents: tuple[str, ...]
    labels: tuple[str, ...]
    slots: int
    runs: tuple[UUID, ...]
    draining: bool
    live: bool
    created_at: datetime
    last_seen_at: datetime

    def as_json(self) -> dict[str, Any]:
        """Return the runner as the API shows it."""
        return {
            "id": str(self.id),
            "name": self.name,
            "incarnation": str(self.incarnation),
            "agents": list(self.agents),
            "labels": list(self.labels),
            "slots": self.slots,
            "busy": len(self.runs),
            "runs": [str(run) for run in self.runs],
            "draining": self.draining,
            "live": self.live,
            "created_at": at(self.created_at),
            "last_seen_at": at(self.last_seen_at),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """A token without its secret, which nobody has but its holder."""

    id: UUID
    account: str
    kind: str
    role: str
    extras: tuple[str, ...]
    prefix: str
    agents: tuple[str, ...]
    demo: bool
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    expired: bool

    @property
    def valid(self) -> bool:
        """Whether it still opens anything."""
        return self.revoked_at is None and not self.expired

    def as_json(self) -> dict[str, Any]:
        """Return the token as the API shows it."""
        return {
            "id": str(self.id),
            "account": self.account,
            "kind": self.kind,
            "role": self.role,
            "extras": list(self.extras),
            "prefix": self.prefix,
            "agents": list(self.agents),
            "demo": self.demo,
            "valid": self.valid,
            "created_at": at(self.created_at),
            "expires_at": at(self.expires_at),
            "revoked_at": at(self.revoked_at),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A claimed run with all that its runner needs: nothing has to be asked for afterwards. `secret` is the run's own token."""

    run: Run
    card: Mapping[str, Any] | None
    event: Event | None
    answers: tuple[Answered, ...]
    secret: str

    def as_json(self, policy: RunPolicy) -> dict[str, Any]:
        """Return the work as the runner protocol carries it."""
        return {
            "id": str(self.run.id),
            "claim_id": str(self.run.claim_id),
            "slot": self.run.slot,
            "agent": {"id": str(self.run.agent_id), "handle": self.run.agent_handle},
            # claimed: its first heartbeat makes it an attempt
            "attempt": self.run.attempts + (self.run.state is RunState.CLAIMED),
            "max_attempts": policy.attempts_max,
            "prompt": self.run.prompt,
            "trigger": dict(self.run.trigger),
            "event": None if self.event is None else shown_event(self.event),
            "card": self.card,
            "answers": [shown_answered(one) for one in self.answers],
            "token": self.secret,
            "lease_seconds": policy.lease_seconds,
            "heartbeat_seconds": policy.heartbeat_seconds,
            "deadline": at(self.run.lease_until),
        }


def shown_event(event: Event) -> dict[str, Any]:
    """Return the event that made a run, as its runner sees it."""
    return {
        "seq": event.seq,
        "kind": event.kind,
        "subject": event.subject,
        "data": dict(event.data),
        "trust": str(event.trust),
        "occurred_at": at(event.occurred_at),
    }
