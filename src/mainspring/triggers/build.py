"""This room put together, for the wiring: its services, and on the engine what it owes, how that is done, and its sweeps."""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.db import Database
from mainspring.rooms import ServerSpine
from mainspring.triggers import effects
from mainspring.triggers.model import CardReader, Cards, Runs
from mainspring.triggers.preview import PreviewService
from mainspring.triggers.service import RuleService


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggersRoom:
    """Everything that the triggers room offers."""

    rules: RuleService
    preview: PreviewService


def build(
    spine: ServerSpine,
    db: Database,
    cards: Cards,
    runs: Runs,
    reader: CardReader,
    *,
    launches_per_hour_max: int,
    webhook_allow_private: bool,
    runner_silence_seconds: float,
) -> TriggersRoom:
    """Build the room, and tell the engine what it owes, does and repeats."""
    effects.register(
        spine,
        db,
        cards,
        runs,
        launches_per_hour_max=launches_per_hour_max,
        webhook_allow_private=webhook_allow_private,
    )
    preview = PreviewService(
        spine,
        reader,
        cards,
        runs,
        launches_per_hour_max=launches_per_hour_max,
        runner_silence_seconds=runner_silence_seconds,
    )
    return TriggersRoom(rules=RuleService(spine, db), preview=preview)
