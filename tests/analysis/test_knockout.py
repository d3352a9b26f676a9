"""Knock-outs: planted worlds in which the cause of a shift is known, and taken out."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.frozen.effects import Effects, effects_of
from analysis.knockout import estimate
from analysis.knockout.display import kept, knockout_table
from analysis.knockout.estimate import NO_ARM, Knockout, knockouts, sentence
from analysis.propagation.estimate import paths, predict
from analysis.records.runs import Run, shift, step_means
from analysis.report import sections
from analysis.statistics.intervals import ratio_of_means
from tests.analysis.test_propagation import LENGTH, train

DOSE = "judge.simulated.doses.length"
GIVEN = {"b": 0.6, "error": 0.01, "sd": 1.0}
PART = {f"correction.parts.length.{key}": value for key, value in GIVEN.items()}
OUT = {"correction.without.0": "length", **PART, "correction.parts.length.source": "dose"}


def told(run: Run, arm: str, identity: dict, **changes) -> Run:
    """A run of a tabular policy as one of a study of knock-outs."""
    cell = f"{arm}-s{run.seed}"
    given = {"seed": run.seed, **identity}
    logged = {"policy/grad_norm": np.ones(len(run.steps))}  # plain steps, one size for all
    return dataclasses.replace(
        run, cell=cell, arm=arm, config=given, identity=given, logged=logged, **changes
    )


def world(seeds=(0, 1, 2), dose=0.6) -> list[Run]:
    """A tabular policy under a dose, without it, and under the dose that is taken out exactly."""
    runs = []
    for seed in seeds:
        runs.append(told(train(seed, dose), "biased", {DOSE: dose}))
        runs.append(told(train(seed, 0.0), "absent", {DOSE: 0.0}))
        plain = train(seed, 0.0)
        given = plain.truth + dose * plain.features[..., 0]
        runs.append(told(plain, "out", {DOSE: dose, **OUT}, judge=given, corrected=plain.judge))
    return runs


def effects(runs: Sequence[Run]) -> Effects:
    """Beside the arm that is first by name."""
    return effects_of(runs, min(run.arm for run in runs))


def of_study(runs: Sequence[Run]) -> list[Knockout]:
    """The knock-outs of a study of rollouts, by its own effects."""
    return estimate.of_study(runs, effects(runs), effects(runs))


def length_shift(run: Run) -> float:
    return shift(step_means(run, run.features[..., 0]))


def test_a_part_that_is_taken_out_exactly_takes_its_shift_away():
    runs = world()
    (row,) = of_study(runs)
    by_arm = {
        arm: np.array([length_shift(run) for run in runs if run.arm == arm])
        for arm in ("biased", "out", "absent")
    }
    lost = by_arm["biased"] - by_arm["out"]
    assert (row.biased, row.out, row.absent) == ("biased", "out", "absent")
    assert row.shift.value == pytest.approx(by_arm["biased"].mean())
    assert row.lost.value == pytest.approx(lost.mean()) and row.lost.low > 0
    assert row.gone.value == pytest.approx(lost.mean() / by_arm["biased"].mean())
    assert row.gone_absent.value == row.gone.value  # the same runs
    assert (row.b, row.error, row.source) == (0.6, 0.01, "dose")
    # to first order the ledger's account is what goes away
    assert row.of_bias.value == pytest.approx(lost.mean(), rel=0.35)
    assert row.missed.value == pytest.approx(row.of_bias.value - row.lost.value)


def test_a_ledger_that_was_right_is_told_from_one_that_blames_the_wrong_thing():
    runs = world()
    kept = {run.seed: length_shift(run) for run in runs if run.arm == "out"}
    right = [
        dataclasses.replace(row, of_bias=row.observed.value - kept[int(row.cell[-1])] + 0.1 * noise)
        for row, noise in zip(predict(paths(runs)), (1, -1) * 9, strict=True)
    ]
    (row,) = knockouts(runs, effects(runs), effects(runs), right)
    assert row.missed.low < 0 < row.missed.high and "do not tell" in sentence(row)
    # Predictions that give the judge's error nothing, where all of the shift goes away with it.
    runs = world()
    blind = [
        dataclasses.replace(row, of_bias=0.001 * row.observed.value) for row in predict(paths(runs))
    ]
    (row,) = knockouts(runs, effects(runs), effects(runs), blind)
    assert row.missed.high < 0 and "3 pairs of runs tell from that" in sentence(row)


def test_nothing_goes_away_where_the_wrong_part_is_taken_out():
    """The run is that of the bias itself: what was taken out did not drive it."""
    runs = [run for run in world() if run.arm != "out"]
    same = [
        told(dataclasses.replace(run), "out", {DOSE: 0.6, **OUT})
        for run in runs
        if run.arm == "biased"
    ]
    (row,) = of_study([*runs, *same])
    assert row.gone.value == 0.0 and row.lost.value == 0.0
    assert row.gone_absent.value > 0.5


def test_arms_that_differ_in_more_are_no_pair():
    runs = [
        dataclasses.replace(run, identity={**run.identity, "trainer.steps": 7})
        if run.arm == "out"
        else run
        for run in world()
    ]
    assert of_study(runs) == []
    assert of_study([run for run in world() if run.arm != "out"]) == []


def test_without_a_pair_of_arms_nothing_is_said_to_go_away():
    (row,) = of_study([run for run in world() if run.arm != "absent"])
    assert row.absent == "" and np.isnan(row.gone_absent.value) and np.isfinite(row.gone.value)
    assert knockout_table([row])["share removed without the bias"].tolist() == ["\u2013"]
    (row,) = of_study([run for run in world() if (run.arm == "out") == (run.seed == 0)])
    assert np.isnan(row.lost.value) and np.isnan(row.gone.value)
    assert "what went away is not known" in sentence(row) and "took away" not in sentence(row)
    (row,) = of_study(world(seeds=(0,)))
    assert np.isnan(row.gone.low) and "is not known" in sentence(row)
    assert "tell" not in sentence(row)


def test_real_judges_of_other_names_are_not_the_same_judge():
    """Names are left out for simulated judges alone, whose settings say all of them."""
    model = "judge.endpoint.model"
    runs = [
        dataclasses.replace(run, identity={model: run.arm, **{k: v for k, v in OUT.items()
                                           if run.arm == "out"}})
        for run in world()
    ]  # fmt: skip
    assert of_study(runs) == []
    same = [dataclasses.replace(run, identity={**run.identity, model: "m"}) for run in runs]
    assert {row.biased for row in of_study(same)} == {"biased"}


def test_clipped_scores_are_counted():
    runs = [
        dataclasses.replace(run, judge=np.clip(run.truth + 0.6 * run.features[..., 0], 0, 1))
        if run.arm == "biased"
        else run
        for run in world()
    ]
    biased = np.concatenate([run.judge.ravel() for run in runs if run.arm == "biased"])
    (row,) = of_study(runs)
    assert row.cut == pytest.approx(np.isin(biased, (0, 1)).mean()) and row.cut > 0.3
    assert LENGTH.max() > 1  # so that the scores of `world` are beyond 1, and have no such ends
    assert np.isnan(of_study(world())[0].cut)


def t_of(pairs: np.ndarray, ratio: float) -> float:
    """Student's t of mean(x - ratio y) against 0."""
    left = pairs[:, 0] - ratio * pairs[:, 1]
    return float(left.mean() / (left.std(ddof=1) / len(left) ** 0.5))


