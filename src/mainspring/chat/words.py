"""The words that messages are found by. Pure."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

WORD_LENGTH_MAX: Final = 64
WORDS_MAX: Final = 2_000  # of one message; what stands behind them is not found

# What Unicode calls stream-safe: no script writes more marks on one letter, and to put n of them into order takes n² steps.
_MARKS_MAX: Final = 30
_MARKS_THAT_COUNT_AS_LETTERS: Final = frozenset("\u0f73\u0f75\u0f81")

_WORD: Final = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Return the distinct words of a text, folded, in the order in which they appear."""
    folded = unicodedata.normalize("NFKC", _stream_safe(text)).casefold()
    found = dict.fromkeys(word[:WORD_LENGTH_MAX] for word in _WORD.findall(folded))
    return list(found)[:WORDS_MAX]


def _stream_safe(text: str) -> str:
    """Return a text without the marks that stand behind the thirtieth on one letter."""
    if text.isascii():
        return text
    kept, marks = list[str](), 0
    for one in text:
        marks = marks + 1 if unicodedata.combining(one) or one in _MARKS_THAT_COUNT_AS_LETTERS else 0
        if marks <= _MARKS_MAX:
            kept.append(one)
    return "".join(kept)
