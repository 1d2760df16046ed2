"""This room put together, for the wiring: its service, and on the engine what it owes and how that is done."""

from __future__ import annotations

from mainspring.boards import effects
from mainspring.boards.model import RunHooks
from mainspring.boards.service import BoardService
from mainspring.db import Database
from mainspring.rooms import ServerSpine


def build(spine: ServerSpine, db: Database, runs: RunHooks) -> BoardService:
    """Build the room, and tell the engine what it owes and does."""
    effects.register(spine, runs)
    return BoardService(spine, db, runs)
