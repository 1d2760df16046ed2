"""What the pages name is there: links, headings, tests."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from mainspring.faultpoints import FaultPoint
from tests.docs.blocks import ROOT

PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")],
    key=str,
)
_LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """The places of a page that a link may name."""
    text = _FENCED.sub("", page.read_text("utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
    return frozenset(slugs | set(re.findall(r'<a id="([^"]+)">', text)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for path, anchor in _LINK.findall(_FENCED.sub("", page.read_text("utf-8"))):
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(path)
        elif anchor and anchor not in anchors_of(target):
            broken.append(f"{path}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_tests_that_it_names_exist(page: Path) -> None:
    missing = [
        f"{path}::{name}"
        for path, name in _TEST.findall(page.read_text("utf-8"))
        if not (ROOT / path).exists()
        or not re.search(rf"^\s*(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert missing == []


def test_the_guarantees_name_every_fault_point() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
    assert [point for point in FaultPoint if f"`{point}`" not in text] == []


def test_the_guarantees_name_a_test_for_each_invariant_and_window() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
    parts = re.split(r"^\*\*(?=I-|W)", text, flags=re.MULTILINE)[1:]
    assert len(parts) > 10
    assert [part[:40] for part in parts if not _TEST.search(part)] == []
