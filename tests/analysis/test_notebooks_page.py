"""The five questions of docs/notebooks.md, typed as the page shows them, on a study of two judges
that was trained for real; and what a study shows of itself."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from IPython.core.formatters import DisplayFormatter
from pandas.testing import assert_series_equal

from analysis import read_study
from analysis.export import main as export
from analysis.report.evidence import of_records
from analysis.study import Study
from study.errors import UserError
from study.features import FEATURES
from tests.analysis.conftest import write_study
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
QUESTIONS = re.findall(r"### ([^\n]+)\n```python\n(.*?)```", PAGE, re.DOTALL)
MOST_LINES = 5


@pytest.fixture(scope="module")
def real(small_study: Path) -> Study:
    return read_study(small_study)


@pytest.fixture(scope="module")
def study(planted: Path) -> Study:
    return read_study(planted)


def test_each_of_the_five_questions_is_answered_by_five_lines(
    small_study: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    """Of each, the value of the last line is what a notebook shows. This study has sim-flaky in
    place of sim-verbose."""
    (tmp_path / "runs").mkdir()
    for name in ("quickstart", "quickstart-2"):
        (tmp_path / "runs" / name).symlink_to(small_study)
    monkeypatch.chdir(tmp_path)
    first = PAGE.split("## In your own notebook")[1].split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    shown = {"": _shown(first, names)}
    assert len(QUESTIONS) == 5
    for question, code in QUESTIONS:
        assert len([line for line in code.splitlines() if line]) <= MOST_LINES, question
        shown[question] = _shown(code.replace("sim-verbose", "sim-flaky"), names)
    study, longer = names["study"], names["longer"]
    assert len(repr(study)) < 300 and "sim-flaky" in study._repr_html_()
    assert capsys.readouterr().out == f"words, {study.effects().where}: {longer}\n"
    assert longer.n == 2 and longer.unit == "seed pair"
    worst = shown["Which are the five worst answers?"]
    assert list(worst["gap"]) == sorted(study.answers()["gap"].dropna(), reverse=True)[:5]
    verdicts = shown["What did the judge say of one?"]
    assert {*verdicts["role"]} == {"acting", "shadow"} and verdicts["reply"].notna().all()
    score = verdicts.loc[verdicts["role"] == "acting", "score"].mean()
    assert score == pytest.approx(worst.iloc[0]["judge_score"])
    assert shown["Truth against score, step by step"].axes
    two = shown["Two studies"]
    assert {*two["arm"]} == {*study.arms()["arm"]} and (two["diff"] == 0).all()


def _shown(code: str, names: dict[str, Any]) -> Any:
    """Run the lines among the names; the value of the last where it is an expression."""
    *lines, last = code.strip().splitlines()
    exec("\n".join(lines), names)
    try:
        return eval(last, names)
    except SyntaxError:
        return exec(last, names)


def test_frames_have_the_columns_of_the_export(small_study: Path, real: Study, tmp_path) -> None:
    out = tmp_path / "answers.parquet"
    words = [f"study={small_study.name}", f"runs_dir={small_study.parent}", "format=parquet"]
    assert export([*words, f"out={out}"]) == 0
    exported = pq.read_table(out).to_pandas()
    verdicts = pd.concat([real.verdicts(), *_held_out(real)])
    asked = exported[exported["judge"].notna()]
    assert list(verdicts) == list(exported) and len(verdicts) == len(asked)
    answers = real.answers()
    assert {*answers} < {*exported} and {*FEATURES} < {*answers}
    key = ["cell", "rollout_id"]
    rows = exported[(exported["set"] == "training") & (exported["role"] == "acting")]
    both = answers.merge(rows, on=key, suffixes=("", "_exported"), validate="one_to_one")
    assert len(both) == len(answers)
    for name in ("judge_score", "truth", "length", "answer", "reply", "judge"):
        assert_series_equal(
            both[name], both[f"{name}_exported"], check_names=False, check_dtype=False
        )


def _held_out(study: Study) -> list[pd.DataFrame]:
    try:
        return [study.verdicts(on="held_out")]
    except UserError:
        return []


def test_an_answer_is_one_row_with_every_behaviour_and_a_missing_score_has_no_gap(study) -> None:
    """Step 3 of seed 1 of sim-verbose has 6 + 1 + 9 x 2 words; its gap is 0.01 x 19."""
    answers = study.answers(arm="sim-verbose", seed=1, step=3)
    assert len(answers) == 16 and {*answers["length"]} == {25.0}
    assert answers["gap"].to_numpy() == pytest.approx(0.19)
    flaky = study.answers(arm="sim-flaky")
    lost = flaky[flaky["member"] == 3]
    assert {*lost["outcome"]} == {"unparsed"} and lost[["gap", "judge_score"]].isna().all(axis=None)
    few = study.answers(columns=["gap", "step"], step=[1, 2])
    assert list(few) == ["gap", "step"] and {*few["step"]} == {1, 2}
    assert study.answers().attrs["problems"] == study.problems


def test_several_votes_are_one_row_and_their_words_stand_below_each_other(make_study) -> None:
    study = make_study(judges=["sim-fair"], seeds=1, steps=1)
    part = next(study.glob("*/verdicts/step-000001.parquet"))
    (row,) = pq.read_table(part).slice(0, 1).to_pylist()
    votes = [
        {**row, "sample_index": vote, "outcome": outcome, "text": text, "reason": ""}
        for vote, outcome, text in ((1, "scored", "second"), (0, "unparsed", "first"))
    ]
    pq.write_table(pa.Table.from_pylist(votes), part)
    answers = read_study(study).answers()
    assert len(answers) == 16
    first = answers.iloc[0]
    assert (first["outcome"], first["reply"]) == ("scored", "first\n\nsecond")
    assert first["reason"] == "" and answers["judge"].isna().sum() == 15


def test_a_curve_is_the_mean_over_runs_with_the_intervals_of_the_report(study) -> None:
    curve = study.curve("length", arm="sim-verbose")
    assert list(curve["mean"]) == pytest.approx([7, 16, 25, 34, 43, 52.9375])
    table = of_records(study).behaviour_curves
    shown = table[(table["metric"] == "length") & (table["arm"] == "sim-verbose")]
    assert np.allclose(curve[["mean", "low", "high"]], shown[["mean", "low", "high"]])


def test_a_table_of_shifts_has_the_estimate_of_each_arm(study: Study) -> None:
    table = study.shift("length", beyond="sim-fair").set_index("arm")
    assert list(table.index) == ["sim-flaky", "sim-verbose"]
    for arm, row in table.iterrows():
        one = study.shift("length", str(arm), beyond="sim-fair")
        assert (row["shift"], row["low"], row["high"]) == (one.value, one.low, one.high)
    assert study.shift("length", judge="sim-flaky") == study.shift("length", "sim-flaky")


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda s: s.answers(columns=["lenght"]), "Did you mean length?"),
        (lambda s: s.answers(columns=["feature/length"]), "Did you mean length?"),
        (lambda s: s.verdicts(columns=["text"]), "Did you mean answer?"),
        (lambda s: s.answers(columns="step"), r"Type columns=\['step'\]"),
        (lambda s: s.answers(arm="sim-fiar"), "Did you mean sim-fair?"),
        (lambda s: s.worst(arm="sim-fiar"), "Did you mean sim-fair?"),
        (lambda s: s.curve("truht"), "Did you mean truth?"),
        (lambda s: s.plot("length", arm="verbose"), "Did you mean sim-verbose?"),
        (lambda s: s.shift("length", "sim-fiar"), "Did you mean sim-fair?"),
        (lambda s: s.answers(seed=7), "Its seeds are 0, 1, 2"),
        (lambda s: s.answers(step=7), "The last recorded step is 6"),
        (lambda s: s.answers(on="heldout"), "Type on='held_out' or on='rollouts'"),
        (lambda s: s.curve("truth", on="held_out"), "Type on='rollouts'"),
        (lambda s: s.worst(0), "Give 1 or more"),
    ],
)
def test_a_name_that_is_not_there_is_an_error_with_the_nearest(study, ask, said) -> None:
    with pytest.raises(UserError, match=said):
        ask(study)


def test_a_study_without_truth_has_no_worst_answers(make_study) -> None:
    with pytest.raises(UserError, match="No answer has both"):
        read_study(make_study(truth=False, seeds=1, steps=1)).worst()


def test_a_study_shows_itself_in_a_line_and_as_a_table(study: Study, tmp_path: Path) -> None:
    shown = repr(study)
    assert shown.startswith("<Study planted: 3 arms, 3 seeds, 9 cells (9 done), ")
    assert max(map(len, map(repr, (study, study.runs[0], study.effects())))) < 300
    arms = study.arms().set_index("arm")
    assert list(arms.loc["sim-verbose"]) == [
        "0, 1, 2", "6", "3 done", "0.41 \u2192 0.41", "0.42 \u2192 0.87"
    ]  # fmt: skip
    unfinished = read_study(write_study(tmp_path / "new", seeds=1, steps=0, state="new"))
    assert {*unfinished.arms()["truth"]} == {"\u2013"} and "3 new" in repr(unfinished)
    assert unfinished.answers().empty and unfinished.shift("truth").empty
    html = read_study(write_study(tmp_path / "x", ["<b>judge"], seeds=1, steps=1))._repr_html_()
    assert "<b>judge" not in html and "&lt;b&gt;judge" in html


def test_a_figure_is_shown_without_pyplot(study: Study) -> None:
    data, _ = DisplayFormatter().format(study.plot("length", "truth"))
    assert data["image/png"].startswith(b"\x89PNG")
