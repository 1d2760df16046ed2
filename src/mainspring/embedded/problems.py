"""What can go wrong while real servers are started; each message says what the reader can do next."""

from __future__ import annotations


class EmbeddedError(Exception):
    """An embedded server could not be found, made, started or reached."""


class HeldByAnother(EmbeddedError):
    """Another process works on the same folder; two of them would fight over the same data."""
