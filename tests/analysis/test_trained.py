"""Planted policies that are trained: what they do, and where first-order theory stops."""

import numpy as np
import pytest

from analysis.propagation.planted import LARGE, SMALL, Optimiser, answers, coverage, train
from analysis.records.runs import shift


def test_a_policy_that_is_paid_for_nothing_but_the_truth_stays_where_it_is_without_a_step():
    paths = train(np.random.default_rng(0), np.zeros((40, 2)), Optimiser(0.0))
    features, odds = answers()
    p = np.exp(odds) / np.exp(odds).sum()
    assert paths.level.mean(axis=(0, 1)) == pytest.approx(p @ features, abs=0.05)
    # longer answers are less often right, so the truth pushes against length
    assert paths.of_truth[..., 0].mean() < -0.05 and paths.push[..., 2].mean() > 0.2
    assert paths.push == pytest.approx(paths.of_truth)


def test_length_grows_once_the_truth_is_learned():
    """Long answers are less often right, so that the truth holds length down; a policy that is
    right anyway is told by the bias alone."""
    doses = np.repeat([[0.0, 0.0], [0.03, 0.0], [0.06, 0.0]], 40, axis=0)
    paths = train(np.random.default_rng(1), doses, Optimiser(0.1))
    shifts = np.array([shift(level) for level in paths.level[..., 0]]).reshape(3, 40).mean(axis=1)
    assert shifts[0] < 0 < shifts[1] < shifts[2]
    push = paths.push[80:, :, 0].mean(axis=0)
    assert push[:5].mean() < 0 < push[-5:].mean()


def test_a_clipped_gradient_moves_less_and_adam_by_its_rate():
    rng = np.random.default_rng(2)
    doses = np.tile([0.0, 0.05], (40, 1))
    free, clipped = (
        train(rng, doses, Optimiser(0.1, clip=clip)).level[..., 0].mean(0) for clip in (0, 0.1)
    )
    assert abs(shift(clipped)) < 0.5 * abs(shift(free))
    slow, fast = (
        train(rng, doses, Optimiser(rate, adam=True)).level[..., 0].mean(0) for rate in (1e-3, 0.01)
    )
    assert abs(shift(slow)) < 0.5 * abs(shift(fast))


def test_theory_is_right_about_small_doses_and_short_of_large_ones():
    rng = np.random.default_rng(3)
    small, large = (coverage(rng, 30, doses, Optimiser(0.1)) for doses in (SMALL, LARGE))
    assert ((small.low <= 0) & (small.high >= 0)).mean() >= 0.9
    assert large.estimate.mean() < -5 and abs(small.estimate.mean()) < 1
