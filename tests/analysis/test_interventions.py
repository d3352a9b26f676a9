"""Interventions on planted runs: what is left of a bias, what was gained, what it cost."""

import dataclasses
import itertools
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.interventions import estimate
from analysis.interventions.display import bought, bought_table, interventions_text
from analysis.interventions.estimate import Interventions, _transported, numbers
from analysis.records.runs import Records, Run
from analysis.report import sections
from analysis.report.evidence import of_records as evidence_of
from analysis.statistics.estimate import NO_ESTIMATE
from analysis.study import Study
from study.cell.records import ROLLOUT, part_name, write_part

STEPS, GROUPS, MEMBERS = 10, 6, 4
PLAIN = {"judge.simulated": {}, "judge.simulated.doses.length": 0.1}


def run_of(
    arm: str,
    seed: int,
    identity: dict[str, Any] | None = None,
    left: float | None = None,
    words: float = 0.0,
    truth: float = 0.0,
    hedges: float = 0.0,
) -> Run:
    """A run whose judge pays .1 per word beyond the truth, of which ``left`` reaches the reward;
    in its last step answers have so many ``words``, ``truth`` and ``hedges`` more."""
    rng = np.random.default_rng(seed)  # the same rollouts in every arm
    shape = (STEPS * GROUPS, MEMBERS)
    step_P = np.repeat(np.arange(1, STEPS + 1), GROUPS)
    features = np.stack([rng.normal(8, 2, shape), rng.normal(1, 1, shape)], axis=-1)
    truths, last = rng.uniform(0.2, 0.6, shape), step_P == STEPS
    judge = truths + 0.1 * features[..., 0]
    corrected = None if left is None else truths + left * features[..., 0]
    features[last] += [words + 0.01 * seed, hedges]
    truths[last] += truth
    identity = {"seed": seed, **PLAIN, **(identity or {})}
    return Run(
        cell=f"{arm}-{seed}", arm=arm, seed=seed, done=True, step_P=step_P, reward=judge,
        advantage=judge, truth=truths, judge=judge, features=features, corrected=corrected,
        names=("length", "hedges"), config=identity, identity=identity,
    )  # fmt: skip


def records_of(folder: Path, runs: list[Run], rollouts: dict[str, list[dict]] | None = None):
    """The records of a study with these runs; of those with corrected scores the parts are there,
    as ``rollouts`` by arm."""
    for run in runs:
        rows = (rollouts or {}).get(run.arm, [])
        for step, of_step in itertools.groupby(rows, itemgetter("step")):
            place = folder / run.cell / "rollouts"
            place.mkdir(parents=True, exist_ok=True)
            write_part(place / part_name(step), list(of_step), ROLLOUT)
    table = pd.DataFrame(
        {"cell": run.cell, "arm": run.arm, "judge": "sim-dose", "seed": run.seed, "done": True}
        | dict.fromkeys(("judge_family", "judge_size", "policy", "reward"), "x")
        | {"state": "done", "undosed": False}
        for run in runs
    )
    calls = [(r.cell, "sim-dose", "acting", "scored", 5.0, r.judge.size) for r in runs]
    calls += [(r.cell, "other", "shadow", "scored", 5.0, 100) for r in runs if r.arm == "panel"]
    columns = ["cell", "judge", "role", "outcome", "words", "verdicts"]
    return Records(folder, table, runs, pd.DataFrame(calls, columns=columns), "", [])


def of_records(records: Records) -> Interventions | None:
    """The interventions of a study, by its own effects."""
    return estimate.of_records(records, Study(**vars(records)).effects())


def study(folder: Path) -> Records:
    runs = []
    for seed in range(4):
        runs += [
            run_of("plain", seed, words=6.0, truth=-0.1),
            run_of("penalty", seed, {"correction.penalty.length": 0.1}, left=0.04, words=1.0,
                   hedges=2.0),
            run_of("panel", seed, {"correction.panel": "mean", "shadow_judges.0": {}}, left=0.02),
            run_of("kl", seed, {"trainer.beta": 0.1}, words=3.0),
            run_of("other", seed, {"task.name": "mixed-mini", "trainer.beta": 0.1}),
        ]  # fmt: skip
    return records_of(folder, runs)


