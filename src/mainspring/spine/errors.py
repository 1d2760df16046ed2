"""Every error of the engine, split by what the caller should do about it.

SpineError
├── Transient        nothing is wrong with the input: try again later
├── Definitive       trying again changes nothing
│   └── BadData      the store refused a value: too long, malformed, out of range
├── OutcomeUnknown   it may or may not have happened
├── LeaseLost        the claim is no longer ours; nothing was written
├── LogBroken        a log has a hole: its tenant is stopped until an operator looks
└── Misuse           the caller broke the contract; a defect in the calling code
"""

from __future__ import annotations


class SpineError(Exception):
    """The root of the engine's errors."""


class Transient(SpineError):
    """Nothing is wrong with the input: the same call may succeed later."""


class Definitive(SpineError):
    """Trying again changes nothing."""


class BadData(Definitive):
    """The store refused a value: malformed, too long or out of range."""


class OutcomeUnknown(SpineError):
    """The act may or may not have happened."""


class LeaseLost(SpineError):
    """The claim is no longer ours; nothing was written."""


class LogBroken(SpineError):
    """A tenant's log has a hole; its cursor stays where it is until an operator looks."""


class Misuse(SpineError):
    """The caller broke the contract; a defect in the calling code."""
