"""Which arms are compared for which setting, and what is said of the truth."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.records.frames import rollouts_frame
from analysis.records.runs import Run, read_study
from analysis.workflow.arm import of_study
from analysis.workflow.programs import Programs, of_frame
from analysis.workflow.treatments import HELD_OUT, LAST, treatments
from tests.analysis.program_study import STEPS, write_programs

PLAIN = {"judge.name": "sim-fair", "world": "workflow", "executor.name": "sim"}


def run(arm: str, seed: int, settings: dict[str, Any], truth: float, **more: Any) -> Run:
    """A run of one step and one rollout with that truth, and those settings over `PLAIN`."""
    one = np.array([[truth]])
    identity = {key: value for key, value in (PLAIN | settings).items() if value is not None}
    config = {"judge.name": identity["judge.name"], "judge.simulated.doses.length": 0.0}
    head = (f"{arm}-{seed}", arm, seed, True, np.array([1]))
    return Run(*head, one, one, one, one, np.zeros((1, 1, 0)), (), config=config,
               identity=identity | {"seed": seed}, **more)  # fmt: skip


def programs(each: Run) -> Programs:
    """The rollout of such a run as an executed program."""
    row = {"step": 1, "group": 0, "member": 0, "prompt_id": "p", "dataset": "d", "domain": "math"}
    row |= {"answer": "1", "truth": each.truth[0, 0], "judge_score": 1.0, "reward": 1.0}
    return of_frame(each, pd.DataFrame([row | {"outcome": "ok", "ast_sha": "a", "flags": None}]))


def compared(arms: dict[str, dict[str, Any]], direct: tuple[str, ...] = ()) -> list[tuple]:
    """(name, arm, base) of every treatment of some arms of two seeds."""
    runs = [run(arm, seed, settings, 0.5) for arm, settings in arms.items() for seed in (0, 1)]
    told = treatments(runs, [programs(each) for each in runs if each.arm not in direct])
    return [(row.name, row.arm, row.base) for row in told]


def test_an_effect_is_the_difference_of_the_truth_paired_by_seed(tmp_path: Path):
    """By the recorded truth: a program without an answer is wrong, a masked one does not count."""
    settings = ({}, {"fallback": "credit"})
    study = write_programs(tmp_path / "runs" / "s", ("sim-fair",), seeds=2, settings=settings)
    records = read_study(study)
    (treatment,) = of_study(records, list(records.table["cell"])).treatments
    assert treatment.name == "workflow.fallback=credit" and treatment.measure == LAST
    rows = rollouts_frame(study)
    last = rows[(rows["step"] > STEPS - 2) & (rows["outcome"] != "operator_error")]
    right = last["truth"].fillna(0.0).groupby([last["arm"].astype("str"), last["seed"]]).mean()
    differences = (right[treatment.arm] - right[treatment.base]).to_numpy()
    assert treatment.effect.value == pytest.approx(differences.mean())
    half = stats.t.ppf(0.975, 1) * differences.std(ddof=1) / 2**0.5
    assert treatment.effect.high - treatment.effect.value == pytest.approx(half)
    assert treatment.effect.n == 2


def test_held_out_accuracy_is_taken_where_every_run_has_it():
    def held(seed: int, settings: dict[str, Any], last: float) -> Run:
        by_domain = {"math": {0: 0.9, 4: last}, "qa": {0: 0.9, 2: 0.0, 4: last + 0.2}}
        return run(str(settings), seed, settings, 1.0, held_out=by_domain)

    runs = [held(seed, {}, 0.3) for seed in (0, 1)]
    runs += [held(seed, {"workflow.repair": True}, 0.4 + 0.1 * seed) for seed in (0, 1)]
    (row,) = treatments(runs, [programs(each) for each in runs])
    assert (row.name, row.measure) == ("workflow.repair=true", HELD_OUT)
    assert row.effect.value == pytest.approx(0.15)


def test_one_preset_is_one_setting():
    """A judge by another name brings other settings with it, and so does an executor."""
    verbose = {"judge.name": "sim-verbose", "judge.simulated.doses.length": 0.15}
    local = {"executor.name": "local", "executor.endpoint.url": "x", "allow_same_model": True}
    assert compared({"a": {}, "b": verbose, "c": local, "d": verbose | local}) == [
        ("executor=local", "c", "a"),
        ("judge=sim-verbose", "b", "a"),
        ("executor=local", "d", "b"),
        ("judge=sim-verbose", "d", "c"),
    ]


def test_what_is_a_treatment_and_what_is_none():
    arms = {"a": {"workflow.shots": 1}, "b": {}, "c": {"workflow.shots": 2}}
    assert compared(arms) == [("workflow.shots=1", "a", "b"), ("workflow.shots=2", "c", "b")]
    arms = {"a": {"workflow.shots": 1}, "direct": {"world": "direct", "executor.name": None}}
    assert compared(arms, direct=("direct",)) == [("world=direct", "direct", "a")]
    assert compared({"a": {}, "b": {"workflow.shots": 0, "workflow.repair": True}}) == []
    assert compared({"a": {}, "b": {"trainer.beta": 0.1}}) == [], "not a setting of the world"
    assert compared({"a": {}}) == []


def test_a_star_of_arms_is_compared_with_its_middle():
    """By name the first judge is another, and two arms under that one differ in a key of their own:
    they are compared with each other, and only the one without that key with the middle."""
    empty = {"judge.name": "empty", "judge.simulated.failure.rate": 0.1}
    arms = {
        "empty": empty,
        "plain": {},
        "swapped": {"judge.grading.options.swapped": True},
        "tail": empty | {"judge.grading.options.reads": "tail"},
        "unpriced": {"workflow.priced": False},
    }
    assert compared(arms) == [
        ("judge.grading.options.swapped=true", "swapped", "plain"),
        ("judge=empty", "empty", "plain"),
        ("workflow.priced=false", "unpriced", "plain"),
        ("judge.grading.options.reads=tail", "tail", "empty"),
    ]