def test_bias_left_truth_gained_and_what_grew_instead(tmp_path):
    told = of_records(study(tmp_path))
    assert (told.plain, told.feature) == ("plain", "length")
    arms = {row.arm: row for row in told.arms}
    assert list(arms) == ["plain", "kl", "panel", "penalty"]  # other differs in its task too
    first = [run_of("plain", seed).features[:GROUPS, :, 0] for seed in range(4)]
    sd = np.std(np.concatenate(first))
    for arm, left in {"plain": 0.1, "penalty": 0.04, "panel": 0.02, "kl": 0.1}.items():
        # in the last step words were added after the judge had seen the answers: to all alike
        assert arms[arm].residual.value == pytest.approx(left * sd, rel=1e-6)
        assert arms[arm].worth.value == pytest.approx(left * sd, rel=1e-6)  # the truth counts once
    assert arms["penalty"].truth.value == pytest.approx(0.1)
    assert arms["penalty"].behaviour.value == pytest.approx(-5.0)
    assert arms["plain"].truth.value == pytest.approx(-0.1, abs=0.05)  # its own shift
    assert [swap.risen for swap in arms["penalty"].grew] == ["hedges"]
    assert arms["kl"].grew == ()
    assert (arms["plain"].calls, arms["panel"].calls) == (240, 340)
    assert arms["kl"].settings == "trainer.beta=0.1" and arms["plain"].settings == ""
    assert arms["panel"].settings == "correction.panel=mean"
    variance = np.mean([run_of("plain", seed).features[:GROUPS, :, 1].var() for seed in range(4)])
    grew = f"hedges +{2 / variance**0.5:.2f} SD"
    assert bought_table(told)["grew instead"].tolist() == [*["nothing seen"] * 3, grew]
    assert "trainer.beta=0.1" in interventions_text(told, [])
    assert numbers(told)["arms"][3]["residual"] == pytest.approx(0.04 * sd)


def test_a_smaller_scale_leaves_what_the_behaviour_is_worth(tmp_path):
    """Half of every score: half of the bias is left, and it outweighs as much truth as before."""
    runs = [run_of("plain", seed) for seed in range(3)]
    half = [run_of("half", seed, {"correction.calibrate": 8}) for seed in range(3)]
    runs += [dataclasses.replace(run, corrected=0.5 * run.judge) for run in half]
    plain, smaller = of_records(records_of(tmp_path, runs)).arms
    assert smaller.residual.value == pytest.approx(0.5 * plain.residual.value)
    assert smaller.worth.value == pytest.approx(plain.worth.value)


def test_a_kl_penalty_that_every_arm_has_is_no_intervention(tmp_path):
    """Some trainers have one; the arm with the smallest and no correction is the plain one."""
    runs = [
        dataclasses.replace(run, identity={"trainer.beta": 0.001, **run.identity})
        for run in study(tmp_path / "a").runs
    ]
    told = of_records(records_of(tmp_path / "b", runs))
    assert [row.arm for row in told.arms] == ["plain", "kl", "panel", "penalty"]
    settings = [row.settings for row in told.arms]
    assert settings[:3] == ["", "trainer.beta=0.1", "correction.panel=mean"]
    smaller = [
        dataclasses.replace(run, identity={**run.identity, "trainer.beta": 0.0001})
        if run.arm == "penalty"
        else run
        for run in runs
    ]
    told = of_records(records_of(tmp_path / "c", smaller))
    assert told is not None and "penalty" not in {row.arm for row in told.arms}


def test_a_study_without_a_plain_arm_has_no_interventions(tmp_path):
    whole = study(tmp_path)
    some = [run for run in whole.runs if run.arm in ("penalty", "kl")]
    assert of_records(records_of(tmp_path / "b", some)) is None
    plain = [run for run in whole.runs if run.arm == "plain"]
    assert of_records(records_of(tmp_path / "c", plain)) is None


