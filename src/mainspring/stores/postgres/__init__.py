"""The engine's store on PostgreSQL 15 or later: the server's, and a library user's beside his own tables."""

from mainspring.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
