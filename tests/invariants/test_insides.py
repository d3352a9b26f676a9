"""docs/insides.md names every private name of a library that the packages use, and no other."""

import ast
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGES = ("study", "judges", "analysis", "experiments", "judgedrift")
PAGE = (ROOT / "docs" / "insides.md").read_text(encoding="utf-8")
PUBLIC = {"_asdict", "_exit", "_fields", "_thread"}
"""Of the standard library, and documented."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and not name.endswith("_")


def private_names(source: str) -> set[str]:
    """Private modules and attributes in a source that are not its own."""
    tree, own, modules, names = ast.parse(source), set(), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.partition(".")[0] in PACKAGES:
                modules |= {alias.asname or alias.name for alias in node.names}
            else:
                names |= {each.name for each in node.names if is_private(each.name)}
                names |= {module} if any(map(is_private, module.split("."))) else set()
        elif isinstance(node, ast.Import):
            names |= {
                each.name for each in node.names if any(map(is_private, each.name.split(".")))
            }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = ast.unparse(node.value)
            ours = node.attr in own and owner != "super()"
            if not ours and owner not in modules and isinstance(node.ctx, ast.Load):
                names.add(node.attr)
    return names - PUBLIC


def rows() -> list[tuple[str, set[str], list[str]]]:
    """File, names and tests of each line of the page."""
    lines = [line.split("|") for line in PAGE.splitlines() if line.count("|") == 6]
    cells = [[re.findall(r"`([^`]+)`", cell) for cell in line] for line in lines]
    return [(line[2][0], set(line[3]), line[5]) for line in cells if line[2]]


def used() -> dict[str, set[str]]:
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    names = {path: private_names(path.read_text(encoding="utf-8")) for path in paths}
    return {str(path.relative_to(ROOT)): here for path, here in names.items() if here}


def test_every_private_name_is_on_the_page():
    listed: dict[str, set[str]] = {}
    for file, names, _ in rows():
        listed[file] = listed.get(file, set()) | names
    missing = {file: names - listed.get(file, set()) for file, names in used().items()}
    assert {file: names for file, names in missing.items() if names} == {}


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}-{min(row[1])}")
def test_what_is_on_the_page_is_in_the_code(row):
    file, names, tests = row
    source = (ROOT / file).read_text(encoding="utf-8")
    assert {name for name in names if name not in source} == set()
    assert tests and all(Path(ROOT, test).is_file() for test in tests)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from hydra._internal.utils import x", {"hydra._internal.utils"}),
        ("from mlflow.store import _revision", {"_revision"}),
        ("import torch._dynamo", {"torch._dynamo"}),
        ("def f(model):\n    return model._config", {"_config"}),
        ("class A(B):\n    def _step(self):\n        return super()._step()", {"_step"}),
        ("class A:\n    def _step(self): ...\n    def f(self):\n        self._step()", set()),
        ("from study import cell\ncell._read()", set()),
        ("import os\nos._exit(0)", set()),
        ("x.hydra._target_", set()),
    ],
)
def test_private_names_are_seen(source, names):
    assert private_names(source) == names
