"""A child's log file: the child writes it by itself, we read along and show what matters.

A file, not a pipe: a child never blocks on a slow reader, and never fails because the reader died.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import IO

_KEEP_BYTES = 8 << 20
_READ_BYTES = 256 << 10
_LOUD = re.compile(
    rb"\blevel\W{1,4}(?:warning|error|critical)\b|\b(?:WARNING|ERROR|CRITICAL)\b|^Traceback |^\w*(?:Error|Exception): "
)
_SHOWN_CHARACTERS = 300


class LogTail:
    """Follows one log from where it ended when we came."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and path.stat().st_size > _KEEP_BYTES:
            path.replace(path.with_suffix(".log.1"))
        self._position = path.stat().st_size if path.exists() else 0
        self._began = self._position
        self._partial = b""

    def open_for_child(self) -> IO[bytes]:
        """The child's stdout."""
        return self.path.open("ab")

    def essential_lines(self) -> list[str]:
        """Complete new lines that somebody at the terminal should see; all lines stay in the file."""
        try:
            with self.path.open("rb") as log:
                log.seek(self._position)
                new = log.read(_READ_BYTES)
        except FileNotFoundError:
            return []
        self._position += len(new)
        *complete, self._partial = (self._partial + new).split(b"\n")
        return [_readable(line) for line in complete if _LOUD.search(line)]

    def last(self, lines: int = 12) -> str:
        """The end of what was written since we came, for an error message."""
        try:
            with self.path.open("rb") as log:
                log.seek(max(self._began, self.path.stat().st_size - _READ_BYTES))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def _readable(line: bytes) -> str:
    """A structured line as `event key=value …`; anything else as it is, cut to a sensible length."""
    text = line.decode(errors="replace").rstrip()
    try:
        said = json.loads(text)
    except ValueError:
        return text[:_SHOWN_CHARACTERS]
    if not isinstance(said, dict):
        return text[:_SHOWN_CHARACTERS]
    event = said.pop("event", "")
    rest = " ".join(
        f"{key}={value}" for key, value in said.items() if key not in {"timestamp", "level", "exception"}
    )
    return f"{event} {rest}".rstrip()[:_SHOWN_CHARACTERS]
