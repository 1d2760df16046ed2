"""This room put together, for the wiring: its services, and its loops on the engine's."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from mainspring.agents.asks import AskService, AskVerbs
from mainspring.agents.model import Cards, RunPolicy
from mainspring.agents.polls import Polls
from mainspring.agents.runners import RunnerService
from mainspring.agents.service import AgentService, RunService
from mainspring.agents.silence import LOOP, Silence
from mainspring.agents.tokens import TokenService
from mainspring.agents.verbs import RunVerbs
from mainspring.db import Database
from mainspring.rooms import ServerSpine


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsRoom:
    """Everything that the agents room offers."""

    verbs: RunVerbs
    agents: AgentService
    runs: RunService
    asks: AskService
    runners: RunnerService
    tokens: TokenService
    polls: Polls
    silence: Silence


def build(
    spine: ServerSpine, db: Database, verbs: RunVerbs, cards: Cards, policy: RunPolicy, *, tick_seconds: float
) -> AgentsRoom:
    """Build the room and register its loops; they start and stop with the engine."""
    asks = AskVerbs(verbs, cards)
    polls = Polls(db, policy)
    polling = spine.register_loop("run polls", polls.run_once, every_seconds=tick_seconds)
    calling = spine.register_loop("run calls", polls.answer_calls, every_seconds=tick_seconds)
    silence = Silence(spine, db, verbs, policy)
    spine.register_loop(LOOP, silence.run_once, every_seconds=min(5.0, policy.lease_seconds / 6))

    def call(tenant: UUID, kinds: tuple[str, ...]) -> None:
        if any(kind.startswith("run.") for kind in kinds):
            polls.call(tenant)
            calling.poke()

    spine.on_commit(call)
    return AgentsRoom(
        verbs=verbs,
        agents=AgentService(db, policy, poke=polling.poke),
        runs=RunService(spine, db, verbs, policy),
        asks=AskService(spine, db, asks),
        runners=RunnerService(spine, db, verbs, asks, cards, polls, policy),
        tokens=TokenService(db),
        polls=polls,
        silence=silence,
    )
