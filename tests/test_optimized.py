"""`python -O` leaves asserts out, and with them whatever they do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import mainspring

_ONLY_LOOKS = {"all", "any", "callable", "isinstance", "len", "set", "sorted"}


def does_something(node: ast.AST) -> bool:
    """A call of anything that is not known to look only, a wait, or a name that is given a value."""
    if isinstance(node, ast.Call):
        return not (isinstance(node.func, ast.Name) and node.func.id in _ONLY_LOOKS)
    return isinstance(node, ast.Await | ast.NamedExpr | ast.Yield | ast.YieldFrom)


def acting_asserts(source: str) -> Iterator[int]:
    """The lines of asserts that do more than look."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert) and any(map(does_something, ast.walk(node.test))):
            yield node.lineno


def test_no_assert_does_what_has_to_be_done():
    root = Path(mainspring.__file__).parent
    found = [
        f"{file.relative_to(root)}:{line}"
        for file in sorted(root.rglob("*.py"))
        for line in acting_asserts(file.read_text("utf-8"))
    ]
    assert found == []


def test_an_assert_that_does_something_is_found():
    source = (
        "assert await write() == 1\nassert (n := 1)\nassert rows.pop()\nassert isinstance(n, int), f(n)\n"
    )
    assert list(acting_asserts(f"async def f():\n    {source.replace(chr(10), chr(10) + '    ')}pass")) == [
        2,
        3,
        4,
    ]
