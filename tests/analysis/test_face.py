"""What a notebook imports from `analysis`; `test_notebooks_page.py` types what the page shows."""

from pathlib import Path

import pytest

import analysis
from analysis import read_study
from analysis.report.evidence import Evidence, of_records
from analysis.statistics.estimate import Estimate, columns
from analysis.study import Study
from study.errors import UserError
from tests.conftest import run_alone


@pytest.fixture(scope="module")
def study(planted: Path) -> Study:
    return read_study(planted)


@pytest.fixture(scope="module")
def evidence(study: Study) -> Evidence:
    return of_records(study)


def test_a_shift_is_the_number_of_the_report(study: Study, evidence: Evidence) -> None:
    """Seeds 0, 1 and 2 of sim-verbose add 8, 9 and 10 words a step for five steps: 40, 45 and 50.

    One answer of the 16 of the last step has a script of 15 words besides: 15 / 16 more. The mean
    is 45.94. The SD is 5; its interval is the report's, which knows the other comparisons too and
    is narrower than Student's, 45.94 +- 12.42."""
    said = f"words, {study.effects().where}: {study.shift('length', 'sim-verbose')}"
    table = evidence.feature_shifts
    row = table[(table["arm"] == "sim-verbose") & (table["metric"] == "length")].iloc[0]
    assert row["shift"] == pytest.approx(45.9375) and 33.52 < row["low"] < row["high"] < 58.36
    number = f"+45.94 [{row['low']:+.4g}, {row['high']:+.4g}] over 3 runs"
    assert said == f"words, on rollouts, first and last tenth of the steps: {number}"


def test_what_a_study_does_not_have_is_said(study: Study) -> None:
    with pytest.raises(UserError, match="Legal are judge_score, truth, reward, gap, length"):
        study.shift("lenght", judge="sim-fair")
    with pytest.raises(UserError, match="It has sim-fair, sim-flaky, sim-verbose"):
        study.shift("length", judge="sim-nobody")
    with pytest.raises(UserError, match="Type on=rollouts"):
        study.shift("length", judge="sim-fair", on="held_out")


def test_a_difference_is_the_one_of_the_report(study: Study, evidence: Evidence) -> None:
    assert study.effects().where == evidence.effects.where
    for table in (evidence.score_shifts, evidence.feature_shifts):
        for row in table[table["diff"].notna()].to_dict("records"):
            pair = study.shift(row["metric"], row["arm"], beyond=evidence.base)
            shown = (row["diff"], row["diff_low"], row["diff_high"])
            assert (pair.value, pair.low, pair.high) == pytest.approx(shown, nan_ok=True)


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
