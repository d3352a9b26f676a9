"""The faces of `experiments` and `experiments.launch`: what they name is there, and is light."""

import pytest

import experiments
from experiments import launch
from tests.conftest import run_alone


def test_what_the_faces_name_is_there_and_nothing_else():
    assert sorted(experiments.FACE) == sorted(experiments.__all__)
    for name, module in {**experiments.FACE, **launch.PARTS}.items():
        face = experiments if name in experiments.FACE else launch
        assert getattr(face, name).__module__ == module
    said = "'experiments' has no attribute 'Scorers'; it offers Scorer"
    with pytest.raises(AttributeError, match=said):
        _ = experiments.Scorers
    with pytest.raises(AttributeError, match="it offers check_sweep, show_plan"):
        _ = launch.runs


def test_importing_loads_nothing_heavy():
    heavy = {"torch", "transformers", "trl", "mlflow", "pandas", "scipy", "aiohttp"}
    program = "import sys, experiments, experiments.launch, experiments.sweep\n"
    assert run_alone(f"{program}print({heavy} & set(sys.modules))") == "set()\n"
