"""Rewards under other failure policies, by hand and against what the trainer composes."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from analysis.records.policies import REPLAY_POLICIES, rewards_under
from analysis.records.runs import read_runs
from study.cell.folder import CellFolder
from study.cell.parts import read_part
from study.cell.records import CORRECTED, ROLLOUT, write_part
from study.rows import Criterion, Row, Rule
from study.tasks import TASKS
from study.tasks.instruct_mini import InstructMini

NAN = np.nan


def cell(folder: Path, on_failure: str = "unscored", **reward: Any) -> CellFolder:
    judge = {"name": "x", "endpoint": {"model": "x"}, "grading": {"name": "rubric_batch"}}
    config = {
        "study": "s",
        "seed": 0,
        "judge": judge | {"on_failure": on_failure},
        "policy": {"name": "tiny"},
        "task": {"name": "instruct-mini"},
        "reward": {"name": "judge"} | reward,
        "trainer": {"steps": 1, "max_completion_length": 20},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return CellFolder(folder)


def failing(**columns: Any) -> pd.DataFrame:
    """Two groups of two; the judge has no score of the second rollout. Truth is 1 throughout."""
    frame = pd.DataFrame(
        {
            "step": 1,
            "group": [0, 0, 1, 1],
            "member": [0, 1, 0, 1],
            "prompt_id": ["a", "a", "b", "b"],
            "answer": ["one", "two", "three", "four"],
            "tokens": [1.0, 15.0, 1.0, 1.0],
            "truth": 1.0,
            "truth_missing": None,
            "outcome": None,
            "judge_score": [0.6, NAN, 0.2, 0.4],
            "reward": [7.0, NAN, 8.0, 9.0],
        }
    )
    rules = columns.pop("rules", [None] * 4)
    return frame.assign(rules=pd.Series(rules, dtype="object"), **columns)


@pytest.mark.parametrize(
    "reward, at_zero",
    [
        ({}, 0.0),
        ({"truth_weight": 0.25}, 0.25),
        ({"name": "binary"}, 0.0),
        ({"name": "hybrid", "weights": {"judge": 0.5, "truth": 2.0}}, 2.0),
        ({"name": "verif"}, 0.0),
        ({"name": "rubric"}, 0.0),
        ({"name": "rule"}, 1.0),  # the judge has no say
        # 15 of 20 tokens, the last 10 of them penalised: half of the factor
        ({"overlong": {"buffer": 10, "factor": 0.5}}, -0.25),
    ],
)
def test_a_failure_as_zero_goes_through_the_runs_own_reward(tmp_path, reward, at_zero) -> None:
    """All but the failed rollout keep what is on record, whatever that was made of."""
    made, why = rewards_under(cell(tmp_path, **reward), failing())
    assert why == "" and tuple(made) == REPLAY_POLICIES
    np.testing.assert_allclose(made["zero"], [7.0, at_zero, 8.0, 9.0])
    np.testing.assert_array_equal(made["unscored"], [7.0, NAN, 8.0, 9.0])


def test_what_dropping_groups_took_is_composed_again(tmp_path: Path) -> None:
    """A run that dropped the first group: its scored rollout is worth .75 x .6 + .25 x 1."""
    frame = failing(reward=[NAN, NAN, 8.0, 9.0])
    made, _ = rewards_under(cell(tmp_path, "drop_group", truth_weight=0.25), frame)
    np.testing.assert_allclose(made["unscored"], [0.7, NAN, 8, 9])
    np.testing.assert_allclose(made["zero"], [0.7, 0.25, 8, 9])
    made, _ = rewards_under(cell(tmp_path, "abort"), failing())
    np.testing.assert_array_equal(made["drop_group"], [NAN, NAN, 8, 9])


def test_rules_and_repetition_are_composed_as_in_training(tmp_path, monkeypatch) -> None:
    """Where the ledger once gave up. Rubric of 1 and 3 points, rules of 2 and 2: with a judge's
    score of 0 and the first rule passed, 2 of 8 points, less the trainer's penalty."""
    criteria = (Criterion("c", 1.0), Criterion("d", 3.0))
    rules = tuple(Rule(f"0:{k}", "k", "t", "s", 2.0) for k in (0, 1))
    row = Row("a", (), criteria, rules=rules)

    class OneRow(InstructMini):
        def rows(self, options, split):
            return [row]

    monkeypatch.setitem(TASKS, "instruct-mini", OneRow())
    said = np.array(["0:0 passed", "0:1 failed"], dtype=object)
    frame = failing(rules=[said] * 4, prompt_id="a", answer="again " * 9)
    reward = {"name": "rubric", "rules": "run", "repetition": {"weight": 1.0, "ngram": 1}}
    folder = cell(tmp_path, **reward)
    made, why = rewards_under(folder, frame)
    assert why == "" and made["zero"][1] == pytest.approx(0.25 - 8 / 9)
    assert made["zero"][[0, 2, 3]].tolist() == [7.0, 8.0, 9.0]
    made, _ = rewards_under(folder, frame.assign(prompt_id="another"))
    assert np.isnan(made["zero"][1])


