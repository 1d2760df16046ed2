"""One suite, every store: tests ask `hands` and never know which store they hold."""

from __future__ import annotations

import pytest

from tests.conformance.hands import Hands
from tests.conformance.subjects import Subject, databases_if_any, store_name, subject

__all__ = ["databases_if_any", "hands", "store_name", "subject"]


@pytest.fixture
def hands(subject: Subject) -> Hands:
    """Short words for the port's verbs, on each store in turn."""
    return Hands(subject)
