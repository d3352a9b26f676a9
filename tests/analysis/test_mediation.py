"""The split against planted paths, and how little a common cause needs."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis.dose.mediation import mediate

DOSE = np.repeat([-0.1, 0.0, 0.1, 0.2], 5)


def runs(seed, a=40.0, b=-0.01, direct=0.0, cause=0.0):
    """Runs with dose -> length -> truth, and a common cause of length and truth."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=len(DOSE))
    length = a * DOSE + 2 * rng.normal(size=len(DOSE)) + 2 * cause * hidden
    truth = b * length + direct * DOSE + 0.02 * (rng.normal(size=len(DOSE)) + cause * hidden)
    return DOSE, length, truth


def test_mediation_is_found_where_it_is_and_a_common_cause_shows_in_rho():
    found = mediate(*runs(0))
    assert found.indirect.low <= -0.4 <= found.indirect.high
    assert found.indirect.value + found.direct == pytest.approx(found.total.value)
    shares = [mediate(*runs(seed, b=0.0, direct=-1.0)).share for seed in range(40)]
    assert abs(np.median(shares)) < 0.2
    # Nothing goes through length here; the hidden cause moves both.
    found = mediate(*runs(1, b=0.0, cause=3.0))
    assert found.b.value > 0.005 and abs(found.rho) > 0.5


def test_rho_is_what_the_reduced_forms_share_and_what_cannot_be_told_is_said():
    """With b = -.01 and SDs 2 and .02 the errors of truth are -.02 e + .02 u: rho = -1/sqrt 2."""
    rng = np.random.default_rng(0)
    dose = rng.normal(size=20_000)
    length = dose + 2 * rng.normal(size=20_000)
    truth = -0.01 * length + 0.02 * rng.normal(size=20_000)
    assert mediate(dose, length, truth).rho == pytest.approx(-(0.5**0.5), abs=0.02)
    dose, length, truth = runs(0)
    assert "are not separable" in mediate(dose, 40 * dose + 1e-6 * length, truth).note
    flat = mediate(dose, length, np.random.default_rng(5).normal(size=20))
    assert math.isnan(flat.share) and "not clearly different from 0" in flat.note
    with pytest.raises(ValueError, match="needs 8 runs"):
        mediate(dose[:6], length[:6], truth[:6])
    with pytest.raises(ValueError, match="all three vary"):
        mediate(dose, length, np.zeros(20))


def test_the_interval_of_b_has_three_slopes_where_the_mediator_is_the_dose_again():
    """No more is known of b then; its interval and its draws have n - 3 degrees of freedom."""
    dose, _, truth = runs(0)
    split = mediate(dose, 40 * dose, truth)
    columns = np.stack([np.ones(20), dose, 40 * dose], axis=1)
    inverse = np.linalg.pinv(columns, rcond=1e-10)
    left = truth - columns @ inverse @ truth
    error = (left @ left / 17 * (inverse @ inverse.T)[2, 2]) ** 0.5
    assert split.b.high - split.b.value == pytest.approx(stats.t.ppf(0.975, 17) * error)
