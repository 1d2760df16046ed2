"""One suite, every store: tests ask `hands` and never know which store they hold."""

from __future__ import annotations

from tests.conformance.hands import hands
from tests.conformance.subjects import any_subject, library, memory, server, subject

__all__ = ["any_subject", "hands", "library", "memory", "server", "subject"]
