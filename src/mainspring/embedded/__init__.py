"""Real servers from wheels, run as our own children: the engine of `mainspring dev`, of the demo and of the tests.

Nothing in here decides anything about the product; it takes a state folder and leaves running processes that
die with whoever started them.
"""

from __future__ import annotations

from mainspring.embedded.nats import EmbeddedNats
from mainspring.embedded.postgres import EmbeddedPostgres
from mainspring.embedded.problems import EmbeddedError, HeldByAnother

__all__ = ["EmbeddedError", "EmbeddedNats", "EmbeddedPostgres", "HeldByAnother"]
