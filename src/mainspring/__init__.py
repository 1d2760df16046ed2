"""The library's public names: the engine, its values and its errors.

The server lives in `mainspring.server`, the client and runner for agents in `mainspring.sdk`.
"""

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

__all__ = [
    "AlreadyOwed",
    "Attempt",
    "Backoff",
    "BadData",
    "Cause",
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
    "LeaseLost",
    "LogBroken",
    "Misuse",
    "NewEffect",
    "NewEvent",
    "NotOwed",
    "Obligation",
    "Outcome",
    "OutcomeUnknown",
    "Owed",
    "Owes",
    "Ran",
    "Retry",
    "Spine",
    "SpineError",
    "SpineSettings",
    "Transaction",
    "Transactional",
    "Transient",
    "Trust",
    "Unknown",
    "Verdict",
]
