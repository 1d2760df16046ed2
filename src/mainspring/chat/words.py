"""The words that messages are found by. Pure."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

WORD_LENGTH_MAX: Final = 64
WORDS_MAX: Final = 2_000  # of one message; what stands behind them is not found

_WORD: Final = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Return the distinct words of a text, folded, in the order in which they appear."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    found = dict.fromkeys(word[:WORD_LENGTH_MAX] for word in _WORD.findall(folded))
    return list(found)[:WORDS_MAX]
