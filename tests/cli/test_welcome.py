"""What `dev` tells somebody whose shell does not know the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.cli.devserver import how_to_reach_the_command


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / ".venv" / "bin"
    made.mkdir(parents=True)
    (made / "mainspring").touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    return made


def test_a_command_that_is_found_needs_no_word(scripts):
    assert how_to_reach_the_command(str(scripts / "python"), str(scripts)) is None


def test_one_that_is_not_found_is_shown_and_so_is_how_to_activate_it(scripts, tmp_path):
    python = str(scripts / "python")
    assert how_to_reach_the_command(python, str(tmp_path)) == ".venv/bin/mainspring"
    (scripts / "activate").touch()
    said = how_to_reach_the_command(python, str(tmp_path))
    assert said == "source .venv/bin/activate, or type .venv/bin/mainspring"


def test_another_installations_command_is_not_ours(scripts, tmp_path):
    (tmp_path / "mainspring").touch(mode=0o755)
    assert how_to_reach_the_command(str(scripts / "python"), str(tmp_path)) == ".venv/bin/mainspring"


def test_without_a_command_nothing_is_promised(tmp_path):
    assert how_to_reach_the_command(str(tmp_path / "python"), None) is None
