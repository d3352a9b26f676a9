"""Replays in which the judge sees the answer alone: what is left of a bias for length."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from analysis.records.replays import with_replays
from analysis.records.runs import read_study
from judges.replay import main
from study.config.compose import load_presets
from study.tasks import mixed_mini
from tests.judges.answered_study import PLAIN, write_run
from tests.judges.test_replay import replay, rows


def replayed(study: Path, name: str, kind: str = "rollouts") -> list[dict]:
    (cell,) = (study / "replays" / name).glob("sim-*")
    return rows(cell, kind)


def test_the_answer_alone_has_no_length_to_pay_for(tmp_path, capsys):
    study = write_run(tmp_path / "runs")
    replay(study, "out=whole")
    replay(study, "out=alone", "canonical=true")
    whole, alone = ([row["judge_score"] for row in replayed(study, n)] for n in ("whole", "alone"))
    for group in range(3):
        bare, wordy = 3 * group, 3 * group + 1
        assert whole[wordy] > whole[bare], "the judge pays for length"
        assert alone[wordy] == alone[bare]
    (line,) = json.loads((study / "replays" / "alone" / "summary.json").read_text())
    # recorded: .9 - 1 and 1 - 1 for right answers, 0 - 0 where there is none
    assert line["original_gap"] == pytest.approx(-0.1 / 3)
    truths = [1.0, 1.0, 0.0] * 3
    expected = sum(s - t for s, t in zip(alone, truths, strict=True)) / 9
    assert line["gap"] == pytest.approx(expected)
    assert {name: each["n"] for name, each in line["domains"].items()} == dict.fromkeys(PLAIN, 3)
    assert "on the answers alone, -0.033 as recorded" in capsys.readouterr().out


def test_a_judge_of_answers_alone_is_another_judge(tmp_path):
    study = write_run(tmp_path / "runs")
    replay(study, "canonical=true")
    (folder,) = (study / "replays").iterdir()
    assert folder.name == "own-canonical"
    verdicts = replayed(study, folder.name, "verdicts")
    assert {row["judge"] for row in verdicts} == {"sim-verbose, answer alone"}
    runs, problems = with_replays(read_study(study).runs, study)
    assert problems == [] and list(runs[0].shadows) == ["sim-verbose, answer alone"]


def test_a_program_that_came_to_no_answer_is_not_asked_about(tmp_path):
    study = write_run(tmp_path / "runs", reward="judge-binary")
    replay(study, "out=alone", "canonical=true")
    rows = replayed(study, "alone")
    failed = [row for row in rows if row["member"] == 2]
    assert all(row["judge_score"] is None and row["reward"] == 0.0 for row in failed)
    judged_ids = {row["rollout_id"] for row in replayed(study, "alone", "verdicts")}
    assert judged_ids == {row["rollout_id"] for row in rows if row["member"] < 2}
    (line,) = json.loads((study / "replays" / "alone" / "summary.json").read_text())
    assert line["unscored"] == 0.0 and line["n"] == 9


@pytest.mark.parametrize("grading", ["pairwise", "listwise"])
def test_gradings_that_compare_see_the_answers_that_there_are(tmp_path, grading):
    study = write_run(tmp_path / "runs", reward="judge-binary")
    arguments = ("out=compared", "judge=sim-verbose", f"judge.grading.name={grading}")
    replay(study, *arguments)
    scores_of = [row["judge_score"] for row in replayed(study, "compared")]
    assert [score is None for score in scores_of] == [False, False, True] * 3


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["study=told", "canonical=true"], "no rule reads"),
        (["file=x.parquet", "judge=openai-compatible", "out=y.parquet", "canonical=true"], "file"),
    ],
)
def test_answers_that_no_rule_reads_are_refused(tmp_path, capsys, arguments, message):
    study = write_run(tmp_path / "runs", "instruct-mini")
    assert main([*arguments, f"runs_dir={study.parent}"]) == 2
    errors = capsys.readouterr().err
    assert message in errors and "canonical" in errors
    assert not list(study.glob("replays/*/*/rollouts/*.parquet"))


def test_the_recorded_answers_are_right_by_the_rules(tmp_path):
    (part,) = write_run(tmp_path / "runs").glob("*/rollouts/*.parquet")
    records = pq.read_table(part).to_pylist()
    _, task = load_presets("sim-verbose", "mixed-mini")
    by_prompt = {row.prompt_id: row for row in mixed_mini.TASK.rows(task, "train")}
    with_answer = [record for record in records if record["answer"] is not None]
    answers = [record["answer"] for record in with_answer]
    rows_of = [by_prompt[record["prompt_id"]] for record in with_answer]
    assert all(each.correct for each in mixed_mini.TASK.scores(rows_of, answers))
