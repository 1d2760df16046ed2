"""The engine's store in memory: for tests and simulation, with the same semantics as PostgreSQL and no rules of its own."""

from mainspring.stores.memory.store import MemoryStore
from mainspring.stores.memory.tables import MemoryTransaction

__all__ = ["MemoryStore", "MemoryTransaction"]
