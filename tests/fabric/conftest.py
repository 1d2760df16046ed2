"""Each fabric, to be tested."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.fabric.subjects import JetStreamSubject, MemorySubject, Subject, quick

Make = Callable[..., Subject]


@pytest.fixture(params=["memory", "jetstream"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """`make(**settings)` → a fabric under test."""
    made: list[Subject] = []

    def one(**changes: object) -> Subject:
        if request.param == "memory":
            made.append(MemorySubject(quick(**changes)))
        else:
            made.append(JetStreamSubject(request.getfixturevalue("nats_server"), quick(**changes)))
        return made[-1]

    yield one
    for subject in made:
        await subject.close()


@pytest.fixture
def subject(make: Make) -> Subject:
    """A fabric under test, with the usual short times."""
    return make()


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """No task of a fabric outlives its test."""
    before = asyncio.all_tasks()
    yield
    left = {task for task in asyncio.all_tasks() - before if "fabric" in task.get_name()}
    assert not left, left