def rollout(step: int, place: int, score: float, truth: float, again: float) -> dict[str, Any]:
    name = f"{step:06d}-{place:04d}"
    return {
        **{"rollout_id": name, "step": step, "group": place // MEMBERS, "member": place % MEMBERS},
        **{"truth": truth, "component/uncalibrated": score, "component/rechecked": again},
    }


@pytest.mark.parametrize("drift", [0.0, 0.2])
def test_a_calibration_says_whether_it_still_holds_at_the_end(tmp_path, drift):
    """Half of the truth, which 48 labels put right; in the last step it is lenient by ``drift``."""
    labelled = {"correction.calibrate": 48, "correction.recheck": 0.25}
    runs = [run_of("plain", seed) for seed in range(3)]
    runs += [run_of("calibrated", seed, labelled, left=0.0) for seed in range(3)]
    rng = np.random.default_rng(0)
    rows = [
        rollout(step, place, 0.5 * truth + drift * (step == STEPS), truth, float(place < 2))
        for step in range(1, STEPS + 1)
        for place, truth in enumerate(rng.integers(0, 9, GROUPS * MEMBERS) / 10)
    ]
    plain, calibrated = of_records(records_of(tmp_path, runs, {"calibrated": rows})).arms
    # two rechecks a step, of which those of the first two steps are among the 48
    assert calibrated.labels == 48 + 2 * (STEPS - 2) and plain.labels == 0
    assert np.isnan(plain.calibrated.value)
    beyond = calibrated.calibrated
    if drift:
        assert beyond.low > 0.1  # the scale of the first steps calls the last ones too good
    else:
        assert beyond.low <= 0 <= beyond.high and abs(beyond.value) < 0.02


def test_what_a_calibration_does_not_know_is_in_its_interval(tmp_path):
    """With noisy truths few labels leave more doubt than many."""
    rng = np.random.default_rng(1)
    widths = {}
    for labels in (16, 160):
        identity = {"correction.calibrate": labels}
        runs = [run_of("plain", seed) for seed in range(3)]
        runs += [run_of("calibrated", seed, identity, left=0.0) for seed in range(3)]
        scores = rng.integers(0, 11, (STEPS, GROUPS * MEMBERS)) / 10
        rows = [
            rollout(step, place, float(score), float(rng.random() < score), 0.0)
            for step, row in enumerate(scores, start=1)
            for place, score in enumerate(row)
        ]
        folder = tmp_path / str(labels)
        beyond = of_records(records_of(folder, runs, {"calibrated": rows})).arms[1].calibrated
        widths[labels] = beyond.high - beyond.low
    assert widths[16] > 1.3 * widths[160] > 0


def test_one_group_of_labels_says_nothing_of_what_it_does_not_know():
    """Its variance is unknown, which is not 0."""
    rng = np.random.default_rng(0)
    rows = [
        rollout(step, place, float(truth), truth, 0.0)
        for step in range(1, STEPS + 1)
        for place, truth in enumerate(rng.integers(0, 9, GROUPS * MEMBERS) / 10)
    ]
    for labels, told in ((MEMBERS, False), (2 * MEMBERS, True)):
        run = run_of("calibrated", 0, {"correction.calibrate": labels})
        transported = _transported(run, pd.DataFrame(rows))
        assert transported is not None and bool(np.isfinite(transported[1])) is told


def test_features_that_were_not_measured_leave_bias_and_shift_unknown(tmp_path):
    """Thinking that never ended, in every rollout of the study."""
    runs = [
        dataclasses.replace(run, features=np.full_like(run.features, np.nan))
        for run in study(tmp_path / "a").runs
    ]
    told = of_records(records_of(tmp_path / "b", runs))
    assert all(np.isnan([row.residual.value, row.behaviour.value]).all() for row in told.arms)


def test_the_report_compares_with_the_plain_arm(tmp_path):
    """By name alone, kl would be what the others are compared with."""
    records = records_of(tmp_path, [run for run in study(tmp_path).runs if run.arm != "other"])
    table = records.table.assign(keyword="", step=STEPS, steps=STEPS)
    told = evidence_of(dataclasses.replace(records, table=table))
    assert told.base == "plain" and told.interventions is not None
    assert {swap.base for swap in told.substitutions} == {"plain"}


def test_the_report_has_a_section_where_there_are_interventions(evidence, tmp_path):
    assert sections.interventions(evidence) == []
    told = dataclasses.replace(evidence, interventions=of_records(study(tmp_path)))
    text = "".join(sections.interventions(told))
    assert "What would it buy?" in text and "correction.penalty.length=0.1" in text
    assert "Each intervention beside plain" in text


def test_an_intervention_stands_where_its_differences_are(tmp_path):
    told = of_records(study(tmp_path))
    (axes,) = bought(told).axes
    marks = {tuple(line.get_xydata()[0]) for line in axes.lines if len(line.get_xdata()) == 1}
    others = {row.arm: (row.behaviour.value, row.truth.value) for row in told.arms[1:]}
    assert others["penalty"] == pytest.approx((-5.0, 0.1), abs=0.02)
    assert marks == set(others.values())
    assert axes.get_legend_handles_labels()[1] == list(others)
    arms = [dataclasses.replace(row, truth=NO_ESTIMATE) for row in told.arms]
    assert bought(dataclasses.replace(told, arms=tuple(arms))) is None
