"""Query parameters that no handler reads are refused: one misspelt, or all but the last of one given twice, would silently ask less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from fastapi import Request

from mainspring.rooms import FieldError, Invalid


async def all_are_known(request: Request) -> None:
    """Every route's second dependency: raise Invalid for parameters that the route does not take, or does not take twice."""
    asked = Counter(name for name, _ in request.query_params.multi_items())
    if not asked:
        return
    taken = dict(_taken(request.scope["route"].dependant))
    wrong = {name: _hint(name, set(taken)) for name in asked if name not in taken}
    wrong |= {
        name: "is given more than once"
        for name in asked.keys() & taken
        if asked[name] > 1 and not taken[name]
    }
    if wrong:
        raise Invalid(*(FieldError(f"/{name[:100]}", detail) for name, detail in wrong.items()))


def _taken(dependant: Any) -> Iterator[tuple[str, bool]]:
    """Yield each parameter's name, and whether it may be given several times."""
    for param in dependant.query_params:
        annotation = param.field_info.annotation
        yield param.alias, any(get_origin(one) is list for one in (annotation, *get_args(annotation)))
    for inner in dependant.dependencies:
        yield from _taken(inner)


def _hint(name: str, taken: set[str]) -> str:
    close = get_close_matches(name, taken, n=1)
    if close:
        return f"there is no such parameter; did you mean {close[0]}?"
    return f"there is no such parameter; there are {', '.join(sorted(taken)) or 'none'}"
