"""The library's public names: the engine, its stores, its values and its errors. `mainspring.migrate` makes its tables.

Each is imported when it is first used: the command line and the SDK need none of them, and start without.

The server lives in `mainspring.server`, the client and runner for agents in `mainspring.sdk`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.db import Connection, Pool, Scope
    from mainspring.ids import new_id
    from mainspring.spine.effects import (
        AlreadyOwed,
        Attempt,
        Deferred,
        Done,
        Dropped,
        Effect,
        EffectKind,
        EffectRow,
        EffectState,
        Failed,
        Held,
        NewEffect,
        Outcome,
        Owed,
        Retry,
        Unknown,
    )
    from mainspring.spine.engine import Ran, Spine, SpineSettings
    from mainspring.spine.errors import (
        BadData,
        Definitive,
        LeaseLost,
        LogBroken,
        Misuse,
        OutcomeUnknown,
        SpineError,
        Transient,
    )
    from mainspring.spine.events import Cause, Event, NewEvent, Trust
    from mainspring.spine.executors import External, Transactional
    from mainspring.spine.ports import NotOwed, Obligation, Owes, Verdict
    from mainspring.spine.retry import Backoff
    from mainspring.spine.transaction import Transaction
    from mainspring.stores.memory import MemoryStore, MemoryTransaction
    from mainspring.stores.postgres import PostgresStore

__all__ = [
    "AlreadyOwed",
    "Attempt",
    "Backoff",
    "BadData",
    "Cause",
    "Connection",
    "Deferred",
    "Definitive",
    "Done",
    "Dropped",
    "Effect",
    "EffectKind",
    "EffectRow",
    "EffectState",
    "Event",
    "External",
    "Failed",
    "Held",
    "LeaseLost",
    "LogBroken",
    "MemoryStore",
    "MemoryTransaction",
    "Misuse",
    "NewEffect",
    "NewEvent",
    "NotOwed",
    "Obligation",
    "Outcome",
    "OutcomeUnknown",
    "Owed",
    "Owes",
    "Pool",
    "PostgresStore",
    "Ran",
    "Retry",
    "Scope",
    "Spine",
    "SpineError",
    "SpineSettings",
    "Transaction",
    "Transactional",
    "Transient",
    "Trust",
    "Unknown",
    "Verdict",
    "new_id",
]

_MODULES = {
    "db": ("Connection", "Pool", "Scope"),
    "ids": ("new_id",),
    "spine.effects": (
        "AlreadyOwed",
        "Attempt",
        "Deferred",
        "Done",
        "Dropped",
        "Effect",
        "EffectKind",
        "EffectRow",
        "EffectState",
        "Failed",
        "Held",
        "NewEffect",
        "Outcome",
        "Owed",
        "Retry",
        "Unknown",
    ),
    "spine.engine": ("Ran", "Spine", "SpineSettings"),
    "spine.errors": (
        "BadData",
        "Definitive",
        "LeaseLost",
        "LogBroken",
        "Misuse",
        "OutcomeUnknown",
        "SpineError",
        "Transient",
    ),
    "spine.events": ("Cause", "Event", "NewEvent", "Trust"),
    "spine.executors": ("External", "Transactional"),
    "spine.ports": ("NotOwed", "Obligation", "Owes", "Verdict"),
    "spine.retry": ("Backoff",),
    "spine.transaction": ("Transaction",),
    "stores.memory": ("MemoryStore", "MemoryTransaction"),
    "stores.postgres": ("PostgresStore",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"mainspring.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
