"""Rows whose slopes on the truth differ: their shrinkage, and that they raise no alarm."""

from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm
from statsmodels.stats.meta_analysis import combine_effects

from analysis.ledger.judge_error import PARTS, calibrated, taken_apart
from analysis.ledger.row_slopes import own_slopes, shrunken
from analysis.onset.estimate import line
from analysis.onset.planted import ALL_ROWS, DOSE, ROW_JUDGES, by_row
from tests.tiers import some


# the table of coverage has all of them
@pytest.mark.parametrize("name", some(ROW_JUDGES, standard=["random on easy rows"]))
def test_a_slope_that_differs_by_row_is_no_alarm_and_a_dose_is(name: str) -> None:
    """Of 18 runs of size .07 more than 4 have an alarm in one of 110 builds."""
    rng = np.random.default_rng(20)
    still = [line(by_row(rng, ROW_JUDGES[name], 2 * number), ()) for number in range(18)]
    assert sum(run.onset.p <= 0.05 for run in still) <= 4
    assert sum(run.alarm is not None for run in still) <= 4
    paid = [line(by_row(rng, ROW_JUDGES[name], number, DOSE), ()) for number in ALL_ROWS[::2]]
    assert sum(run.onset.p <= 0.05 for run in paid) >= 5
    assert sum(run.alarm is not None for run in paid) >= 3


def test_rows_without_noise_have_their_own_slopes_and_parts_add_up() -> None:
    """Slopes 1 and .2 without noise, far from the ends of the scale."""
    run = by_row(np.random.default_rng(21), ROW_JUDGES["right on easy rows"], ALL_ROWS[2])
    assert run.prompt_P is not None
    steep_P = np.where(run.prompt_P.astype(int) % 2, 1.0, 0.2)
    score = 5 + steep_P[:, None] * run.truth
    run = replace(run, judge=score, reward=score)
    found = calibrated(run, score)
    assert found.rows is not None and len(found.rows.places) == 32
    varies = abs(run.truth - run.truth[:, :1]).max(axis=1)[run.step_P <= found.rows.last] > 0
    slopes = {name: found.slope + found.rows.slope_R[at] for name, at in found.rows.places.items()}
    for name in set(run.prompt_P[run.step_P <= found.rows.last][varies]):
        assert slopes[name] == pytest.approx(1.0 if int(name) % 2 else 0.2, abs=0.01)
    apart = taken_apart(run, score)
    total = apart.level + sum(apart.of[name] for name in PARTS)
    np.testing.assert_allclose(total, score - run.truth, atol=1e-12)
    assert abs(apart.of["clip"]).max() == 0
    # a row's compression within groups is its slope less 1
    inside = [
        part - part.mean(axis=1, keepdims=True) for part in (apart.of["compression"], run.truth)
    ]
    known = np.isin(run.prompt_P, run.prompt_P[run.step_P <= found.rows.last][varies])
    np.testing.assert_allclose(
        inside[0][known], (steep_P[:, None] - 1)[known] * inside[1][known], atol=0.01
    )


def test_slopes_of_rows_are_shrunk_as_a_meta_regression_shrinks_them() -> None:
    """The variance between rows is that of DerSimonian and Laird in statsmodels, without the rate;
    rows alike are not told apart, and nobody's slope says nothing."""
    rng = np.random.default_rng(22)
    precision = rng.uniform(5, 50, 40)
    own = 0.5 + rng.normal(0, 0.3, 40) + rng.normal(size=40) / precision**0.5
    ones, rate = np.ones((1, 40)), rng.uniform(size=40)
    slopes, sd = shrunken(own, precision, np.full(40, 0.5), ones)
    oracle = combine_effects(own, 1 / precision, method_re="chi2")
    assert sd[-1] ** 2 == pytest.approx(oracle.tau2)
    within = precision @ own / precision.sum()
    assert slopes[0, -1] == pytest.approx(oracle.mean_effect_re - within)
    mean = oracle.mean_effect_re
    assert (abs(slopes[0, :-1] + within - mean) <= abs(own - mean) + 1e-12).all()
    alike, none = shrunken(np.full(40, 0.5), precision, rate, ones)
    assert abs(alike).max() < 1e-12 and (none == 0).all()
    # what the rate says of it is all that is known of a row whose truth never varied
    by_rate = 0.2 + 0.6 * rate
    precision[0] = 0.0
    slopes, _ = shrunken(by_rate, precision, rate, ones)
    within = precision @ by_rate / precision.sum()
    assert slopes[0, 0] + within == pytest.approx(by_rate[0], abs=0.02)
    assert slopes[0, -1] + within == pytest.approx(by_rate.mean(), abs=0.02)


def test_a_rows_own_slope_is_least_squares() -> None:
    rng = np.random.default_rng(23)
    row = np.repeat(np.arange(3), 20)
    x, y = rng.normal(size=60), rng.normal(size=60)
    x[row == 2] = 0.0
    own, precision = own_slopes(x, y, row, 3)
    fits = [sm.OLS(y[row == k], x[row == k]).fit() for k in range(2)]
    assert own == pytest.approx([fits[0].params[0], fits[1].params[0], 0])
    squares = sum(fit.ssr for fit in fits) + (y[row == 2] ** 2).sum()
    assert precision[:2] == pytest.approx(
        [(x[row == k] ** 2).sum() / squares * (60 - 3 - 2) for k in range(2)]
    )
    assert precision[2] == 0
