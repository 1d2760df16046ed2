"""Whom a text calls and which words it has: code calls nobody, and no text takes longer to read than others of its length."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from mainspring.chat.mentions import called
from mainspring.chat.words import words
from mainspring.triggers.prompts import defects, names


@pytest.mark.parametrize(
    ("text", "whom"),
    [
        ("@ann and @Bob, see `@carl` and ``a ` @dora``", {"ann", "bob"}),
        ("an open ` @ann", {"ann"}),
        ("`` @ann ` @bob", {"ann", "bob"}),
        ("```\n@ann\n```\n@bob", {"bob"}),
        ("```python\n@ann\n````  \n@bob", {"bob"}),
        ("```\r\n@ann\r\n```\r\n@bob", {"bob"}),
        ("````\n@ann\n```\n@bob", set()),
        ("```\n@ann\n~~~\n@bob", set()),
        ("~~~ `x`\n@ann\n~~~\n@bob", {"bob"}),
        ("```one line``` @ann\n@bob", {"ann", "bob"}),
        ("@ann\n   ~~~~\n@bob", {"ann"}),
        ("    @ann indented by four is no code here", {"ann"}),
        ("me@example.org @@ann a/@bob", set()),
    ],
)
def test_code_calls_nobody(text, whom):
    assert called(text) == whom


def test_words_are_found_however_their_letters_are_written():
    assert words("CAFE\u0301 café ﬁn") == ["café", "fin"]


def _named(template: str) -> Iterator[str]:
    yield from names(template)
    yield from defects(template, ["card.moved"])


HOSTILE = {
    "backticks": (called, lambda n: "`" * n),
    "tildes": (called, lambda n: "~" * n),
    "fences opened": (called, lambda n: "```\n" * (n // 4)),
    "fences that open within others": (called, lambda n: "~~~a\n```b\n" * (n // 10)),
    "fences of every length": (
        called,
        lambda n: "".join("~" * k + "\n" for k in range(3, int((2 * n) ** 0.5))),
    ),
    "spans never closed": (called, lambda n: "".join("`" * k + " " for k in range(1, int((2 * n) ** 0.5)))),
    "spans of two lengths": (called, lambda n: "`a``b" * (n // 5)),
    "one info string": (called, lambda n: "```" + "a" * n),
    "spaces": (called, lambda n: " " * n),
    "calls": (called, lambda n: "@" * n),
    "handles too long": (called, lambda n: ("@" + "a" * 65) * (n // 66)),
    "one word": (words, lambda n: "a" * n),
    "marks on one letter": (words, lambda n: "a" + "\u0301\u0323" * (n // 2)),
    "letters that are two marks": (words, lambda n: "a" + "\u0f73" * n),
    "braces": (_named, lambda n: "{" * n),
    "names opened": (_named, lambda n: "{{a" * (n // 3)),
}


def _steps(read: Callable[[str], object], text: str) -> float:
    """Return the least of what reading a text took of the processor."""
    took = []
    for _ in range(5):
        before = time.process_time()
        for _found in read(text) or ():  # type: ignore[attr-defined]
            pass
        took.append(time.process_time() - before)
    return min(took)


@pytest.mark.parametrize("marks", HOSTILE)
def test_eight_times_the_text_takes_eight_times_the_work_and_not_sixty_four(marks):
    read, text = HOSTILE[marks]
    assert _steps(read, text(32_000)) < 30 * max(_steps(read, text(4_000)), 1e-5)
