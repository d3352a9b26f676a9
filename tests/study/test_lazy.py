"""The face of `study`, what importing it loads, and the examples that its modules show."""

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

import study
from tests.conftest import ROOT, run_alone
from tests.invariants.test_house import FLOORS

HEAVY = ("torch", "mlflow", "aiohttp", "transformers")
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(study.__path__, "study.")
    if ".inside." not in module.name  # scripts of the sandbox
)


def loaded(code: str) -> set[str]:
    """Names in ``sys.modules`` after ``code``, in a process of its own."""
    return set(run_alone(f"import sys\n{code}\nprint(*sys.modules)").split())


def test_every_name_of_the_face_is_there() -> None:
    promised = "Study Judge Row Truth Verdict Outcome Cell UserError load_judge features advantages"
    assert set(dir(study)) == set(promised.split())
    assert all(getattr(study, name) is not None for name in promised.split())
    assert study.Cell is importlib.import_module("study.cell.cells").Cell
    with pytest.raises(AttributeError, match="no attribute 'Cells'"):
        study.Cells  # noqa: B018


PACKAGES = [
    ".".join(path.parent.relative_to(ROOT).parts)
    for floor in FLOORS
    for path in sorted((ROOT / floor).rglob("__init__.py"))
    if "import " in path.read_text(encoding="utf-8")
]
"""Those that hold more than their rooms."""


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_offers_its_own_names_alone(name: str) -> None:
    """What TAB shows behind it: nothing that it imports for itself, and every name can be had."""
    package = importlib.import_module(name)
    names = [each for each in dir(package) if not each.startswith("_")]
    assert names and not {*names} & {"TYPE_CHECKING", "annotations", "lazily", "Path", "Any"}
    assert not [each for each in names if isinstance(getattr(package, each), ModuleType)] or (
        name == "study"  # `study.features`
    )


def test_neither_the_face_nor_the_whole_package_loads_what_is_heavy() -> None:
    assert {name for name in loaded("import study") if name.startswith("study.")} == {"study.lazy"}
    names = loaded("\n".join(f"import {name}" for name in MODULES))
    assert {"study.config.schema", "study.config.compose", "study.cell.records"} <= names
    assert not names & set(HEAVY)


@pytest.mark.parametrize("name", ["study", *MODULES])
def test_examples_in_docstrings_hold(name: str) -> None:
    module = importlib.import_module(name)
    if ">>>" in (module.__doc__ or ""):
        result = doctest.testmod(module)
        assert result.attempted and not result.failed
