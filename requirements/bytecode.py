"""Compile what the commands import, where Python itself would not keep it.

    .venv/bin/python requirements/bytecode.py

uv installs sources alone, and Python keeps what it compiles of them, but not where
PYTHONDONTWRITEBYTECODE is set, as in many containers: each process would then take 13 s of CPU
longer to import the trainer. All files that uv installs would take 70 s; most are never read.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

FOLDERS = ("study", "judges", "analysis", "experiments")


def imports(folders: Iterable[Path]) -> Iterator[tuple[str, list[str]]]:
    """Modules that the files of these folders import anywhere, each with the names taken of it."""
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((alias.name, []) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module, [alias.name for alias in node.names]


def compile_imports(root: Path) -> None:
    """Import them here, with leave to keep what is compiled; what is not installed is left out."""
    sys.dont_write_bytecode = False
    for module, names in imports(root / folder for folder in FOLDERS):
        if module.partition(".")[0] not in FOLDERS:
            with suppress(Exception):
                imported = importlib.import_module(module)
                for name in names:
                    getattr(imported, name, None)


if __name__ == "__main__":
    if sys.dont_write_bytecode:
        compile_imports(Path(__file__).resolve().parents[1])
