"""What is wrong with a rule, collected field by field, so that one answer names it all. A leaf of the room."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from mainspring.rooms import FieldError, Invalid

NOT_YET: Final = "not_available_yet"


class Findings:
    """What is wrong, field by field."""

    def __init__(self) -> None:
        self.errors: list[FieldError] = []
        self._later = False

    def add(self, pointer: str, detail: str) -> None:
        self.errors.append(FieldError(pointer, detail))

    def later(self, pointer: str, name: str) -> None:
        self.add(pointer, f"{name} is not available yet")
        self._later = True

    def refuse(self) -> None:
        if self.errors:
            raise Invalid(*self.errors, code=NOT_YET if self._later else "invalid")


def meant(word: str, every: Iterable[str]) -> str:
    """Return what is told beside a word that means nothing: the one that it looks like, or all that there are."""
    known = tuple(every)
    close = get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
