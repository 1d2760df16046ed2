"""A real NATS for each pytest process, and each fabric on it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from mainspring.embedded.nats import EmbeddedNats
from tests.fabric.subjects import JetStreamSubject, MemorySubject, Subject, quick


@pytest.fixture(scope="session")
def nats_server() -> Iterator[EmbeddedNats]:
    """This process's own NATS."""
    folder = Path(tempfile.mkdtemp(prefix="ms-nats-"))
    try:
        with EmbeddedNats(folder / "state") as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
