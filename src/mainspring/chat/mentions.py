"""Whom a text calls: `@handle`, outside of code. Pure.

For people's texts alone: agents name whom they mean in a field, and an `@` in what they write is a letter.
"""

from __future__ import annotations

import re
from typing import Final

from mainspring.chat.model import Broadcast

ALL_AGENTS: Final = "agents"
EVERYONE: Final = "everyone"
RESERVED: Final[dict[str, Broadcast]] = {ALL_AGENTS: "agents", EVERYONE: "everyone"}

_FENCED: Final = re.compile(
    r"^[ ]{0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^[ ]{0,3}\1[`~]*[ \t]*$|\Z)", re.DOTALL | re.MULTILINE
)
_SPAN: Final = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_CALL: Final = re.compile(r"(?<![\w@/.`-])@([a-z0-9][a-z0-9_-]{0,63})(?![\w@])", re.IGNORECASE)


def without_code(text: str) -> str:
    """Return a text without its fenced blocks and code spans."""
    return _SPAN.sub(" ", _FENCED.sub("\n", text))


def called(text: str) -> frozenset[str]:
    """Return the handles that a text calls, in lower case; the reserved ones, too."""
    return frozenset(found.lower().rstrip("-_") for found in _CALL.findall(without_code(text)))
