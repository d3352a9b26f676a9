"""What to do next: commands that compose to the very cells of a study, with one thing changed."""

import dataclasses
import shlex
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.records.arms import arm_names
from analysis.records.runs import Run
from analysis.report import next_steps
from analysis.report.evidence import Evidence
from analysis.report.next_steps import choose
from analysis.report.study_command import command_of
from experiments.sweep import cells_of
from study.cell.cells import Cell
from study.config.identity import flatten
from tests.analysis.conftest import made_run


def runs_of(*words: str, steps: int = 0) -> list[Run]:
    """A finished run of each cell of a sweep that is typed so, its truth known."""
    cells = cells_of(list(words))
    names = arm_names([dict(cell.data) for cell in cells], cells[0].config.factors)
    made = []
    for cell, arm in zip(cells, names, strict=True):
        last = steps or cell.config.trainer.steps
        scores = np.full((last, 2), 0.5)
        made.append(
            made_run(
                *(scores, scores), cell=cell.name, arm=arm, seed=cell.config.seed,
                step_P=np.arange(1, last + 1), config=flatten(dict(cell.data)),
                identity=cell.identity,
            )
        )  # fmt: skip
    return made


def typed(command: str) -> list[Cell]:
    """The cells of a command of the sweep."""
    head = "python -m experiments.sweep "
    assert command.startswith(head)
    return cells_of(shlex.split(command.removeprefix(head)))


def of_arms(cells: list[Cell] | list[Run]) -> list[dict[str, Any]]:
    """What makes each arm what it is, each once."""
    made = [{k: v for k, v in dict(each.identity).items() if k != "seed"} for each in cells]
    return [each for k, each in enumerate(made) if each not in made[:k]]


MORE = (
    "judge=sim-verbose",
    "experiment=dose-response",
    "experiment=knockout",
    "experiment=interventions",
    "experiment=mixed-quickstart",
    "experiment=workflow-quickstart",
    "experiment=judge-families",
    "experiment=judge-families judge=qwen3-8b,gpt-oss-20b",
    "debug=tiny judge=sim-fair,sim-flaky",
)
"""Studies whose command is looked for in the longest tier."""


@pytest.mark.parametrize(
    "words",
    [
        "",
        "judge=sim-verbose shadow=[sim-strict]",
        # nearer to an experiment that sweeps over doses, which this judge does not have
        "debug=tiny judge=sim-fair shadow=[sim-verbose]",
        "trainer.steps=12 trainer.learning_rate=1e-3 judge=sim-fair,sim-strict reward=rule",
        *(pytest.param(words, marks=pytest.mark.long) for words in MORE),
    ],
)
def test_a_study_is_typed_again_as_it_was(words):
    runs = runs_of(*words.split(), steps=1)
    command = command_of(runs)
    assert command is not None
    again = typed(f"{command.typed(['seed=7,8'])} study=again")
    assert of_arms(again) == of_arms(runs) and {cell.config.seed for cell in again} == {7, 8}


def test_what_no_preset_and_no_word_leads_to_is_not_typed():
    (run, *_) = runs_of("judge=sim-fair", steps=1)
    strange = dataclasses.replace(run, identity={**run.identity, "nothing": "of ours"})
    assert command_of([strange]) is None
    assert command_of([dataclasses.replace(run, identity={}, config={})]) is None


def study_of(evidence: Evidence, runs: list[Run], base: str | None = None) -> Evidence:
    """Evidence that rests on these runs."""
    table = evidence.records.table
    like = [table.head(1).assign(arm=run.arm, judge=run.acting, cell=run.cell) for run in runs]
    records = dataclasses.replace(
        evidence.records,
        table=pd.concat(like),
        folder=evidence.records.folder.parent / "mine",
    )
    base = base or runs[0].arm
    return dataclasses.replace(evidence, runs=runs, records=records, base=base)


