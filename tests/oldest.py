"""The core of the suite on the oldest PostgreSQL that Mainspring runs on: `python -m tests.oldest [pytest arguments]`.

The wheel's PostgreSQL is a newer one. This looks for one of that version on the machine and has the tests start it instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mainspring.embedded.binaries import BINDIR_VARIABLE, OLDEST_MAJOR

WHERE = f"MAINSPRING_TEST_PG{OLDEST_MAJOR}_BINDIR"
# where the packages of Debian, Red Hat and Homebrew put it
PLACES = (
    f"/usr/lib/postgresql/{OLDEST_MAJOR}/bin",
    f"/usr/pgsql-{OLDEST_MAJOR}/bin",
    f"/opt/homebrew/opt/postgresql@{OLDEST_MAJOR}/bin",
    f"/usr/local/opt/postgresql@{OLDEST_MAJOR}/bin",
)
NOT_FOUND = f"no PostgreSQL {OLDEST_MAJOR} here: apt-get install postgresql-{OLDEST_MAJOR}, or say where its programs are in {WHERE}"
# every statement, and every promise of the stores, as the server has them: part of `make test`
SMALL_CORE = (
    *("tests/conformance", "tests/races", "tests/walls", "tests/test_sql.py", "tests/test_migrate.py"),
    *("-k", "not memory and not library and not random"),
)
CORE = (
    *("tests/conformance", "tests/races", "tests/walls", "tests/locks", "tests/spine", "tests/triggers"),
    *("tests/agents", "tests/boards", "tests/test_sql.py", "tests/test_migrate.py"),
)


def programs() -> Path | None:
    """The folder with its programs, None where there is none."""
    named = os.environ.get(WHERE)
    return next((place for place in _places(named) if (place / "postgres").is_file()), None)


def _places(named: str | None) -> Iterator[Path]:
    yield from map(Path, [named] if named else PLACES)


def run(
    bindir: Path, arguments: Sequence[str], *, told: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run pytest on it, in a process of its own."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ours.pop("MAINSPRING_TEST_DATABASE_URL", None)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *arguments],
        env=ours | {BINDIR_VARIABLE: str(bindir)},
        cwd=Path(__file__).parents[1],
        stdout=told,
        stderr=subprocess.STDOUT if told else None,
        text=True,
        check=False,
    )


def main() -> int:
    """Run the core, or say that there is nothing to run it on."""
    bindir = programs()
    if bindir is None:
        print(NOT_FOUND, file=sys.stderr)
        return 1
    print(f"on {bindir}", flush=True)
    return run(bindir, [*CORE, "-m", "not processes", *sys.argv[1:]]).returncode


if __name__ == "__main__":
    sys.exit(main())
