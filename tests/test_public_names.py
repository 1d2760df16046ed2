"""What users import stands at the top of the package, whoever asks: the interpreter, a type checker, or `dir`."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import mainspring


def test_every_public_name_is_there_and_listed():
    missing = [name for name in mainspring.__all__ if not hasattr(mainspring, name)]
    assert missing == []
    assert set(mainspring.__all__) <= set(dir(mainspring))


def test_type_checkers_are_told_the_same_names():
    tree = ast.parse(Path(mainspring.__file__).read_text("utf-8"))
    [block] = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    told = [alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(told) == sorted(mainspring.__all__)


def test_the_package_alone_imports_nothing_heavy():
    asked = "import sys, mainspring; print(sorted({'asyncpg', 'asyncio', 'prometheus_client'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_library_user_needs_no_module_below_the_package():
    root = Path(__file__).parents[1]
    pages = [root / "README.md", root / "docs" / "how-to" / "library.md"]
    below = [
        f"{page.name}: {line}"
        for page in pages
        for line in page.read_text("utf-8").splitlines()
        if line.startswith(("from mainspring.", "import mainspring.")) and "mainspring.sdk" not in line
    ]
    assert below == []
