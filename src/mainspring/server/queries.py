"""Query parameters that no handler reads are refused: a misspelt filter, silently ignored, would answer with everything."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from fastapi import Request

from mainspring.rooms import FieldError, Invalid


async def all_are_known(request: Request) -> None:
    """Every route's second dependency: raise Invalid for parameters that the route does not take."""
    asked = request.query_params.keys()
    if not asked:
        return
    taken = set(_names(request.scope["route"].dependant))
    unknown = [name for name in asked if name not in taken]
    if unknown:
        raise Invalid(*(FieldError(f"/{name[:100]}", _hint(name, taken)) for name in unknown))


def _names(dependant: Any) -> Iterator[str]:
    for param in dependant.query_params:
        yield param.alias
    for inner in dependant.dependencies:
        yield from _names(inner)


def _hint(name: str, taken: set[str]) -> str:
    close = get_close_matches(name, taken, n=1)
    if close:
        return f"there is no such parameter; did you mean {close[0]}?"
    return f"there is no such parameter; there are {', '.join(sorted(taken)) or 'none'}"