def test_verif_multiplies_the_rules_that_passed(tmp_path: Path) -> None:
    """Half of the rules passed: what dropping the group took is worth half of .6 again."""
    said = np.array(["0:0 passed", "0:1 failed"], dtype=object)
    frame = failing(rules=[said] * 4, reward=[NAN, NAN, 8.0, 9.0])
    made, _ = rewards_under(cell(tmp_path, "drop_group", name="verif", rules="run"), frame)
    np.testing.assert_allclose(made["unscored"], [0.3, NAN, 8, 9])


def test_a_reward_that_is_not_ours_is_not_made_up(tmp_path: Path) -> None:
    made, why = rewards_under(cell(tmp_path, name="elsewhere"), failing())
    assert np.isnan(made["zero"]).all() and "elsewhere" in why and "on_failure" in why


def test_a_study_with_failures_has_every_policy_on_record(make_study) -> None:
    """sim-flaky fails on every fourth member, and its reward is its score."""
    runs, problems = read_runs(make_study(seeds=1, steps=2))
    assert problems == []
    for run in runs:
        expected = np.nan_to_num(run.reward) if run.arm == "sim-flaky" else run.reward
        np.testing.assert_array_equal(run.under["zero"], expected)
        np.testing.assert_array_equal(run.under["unscored"], run.reward)
        # every group of sim-flaky has a failure
        assert np.isnan(run.under["drop_group"]).all() == (run.arm == "sim-flaky")


def test_scores_that_a_correction_took_away_are_missing(make_study) -> None:
    """As of a panel whose other judge never answers: no reward, whatever this one said."""
    study = make_study(seeds=1, steps=2)
    (folder,) = study.glob("sim-verbose-s0-*")
    for part in CellFolder(folder).parts("rollouts"):
        rows = read_part(part).to_pylist()
        write_part(part.path, [row | {"reward": None, CORRECTED: None} for row in rows], ROLLOUT)
    runs, problems = read_runs(study)
    assert problems == []
    (run,) = (run for run in runs if run.corrected is not None)
    assert run.cell == folder.name and np.isfinite(run.judge).any()
    assert np.isnan(run.corrected).all() and (run.under["zero"] == 0).all()


def test_a_truth_that_could_not_be_had_is_what_each_policy_makes_of_it(tmp_path: Path) -> None:
    """The judge scored all; the third rollout has no truth, because what tells it failed."""
    frame = failing(
        judge_score=0.5,
        truth=[1.0, 1.0, NAN, 1.0],
        truth_missing=[None, None, "the grader is gone", None],
        reward=[1.0, 1.0, NAN, 1.0],
    )
    made, why = rewards_under(cell(tmp_path, name="rule"), frame)
    assert why == ""
    np.testing.assert_array_equal(made["unscored"], [1.0, 1.0, NAN, 1.0])
    np.testing.assert_array_equal(made["zero"], [1.0, 1.0, 0.0, 1.0])
    np.testing.assert_array_equal(made["drop_group"], [1.0, 1.0, NAN, NAN])
    made, _ = rewards_under(cell(tmp_path), frame)  # by the judge alone: nothing is missing
    for rewards in made.values():
        np.testing.assert_array_equal(rewards, frame["reward"])


def test_each_domain_is_composed_by_its_own_reward(tmp_path: Path) -> None:
    """Each group lacks a score and a truth: only what its domain is paid by is missing there."""
    frame = failing(
        domain=["qa", "qa", "math", "math"],
        judge_score=[0.6, NAN, NAN, 0.4],
        truth=[NAN, 1.0, 1.0, NAN],
        truth_missing=["the grader is gone", None, None, "the grader is gone"],
        reward=[0.6, NAN, 1.0, NAN],
    )
    folder = cell(tmp_path, name="by-domain", domains={"qa": "judge", "math": "rule"})
    made, why = rewards_under(folder, frame)
    assert why == ""
    np.testing.assert_array_equal(made["unscored"], [0.6, NAN, 1.0, NAN])
    np.testing.assert_array_equal(made["zero"], [0.6, 0.0, 1.0, 0.0])
    np.testing.assert_array_equal(made["drop_group"], [NAN, NAN, NAN, NAN])
    whole = frame.assign(judge_score=[0.6, 0.2, NAN, NAN], reward=[0.6, 0.2, 1.0, NAN])
    made, _ = rewards_under(folder, whole)
    np.testing.assert_array_equal(made["drop_group"], [0.6, 0.2, NAN, NAN])
