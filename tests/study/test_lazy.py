"""The face of `study`, what importing it loads, and the examples that its modules show."""

import doctest
import importlib
import pkgutil

import pytest

import study
from tests.conftest import run_alone

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