@given(st.integers(0, 10_000), st.integers(3, 8))
def test_the_ratio_s_interval_is_fieller_s(seed, units):
    """Its ends are where the t test of x - ratio y is just significant."""
    rng = np.random.default_rng(seed)
    pairs = np.stack([rng.normal(2, 1, units), rng.normal(5, 0.3, units)], axis=1)
    found = ratio_of_means(pairs)
    critical = stats.t.ppf(0.975, units - 1)
    assert found.value == pytest.approx(pairs[:, 0].mean() / pairs[:, 1].mean())
    if np.isnan(found.low):
        assert abs(pairs[:, 1].mean()) <= critical * pairs[:, 1].std(ddof=1) / units**0.5
        return
    assert t_of(pairs, found.low) == pytest.approx(critical)
    assert t_of(pairs, found.high) == pytest.approx(-critical)


def test_a_ratio_of_what_may_be_nothing_has_no_interval_and_no_narrower_one():
    found = ratio_of_means(np.array([[1.0, -1.0], [2.0, 3.0], [1.0, 0.5]]))
    assert np.isnan(found.low) and "could be 0" in found.note
    assert np.isnan(ratio_of_means(np.array([[1.0, 0.0]])).value)
    pairs = np.array([[2.0, 4.0], [2.001, 4.0], [1.999, 4.0]])
    narrow = ratio_of_means(pairs)
    wide = ratio_of_means(pairs, within_2_2=np.array([[0.04, 0.0], [0.0, 0.04]]))
    assert wide.value == narrow.value
    assert wide.high - wide.low > 50 * (narrow.high - narrow.low)


def test_the_report_has_a_section_where_there_is_a_knock_out(evidence):
    assert sections.knockout(evidence) == []
    text = "".join(sections.knockout(dataclasses.replace(evidence, knockouts=of_study(world()))))
    assert "Does the shift go away with its cause?" in text and "took away" in text
    assert "Shift of each behaviour under the judge with the bias" in text


def test_the_figure_has_a_row_for_each_arm_and_what_the_ledger_leaves():
    (row,) = told = of_study(world())
    (axes,) = kept(told).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["biased", "out", "absent"]
    places = {tuple(line.get_xydata()[0]) for line in axes.lines if len(line.get_xdata()) == 1}
    shifts = (row.shift, row.shift_out, row.shift_absent)
    assert {(shift.value, float(k)) for k, shift in enumerate(shifts)} < places
    assert (row.shift.value - row.of_bias.value, 1.0) in places
    assert kept([dataclasses.replace(row, shift=NO_ARM)]) is None
