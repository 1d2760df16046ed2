"""This room put together, for the wiring: its services, and on the engine the steps of operations and the loop of the tails.

It asks again what the rooms have declared to the engine, and so is built behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mainspring.agents.model import RunPolicy
from mainspring.db import Database, Scope
from mainspring.operators import operations
from mainspring.operators.custom import CustomEvents, LockedCards
from mainspring.operators.deeds import DeedService
from mainspring.operators.desk import DeskService
from mainspring.operators.doctor import DoctorService
from mainspring.operators.explain import ExplainService
from mainspring.operators.log import LogService
from mainspring.operators.model import KindLimits, ReadRules, RunDesk
from mainspring.operators.operations import OperationService
from mainspring.operators.tails import Tails
from mainspring.operators.verify import VerifyService
from mainspring.rooms import ServerSpine
from mainspring.spine.effects import EffectKind
from mainspring.spine.ports import Obligation
from mainspring.spine.service import Health

RULES: Final = "rules"  # the obligation whose verdicts are told rule by rule


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorsRoom:
    """Everything that the operators' room offers."""

    log: LogService
    tails: Tails
    custom: CustomEvents
    doctor: DoctorService
    desk: DeskService
    operations: OperationService
    audit: DeedService
    explain: ExplainService
    verify: VerifyService


def build(
    spine: ServerSpine,
    db: Database,
    runs: RunDesk,
    cards: LockedCards,
    rules: ReadRules,
    policy: RunPolicy,
    *,
    obligations: Sequence[Obligation[Scope]],
    kinds: Mapping[str, EffectKind],
    health: Callable[[], Sequence[Health]],
) -> OperatorsRoom:
    """Build the room, and tell the engine what it does and repeats.

    Args:
        obligations: all that are declared to the engine.
        kinds: all that are declared to the engine, those of this room among them once it is built.
        health: tells how the loops of this process do.
    """
    operations.register(spine, runs)
    limits = KindLimits(
        attempts_max={name: kind.max_attempts for name, kind in kinds.items()},
        run_attempts_max=policy.attempts_max,
        kept_days=spine.settings.done_days,
    )
    judged_apart = [one for one in obligations if one.name != RULES]
    silence_seconds = policy.lease_seconds
    log = LogService(db, spine)
    return OperatorsRoom(
        log=log,
        tails=_tails(spine, db),
        custom=CustomEvents(spine, log, cards),
        doctor=DoctorService(db, health, runner_silence_seconds=silence_seconds),
        desk=DeskService(db, spine, runs),
        operations=OperationService(db, spine),
        audit=DeedService(db),
        explain=ExplainService(db, rules, judged_apart, runner_silence_seconds=silence_seconds),
        verify=VerifyService(db, obligations, limits),
    )


def _tails(spine: ServerSpine, db: Database) -> Tails:
    tails = Tails(db)
    loop = spine.register_loop("event tails", tails.run_once, every_seconds=spine.settings.tick_seconds)
    tails.poke = loop.poke
    spine.on_commit(tails.heard)
    return tails
