"""Versions at the edge: `ETag` out, `If-Match` or `expected_version` in. Takes what the caller has seen; leaves a number or None."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Header

from mainspring.rooms import FieldError, Invalid

_TAG = re.compile(r'(?:W/)?"?([1-9][0-9]{0,17})"?')


def etag(version: int) -> dict[str, str]:
    """Return the headers that say which version an answer shows."""
    return {"ETag": f'"{version}"'}


def _if_match(if_match: Annotated[str | None, Header(max_length=100)] = None) -> int | None:
    text = (if_match or "*").strip()
    if text == "*":
        return None  # any version will do, and what is not there answers 404 by itself
    found = _TAG.fullmatch(text)
    if found is None:
        raise Invalid(FieldError("/If-Match", 'must be one ETag of this thing, like "3"'))
    return int(found[1])


IfMatch = Annotated[int | None, Depends(_if_match)]


def expected(if_match: int | None, expected_version: int | None) -> int | None:
    """Return the version that the caller has seen, by header or by field; raise Invalid when the two differ."""
    if if_match is None or expected_version is None or if_match == expected_version:
        return expected_version if if_match is None else if_match
    raise Invalid(FieldError("/expected_version", f"differs from If-Match, which is {if_match}"))
