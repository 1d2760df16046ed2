"""The reference is what the code says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT


@pytest.mark.slow
def test_the_committed_reference_is_what_the_script_makes() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
