"""Whom a text calls: `@handle`, outside of code. Pure.

For people's texts alone: agents name whom they mean in a field, and an `@` in what they write is a letter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from mainspring.chat.model import Broadcast

ALL_AGENTS: Final = "agents"
EVERYONE: Final = "everyone"
RESERVED: Final[dict[str, Broadcast]] = {ALL_AGENTS: "agents", EVERYONE: "everyone"}

# Each of these, and each pass below, takes a text once from its beginning to its end, whatever it consists of: a text is anybody's.
_FENCE: Final = re.compile(r"[ ]{0,3}(`{3,}+|~{3,}+)")
_TICKS: Final = re.compile(r"`+")
_CALL: Final = re.compile(r"(?<![\w@/.`-])@([a-z0-9][a-z0-9_-]{0,63})(?![\w@])", re.IGNORECASE)


def without_code(text: str) -> str:
    """Return a text without its fenced blocks and code spans."""
    return _without_spans("\n".join(_outside_fences(text)))


def _outside_fences(text: str) -> Iterator[str]:
    """Yield the lines that stand in no fenced block; one that is never closed goes on to the end."""
    fence = ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        marks, behind = ("", line) if found is None else (found[1], line[found.end() :])
        if fence:
            if marks.startswith(fence) and not behind.strip():
                fence = ""
        elif marks and not (marks[0] == "`" and "`" in behind):  # that one is a span
            fence = marks
            yield ""
        else:
            yield line


def _without_spans(text: str) -> str:
    """Return a text without what stands between two runs of as many backticks."""
    runs = [found.span() for found in _TICKS.finditer(text)]
    kept, copied, n = list[str](), 0, 0
    closing = _closing([end - start for start, end in runs])
    while n < len(runs):
        if (last := closing[n]) is not None:
            kept += [text[copied : runs[n][0]], " "]
            copied, n = runs[last][1], last
        n += 1
    return "".join([*kept, text[copied:]])


def _closing(lengths: Sequence[int]) -> list[int | None]:
    """Return of each run which later one is the first of its length."""
    seen: dict[int, int] = {}
    closing: list[int | None] = [None] * len(lengths)
    for n in reversed(range(len(lengths))):
        closing[n] = seen.get(lengths[n])
        seen[lengths[n]] = n
    return closing


def called(text: str) -> frozenset[str]:
    """Return the handles that a text calls, in lower case; the reserved ones, too."""
    return frozenset(found.lower().rstrip("-_") for found in _CALL.findall(without_code(text)))
