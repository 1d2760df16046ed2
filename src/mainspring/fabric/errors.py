"""What can be wrong with a fabric, split by what the caller should do.

SpineError
├── Transient
│   └── Unreachable   nobody answers, or not in time: go on without it, and try again
├── Definitive
│   ├── Refused       it is there and must not be used: another configuration, no access, too old
│   └── NotARef       what came is no reference that we would have sent
└── Misuse            a subject or reference that cannot be
"""

from __future__ import annotations

from mainspring.spine.errors import Definitive, Transient


class Unreachable(Transient):
    """Nobody answers, or not in time."""


class Refused(Definitive):
    """It is there, and must not be used as it is; the message names what is wrong and the way out."""


class NotARef(Definitive):
    """What came over the fabric is no reference of ours, or not one for the subject it came on."""
