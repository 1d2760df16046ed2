"""Writes docs/reference/ from the code: states, settings, commands, routes and metrics. `make docs` runs it.

    python docs/generate.py           write the pages
    python docs/generate.py --check   write nothing; exit 1 when a committed page is not what the code says

What the code cannot say by itself, why a move happens and what a variable is for, stands in `making/` in tables whose keys are the
code's own: a state, a move or a variable without a sentence is a KeyError, not a gap in the page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from making import commands, metrics, routes, settings, states

HERE = Path(__file__).parent / "reference"
MADE = "<!-- Made by docs/generate.py from the code. Change the code, then run `make docs`. -->\n"

PAGES: Mapping[str, Callable[[], str]] = {
    "states.md": states.states,
    "configuration.md": settings.configuration,
    "cli.md": commands.commands,
    "http.md": routes.http,
    "metrics.md": metrics.metrics,
}


def pages() -> Mapping[Path, str]:
    """Return every page with its text."""
    return {
        HERE / name: MADE + re.sub(r"\n{3,}", "\n\n", make()).rstrip() + "\n" for name, make in PAGES.items()
    }


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with --check say which of them are not what the code says."""
    made = pages()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path.name} is not what the code says: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    HERE.mkdir(exist_ok=True)
    for path, text in made.items():
        path.write_text(text, "utf-8")
    print(f"{len(made)} pages in {HERE.name}/, {len(stale)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
