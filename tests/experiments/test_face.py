"""The faces of `experiments` and `experiments.launch`: what they name is there, and is light."""

import subprocess
import sys

import pytest

import experiments
from experiments import launch
from tests.conftest import ROOT


def test_what_the_faces_name_is_there():
    assert sorted(experiments.FACE) == sorted(experiments.__all__)
    for name, module in {**experiments.FACE, **launch.PARTS}.items():
        face = experiments if name in experiments.FACE else launch
        assert getattr(face, name).__module__ == module


def test_a_name_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(
        AttributeError, match="'experiments' has no attribute 'Scorers'; it offers Scorer"
    ):
        _ = experiments.Scorers
    with pytest.raises(AttributeError, match="it offers check, show_plan"):
        _ = launch.runs


@pytest.mark.parametrize("module", ["experiments", "experiments.launch", "experiments.sweep"])
def test_importing_loads_nothing_heavy(module):
    code = (
        f"import sys, {module}\n"
        "heavy = {'torch', 'transformers', 'trl', 'mlflow', 'pandas', 'scipy', 'aiohttp'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr
