"""A judge's error and behaviours at equal truth: zero whatever a judge does with row and truth."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from analysis.ledger.chance import chance
from analysis.ledger.display import lost_sentences, paid_sentences
from analysis.ledger.estimate import judge_table, ledger
from analysis.ledger.given_truth import Levels, given_truth
from analysis.ledger.transmission import within_regression
from analysis.records.runs import Run
from analysis.selfcheck.planted_judges import sentences
from analysis.statistics.clipped_line import clipped_mean
from tests.analysis.conftest import made_run

NAN = np.nan


def run_of(truth: np.ndarray, judge: np.ndarray, z: np.ndarray) -> Run:
    names = tuple(f"z{k}" for k in range(z.shape[-1]))
    return made_run(judge, truth, features=z, names=names)


def test_wrong_and_right_answers_by_hand() -> None:
    """In the wrong answers of the first group error and length go together, in the right ones
    against each other; the second has one of each, which tells nothing."""
    truth = np.array([[0.0, 0, 1, 1], [0, 1, NAN, 1]])
    judge = np.array([[0.1, 0.5, 0.9, 0.6], [0.7, 0.2, 0.5, NAN]])
    length = np.array([[1.0, 3, 2, 8], [5, 5, 5, 5]])
    run = run_of(truth, judge, length[..., None])
    levels = Levels.of([run])
    assert levels.names == ("wrong", "right")
    found = given_truth(run, levels)
    assert found["wrong"].value_K[0] == pytest.approx(0.4 * 2 / 2)
    assert found["right"].value_K[0] == pytest.approx(-0.3 * 6 / 2)


def test_noise_that_grows_with_length_and_is_cut_pays_long_wrong_answers_only() -> None:
    """Against the integral of the mean of noise that is cut at 0 and 1, times length, over a normal
    length; right answers lose what wrong ones get."""
    rng = np.random.default_rng(5)
    truth = (rng.random((3000, 8)) < 0.5).astype(float)
    z = rng.normal(size=(3000, 8, 1))
    noise = 0.3 * np.exp(0.5 * z[..., 0]) * rng.normal(size=truth.shape)
    run = run_of(truth, np.clip(truth + noise, 0, 1), z)
    length = np.linspace(-6, 6, 1201)
    mean = np.array([clipped_mean(np.array(0.0), 0.3 * np.exp(k / 2), 0, 1) for k in length])
    paid = float((mean * length * norm.pdf(length)).sum() * 0.01)
    found = given_truth(run, Levels.of([run]))
    assert found["wrong"].value_K[0] == pytest.approx(paid, rel=0.1)
    assert found["right"].value_K[0] == pytest.approx(-paid, rel=0.1)
    assert abs(within_regression(run.judge - truth, z).coef_K[0]) < 0.01 < paid / 4
    assert (chance([found["wrong"]]) < 1e-6).all()


def test_levels_are_thirds_of_graded_truths_the_same_for_all_runs() -> None:
    first = run_of(np.array([[0.0, 0.25, 0.25, 0.5]]), np.zeros((1, 4)), np.zeros((1, 4, 1)))
    second = replace(first, truth=np.array([[0.75, 1.0, 1.0, NAN]]))
    levels = Levels.of([first, second])
    assert levels.names == ("low", "middle", "high")
    np.testing.assert_array_equal(levels.at(np.array([0, 0.25, 0.5, 0.75, 1.0])), [0, 0, 1, 1, 2])
    assert Levels.of([]).names == ("wrong", "right")


@given(st.integers(0, 10**6), st.sampled_from([1, 4, 10]))
def test_any_judge_of_row_and_truth_alone_has_none(seed: int, criteria: int) -> None:
    """Its score is any number for a row and a truth; length goes with the truth, row by row."""
    rng = np.random.default_rng(seed)
    truth = rng.binomial(criteria, rng.random((12, 1)), (12, 8)) / criteria
    of_row = rng.random((12, criteria + 1))
    judge = np.take_along_axis(of_row, np.rint(truth * criteria).astype(int), axis=1)
    z = rng.normal(size=(12, 8, 2)) + rng.normal(size=(12, 1, 1)) * truth[..., None]
    run = run_of(truth, judge, z)
    for each in given_truth(run, Levels.of([run])).values():
        np.testing.assert_allclose(np.nan_to_num(each.value_K), 0, atol=1e-12)


def test_covariances_are_those_of_pandas_within_cells() -> None:
    rng = np.random.default_rng(1)
    truth = rng.binomial(4, 0.5, (40, 8)) / 4
    z = rng.normal(size=(40, 8, 2))
    judge = np.clip(truth + 0.3 * rng.normal(size=truth.shape) + 0.1 * z[..., 0], 0, 1)
    judge[0, :3] = z[5, 2] = NAN
    run = run_of(truth, judge, z)
    levels = Levels.of([run])
    found = given_truth(run, levels)
    table = pd.DataFrame({"truth": truth.ravel(), "z": z[..., 0].ravel(), "y": z[..., 1].ravel()})
    table = table.assign(group=np.repeat(np.arange(40), 8), error=(judge - truth).ravel()).dropna()
    table["level"] = levels.at(table["truth"].to_numpy())
    within = table.groupby(["group", "truth"])[["error", "z", "y"]].transform(
        lambda v: v - v.mean()
    )
    for place, name in enumerate(levels.names):
        here = table["level"] == place
        free = here.sum() - len(table[here].groupby(["group", "truth"]))
        for k, column in enumerate("zy"):
            products = (within["error"] * within[column])[here].sum()
            assert found[name].value_K[k] == pytest.approx(products / free)


def test_a_truth_without_ties_is_taken_out_by_a_line() -> None:
    """A judge that says half of a truth that no two answers share, and length that goes with it."""
    rng = np.random.default_rng(2)
    truth = np.clip(rng.random((400, 1)) + 0.1 * rng.normal(size=(400, 8)), 0, 1)
    z = rng.normal(size=(400, 8, 1)) + 5 * truth[..., None]
    run = run_of(truth, 0.5 * truth, z)
    for each in given_truth(run, Levels.of([run])).values():
        assert abs(each.value_K[0]) < 1e-3
    paid = given_truth(replace(run, judge=0.5 * truth + 0.1 * z[..., 0]), Levels.of([run]))
    assert [each.value_K[0] for each in paid.values()] == pytest.approx([0.1] * 3, rel=0.15)


def test_what_cannot_be_told_is_missing() -> None:
    truth = np.array([[0.0, 0, 1, 1]])
    unknown = run_of(truth, np.full((1, 4), NAN), np.ones((1, 4, 2)))
    flat = run_of(truth, 0.5 + 0 * truth, np.array([[[1, NAN]] * 4]))
    for run in (unknown, flat, unknown.where(np.array([False]))):
        for each in given_truth(run, Levels.of([run])).values():
            assert np.isnan(each.value_K).all()
    table = judge_table([flat], ledger([flat]))
    assert table.loc[table["metric"] == "given_truth/wrong/z0", "mean"].isna().all()
    for nothing in (table, table[:0]):
        assert [*paid_sentences(nothing, {"z0": 1.0}), *lost_sentences(nothing, {"z0": 1.0})] == []


def test_the_report_names_pay_that_averages_out() -> None:
    (said,) = sentences("noise grows with length")
    assert said.startswith("noise grows with length: among answers of the same truth")
    low, high = (
        float(re.search(rf"([-+.0-9]+) \[[^\]]*\] in the {level} third", said)[1])
        for level in ("lowest", "highest")
    )
    assert low > 0.03 and high < -0.03
