"""What is said of the stores holds on the oldest PostgreSQL, too, where there is one on this machine (`make test-pg15` runs more)."""

from __future__ import annotations

import re
import subprocess

import pytest

from mainspring.embedded.binaries import BINDIR_VARIABLE, OLDEST_MAJOR
from tests import oldest
from tests.databases import SHARED_SERVER

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_the_core_of_the_suite_passes_on_the_oldest_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    bindir = oldest.programs()
    if bindir is None:
        pytest.skip(oldest.NOT_FOUND)
    if SHARED_SERVER:
        pytest.skip("these tests run on a server of somebody's choice already")
    version = subprocess.run([bindir / "postgres", "-V"], capture_output=True, text=True, check=True).stdout
    assert re.search(rf"\b{OLDEST_MAJOR}\.", version), f"{bindir} holds {version}"
    monkeypatch.delenv(BINDIR_VARIABLE, raising=False)

    ran = oldest.run(bindir, oldest.SMALL_CORE, told=subprocess.PIPE)

    assert ran.returncode == 0, ran.stdout