def test_after_harm_comes_its_cause_and_then_more_seeds(evidence):
    study = study_of(evidence, runs_of())
    cause, seeds = choose(study, ("sim-verbose", "length"))
    made = typed(cause.command)
    assert {tuple(cell.config.correction.without) for cell in made} == {(), ("length",)}
    assert {cell.config.judge.name for cell in made} == {"sim-verbose"} and len(made) == 6
    assert {cell.config.study for cell in made} == {"mine-knockout"} and "sim-verbose" in cause.why
    again = typed(seeds.command)
    assert {cell.config.seed for cell in again} == set(range(6)) and "six" in seeds.why
    assert of_arms(again) == of_arms(study.runs)
    assert {cell.config.study for cell in again} == {"mine"}


def test_what_no_one_planted_is_taken_out_by_regression(evidence):
    """The judge pays for length, not for hedges."""
    study = study_of(evidence, runs_of())
    step, _ = choose(study, ("sim-verbose", "hedges"))
    made = typed(step.command)
    assert {tuple(cell.config.correction.debias) for cell in made} == {(), ("hedges",)}


@pytest.mark.long
def test_a_real_judge_has_no_dose(evidence):
    real = study_of(evidence, runs_of("experiment=judge-families", steps=8))
    step, _ = choose(real, ("qwen3-8b", "length"))
    made = typed(step.command)
    assert {cell.config.policy.name for cell in made} == {real.runs[0].config["policy.name"]}
    assert {cell.config.judge.name for cell in made} == {"qwen3-8b"}
    assert {tuple(cell.config.correction.debias) for cell in made} == {(), ("length",)}


def test_a_smoke_test_is_followed_by_the_whole_study(evidence):
    for words in (["trainer.steps=4"], ["debug=tiny"]):
        study = study_of(evidence, runs_of(*words, "judge=sim-fair,sim-verbose", "seed=0"))
        (step,) = choose(study, None)
        made = typed(step.command)
        assert {cell.config.trainer.steps for cell in made} == {40} and len(made) == 6
        assert {cell.config.study for cell in made} == {"mine-whole"}
    alone = study_of(evidence, runs_of("debug=tiny", "judge=sim-fair", "seed=0"))
    assert "experiment=" not in choose(alone, None)[0].command, "base trains no policy"


def test_few_seeds_and_one_arm_come_first(evidence):
    study = study_of(evidence, runs_of("judge=sim-verbose", "seed=0,1"))
    baseline, seeds = choose(study, None)
    assert all(step.command.count("judge=") == 1 for step in (baseline, seeds))
    made = typed(baseline.command)
    assert {cell.config.judge.name for cell in made} == {"sim-fair", "sim-verbose"}
    assert {cell.config.seed for cell in typed(seeds.command)} == {0, 1, 2}
    many = study_of(evidence, runs_of("judge=sim-fair,sim-verbose", "seed=0,1,2,3,4,5,7"))
    (seeds, replay) = choose(many, None)
    assert "seed=0,1,2,3,4,5,7,6,8,9,10,11,12,13" in seeds.command
    assert replay.command.startswith("python -m judges.replay study=mine")
    assert replay.command.endswith("judge=sim-fair")


def test_with_declared_looks_the_next_one_is_typed_and_after_the_last_none(evidence):
    runs = runs_of("judge=sim-fair,sim-verbose", "seed=0,1,2")
    plain = study_of(evidence, runs)
    for looks, most in (((3, 4, 6), 4), ((3, 9), 9), ((2, 5), 5), ((2, 3), 0)):
        study = dataclasses.replace(plain, records=dataclasses.replace(plain.records, looks=looks))
        seeds = [step for step in choose(study, None) if "experiments.sweep" in step.command]
        assert len(seeds) == bool(most)
        for step in seeds:
            assert {cell.config.seed for cell in typed(step.command)} == set(range(most))
            assert "the next look" in step.why


def test_a_study_that_acted_already_is_not_told_to(evidence):
    runs = runs_of("experiment=knockout")
    study = dataclasses.replace(study_of(evidence, runs), knockouts=[object()])
    (seeds, *_) = choose(study, (runs[0].arm, "length"))
    assert of_arms(typed(seeds.command)) == of_arms(runs)
    assert next_steps.choose(dataclasses.replace(study, runs=[]), None) == []
