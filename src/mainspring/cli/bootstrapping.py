"""The first tenant and the first tokens, made by the product's own verb; here only where they are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.embedded.state import StateFolder


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a `mainspring dev`: its person and its built-in runner."""

    operator: str
    runner: str
