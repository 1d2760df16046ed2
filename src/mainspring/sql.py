"""Named SQL: the statements of a folder of .sql files, read once. A leaf."""

from __future__ import annotations

import re
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


class Queries:
    """The statements of a package's .sql files: blocks headed `-- name: verb`, native `$1` parameters.

    `queries["verb"]` is the text; an unknown name fails where it is looked up, which is when its module loads.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        self._texts: dict[str, str] = {}
        for entry in sorted(resources.files(package).iterdir(), key=lambda path: path.name):
            if entry.name.endswith(".sql"):
                self._read(entry.read_text(encoding="utf-8"))

    def _read(self, text: str) -> None:
        parts = _NAME.split(text)
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            if name in self._texts:
                raise ValueError(f"{self.package}: two statements are named {name}")
            self._texts[name] = body.strip().rstrip(";")

    def __getitem__(self, name: str) -> str:
        try:
            return self._texts[name]
        except KeyError:
            raise LookupError(f"{self.package} has no statement named {name}") from None

    def items(self) -> tuple[tuple[str, str], ...]:
        """Return every (name, text), for the test that prepares each on the migrated schema."""
        return tuple(self._texts.items())
