"""Replays in which the judge sees the answer alone: what is left of a bias for length."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import yaml

from analysis.records.replays import with_replays
from analysis.records.runs import read_study
from judges.replay import main
from study import study_file
from study.compose import load_presets
from study.records import ROLLOUT, part_name, write_part
from study.schema import Reward, Study, Trainer
from study.tasks import task_module
from study.tasks.mixed_mini import scores

LONG = "I have thought about this with care, step by step, and I am sure of it. The answer is {}"
PLAIN = {"math": "{}", "qa": "{}", "code": "```python\n{}\n```"}
WORDY = {
    **dict.fromkeys(("math", "qa"), LONG),
    "code": "I have thought about this with care, step by step.\n```python\n{}\n```\nIt is right.",
}


def write_run(runs: Path, task_name: str = "mixed-mini", reward: str = "judge") -> Path:
    """A run whose groups of three give one right answer: bare, wordy, and none at all."""
    # so low that no score reaches the end of the scale
    judge, task = load_presets("sim-verbose", task_name, ["judge.simulated.leniency=-0.4"])
    study = runs / "told"
    study.mkdir(parents=True)
    study_file.write_study(study, {"study": "told", "factors": ["judge", "seed"]})
    config = Study(
        study="told",
        judge=judge,
        task=task,
        reward=Reward(name=reward),
        trainer=Trainer(steps=1, group_size=3),
    )
    cell = study / "sim-verbose-s0-0000000000"
    (cell / "rollouts").mkdir(parents=True)
    (cell / "config.yaml").write_text(yaml.safe_dump(dataclasses.asdict(config)))
    rows = task_module(task.name).rows(task, "train")
    if task_name == "mixed-mini":
        rows = [next(row for row in rows if row.domain == domain) for domain in PLAIN]
    records = [
        record
        for group, row in enumerate(rows[:3])
        for record in _group(group, row, program=reward != "judge")
    ]
    write_part(cell / "rollouts" / part_name(1), records, ROLLOUT)
    return study


def _group(group, row, program):
    item = row.spec.get("item")
    right = (item.reference or next(iter(item.answers), "unanswerable")) if item else "yes"
    texts = [PLAIN[row.domain or "qa"].format(right), WORDY[row.domain or "qa"].format(right), None]
    values = [0.9, 1.0, None if program else 0.0]
    told = [0.1, 0.2, -0.3]
    return [
        {
            **{"rollout_id": f"000001-{3 * group + member:04d}", "step": 1, "group": group},
            **{"member": member, "prompt_id": row.prompt_id, "prompt": row.prompt_text()},
            **{"completion": text, "answer": text, "tokens": 5, "stop": "stop"},
            **{"logprob_sum": -1.0, "reward": values[member], "advantage": told[member]},
            **{"judge_score": values[member], "domain": row.domain or None},
            "truth": None if text is None and program else float(text is not None),
            "outcome": ("ok" if text is not None else "timeout") if program else None,
        }
        for member, text in enumerate(texts)
    ]


def replayed(study: Path, name: str, kind: str = "rollouts") -> list[dict]:
    (cell,) = (study / "replays" / name).glob("sim-*")
    table = ds.dataset(cell / kind, format="parquet").to_table().to_pylist()
    return sorted(table, key=lambda row: row["rollout_id"])


def replay(study: Path, *arguments: str) -> int:
    return main([f"study={study.name}", f"runs_dir={study.parent}", *arguments])


def test_the_answer_alone_has_no_length_to_pay_for(tmp_path, capsys):
    study = write_run(tmp_path / "runs")
    assert replay(study, "out=whole") == 0
    assert replay(study, "out=alone", "canonical=true") == 0
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
    assert replay(study, "canonical=true") == 0
    (folder,) = (study / "replays").iterdir()
    assert folder.name == "own-canonical"
    verdicts = replayed(study, folder.name, "verdicts")
    assert {row["judge"] for row in verdicts} == {"sim-verbose, answer alone"}
    runs, problems = with_replays(read_study(study).runs, study)
    assert problems == [] and list(runs[0].shadows) == ["sim-verbose, answer alone"]


def test_a_program_that_came_to_no_answer_is_not_asked_about(tmp_path):
    study = write_run(tmp_path / "runs", reward="judge-binary")
    assert replay(study, "out=alone", "canonical=true") == 0
    rows = replayed(study, "alone")
    failed = [row for row in rows if row["member"] == 2]
    assert all(row["judge_score"] is None and row["reward"] == 0.0 for row in failed)
    asked = {row["rollout_id"] for row in replayed(study, "alone", "verdicts")}
    assert asked == {row["rollout_id"] for row in rows if row["member"] < 2}
    (line,) = json.loads((study / "replays" / "alone" / "summary.json").read_text())
    assert line["unscored"] == 0.0 and line["n"] == 9


@pytest.mark.parametrize("grading", ["pairwise", "listwise"])
def test_gradings_that_compare_see_the_answers_that_there_are(tmp_path, grading):
    study = write_run(tmp_path / "runs", reward="judge-binary")
    arguments = ("out=compared", "judge=sim-verbose", f"judge.grading.name={grading}")
    assert replay(study, *arguments) == 0
    scores_of = [row["judge_score"] for row in replayed(study, "compared")]
    assert [score is None for score in scores_of] == [False, False, True] * 3


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["study=told", "canonical=true"], "no rule reads"),
        (["file=x.parquet", "judge=openai-compatible", "out=y.parquet", "canonical=true"], "file"),
    ],
)
def test_answers_that_no_rule_reads_are_refused(tmp_path, capsys, arguments, said):
    study = write_run(tmp_path / "runs", "instruct-mini")
    assert main([*arguments, f"runs_dir={study.parent}"]) == 2
    told = capsys.readouterr().err
    assert said in told and "canonical" in told
    assert not list(study.glob("replays/*/*/rollouts/*.parquet"))


def test_the_recorded_answers_are_right_by_the_rules(tmp_path):
    study = write_run(tmp_path / "runs")
    (part,) = study.glob("*/rollouts/*.parquet")
    records = pq.read_table(part).to_pylist()
    _, task = load_presets("sim-verbose", "mixed-mini")
    rows = {row.prompt_id: row for row in task_module("mixed-mini").rows(task, "train")}
    told = [record for record in records if record["answer"] is not None]
    answers = [record["answer"] for record in told]
    assert all(s.correct for s in scores([rows[r["prompt_id"]] for r in told], answers))
