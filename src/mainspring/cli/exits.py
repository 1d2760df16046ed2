"""How a command ends: exit codes that scripts can rely on, and the one exception that carries them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """The codes every command uses."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    AUTH = 4
    CONFLICT = 5
    TIMEOUT = 6
    TRY_AGAIN = 75


class CliError(Exception):
    """Ends the command with a code and a message on stderr; with --json, `problem` (problem+json) on stdout."""

    def __init__(
        self, message: str, *, code: ExitCode = ExitCode.ERROR, problem: Mapping[str, Any] | None = None
    ) -> None:
        """`problem` defaults to one made of the message."""
        super().__init__(message)
        self.code = code
        self.problem: dict[str, Any] = (
            dict(problem) if problem is not None else {"title": message, "code": code.name.lower()}
        )
