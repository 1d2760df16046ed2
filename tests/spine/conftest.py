"""The engine's tests run on each store of the conformance suite."""

from __future__ import annotations

from tests.conformance.conftest import hands
from tests.conformance.subjects import databases_if_any, store_name, subject

__all__ = ["databases_if_any", "hands", "store_name", "subject"]
