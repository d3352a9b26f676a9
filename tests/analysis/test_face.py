"""What a notebook imports from `analysis`, and the page that shows it."""

from pathlib import Path

import pytest

import analysis
from analysis import read_study
from analysis.statistics.estimate import Estimate, columns
from study.errors import UserError
from tests.conftest import ROOT, run_alone


def test_the_page_answers_its_question(planted: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    """Seeds 0, 1 and 2 of sim-verbose add 8, 9 and 10 words a step for five steps: 40, 45 and 50.

    One answer of the 16 of the last step has a script of 15 words besides: 15 / 16 more. The mean
    is 45.94, the SD 5, and t(.975, 2) / sqrt 3 is 2.484: 45.94 +- 12.42."""
    page = (ROOT / "docs" / "notebooks.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line]) <= 5
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "quickstart").symlink_to(planted)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    said = capsys.readouterr().out
    assert said == "words, end minus start: +45.94 [+33.52, +58.36] over 3 runs\n"


def test_what_a_study_does_not_have_is_said(planted: Path) -> None:
    study = read_study(planted)
    with pytest.raises(UserError, match="Legal are length"):
        study.shift("lenght", judge="sim-fair")
    with pytest.raises(UserError, match="It has sim-fair, sim-flaky, sim-verbose"):
        study.shift("length", judge="sim-nobody")


def test_the_face_offers_its_names_and_imports_nothing_before() -> None:
    for name in analysis.__all__:
        assert getattr(analysis, name).__name__ == name
    with pytest.raises(AttributeError, match="it offers Estimate, Run"):
        analysis.nothing  # noqa: B018
    script = "import sys, analysis; print([m for m in ('pandas', 'IPython') if m in sys.modules])"
    assert run_alone(script) == "[]\n"


def test_an_estimate_as_a_row_of_a_table() -> None:
    estimate = Estimate(2.0, 1.0, 3.5, 4, "run", note="why")
    row = {"slope": 2.0, "low": 1.0, "high": 3.5, "runs": 4, "note": "why"}
    assert estimate.row("slope", n="runs") == row
    assert str(estimate) == "+2 [+1, +3.5] over 4 runs (why)"
    assert list(columns(estimate)) == ["value", "low", "high", "n", "unit", "level", "note"]
