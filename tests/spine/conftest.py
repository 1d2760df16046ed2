"""The engine's tests run on each store of the conformance suite."""

from __future__ import annotations

from tests.conformance.hands import hands
from tests.conformance.subjects import any_subject, library, memory, server, subject

__all__ = ["any_subject", "hands", "library", "memory", "server", "subject"]
