"""How a policy answers to a judge's bias: shifts at the end of training, from the first rollouts.

What every judge of a study teaches, whatever it pays for, is one drift of each behaviour. What a
judge teaches beside it starts with its bias b, the regression of its error on the behaviours within
groups. To first order the behaviours move by step x C b, C being their correlations within groups.
Training is not first order: a behaviour that is paid for becomes more frequent and varies more, so
its share of the advantages grows, and with it the step. Under a growth rate r this gives, after an
exposure E (the sum of the learning rates, in that of the runs that were fitted on)::

    shift_k = drift_k E + sum_l C_kl b_l s_l E (exp(g E) - 1) / (g E),   g = r |s b|

and no count falls below 0. s_l > 0 is the step of one behaviour, which are shrunk to each other:
policies take to some behaviours sooner than to others. The truth moves with the behaviours that
it correlates with. All is in standard deviations of the first rollouts, and AdamW is assumed, whose
step does not depend on the size of the reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares, minimize

from analysis.ledger.transmission import centred, group_cov
from analysis.statistics.estimate import FLAT, NAN, Estimate, around, known_mean
from analysis.statistics.intervals import student

TRUTH = "truth"
RIDGE = 3e-3
"""Of the regression of a judge's error on standardised behaviours: two that go together share."""
SHRINK = 0.3
"""Weight of (log s_l)^2 beside the squared residuals, which are about .2 each."""
FEWEST_ARMS = 4
LEAST = 0.02
"""Least SD of a run about its forecast, in SDs of the behaviour."""
FARTHEST = 20.0
"""Logarithm of the largest factor that a search tries."""
_GROWTH = (1e-6, 6.0)
"""Range of g E: a policy cannot grow for ever."""


@dataclass(frozen=True)
class Start:
    """Behaviours and truth of the first rollouts.

    Attributes:
        names: the K behaviours and, last, the truth: K1 = K + 1.
        mean, sd: of each over rollouts, in its own unit, shape (K1,); sd 0 where it never varied.
        correlation: within groups, covariance over the two sds, shape (K1, K1).
    """

    names: tuple[str, ...]
    mean: np.ndarray
    sd: np.ndarray
    correlation: np.ndarray

    @property
    def varies(self) -> np.ndarray:
        """Which of them vary, shape (K1,)."""
        return self.sd > FLAT

    @property
    def floor(self) -> np.ndarray:
        """The lowest shift in SDs that leaves nothing below 0, shape (K1,)."""
        return -self.mean / np.where(self.varies, self.sd, 1.0)


def start_of(features_P_G_K: np.ndarray, truth_P_G: np.ndarray, names: Sequence[str]) -> Start:
    """`Start` of P groups of G rollouts; a rollout without truth or features is left out."""
    values = _complete(features_P_G_K, truth_P_G)
    present = np.asarray(np.isfinite(values).all(axis=-1))
    rows = values[present]
    sd = rows.std(axis=0) if len(rows) else np.zeros(values.shape[-1])
    inside = centred(values / np.where(sd > FLAT, sd, 1.0), present)
    flat = inside.reshape(-1, inside.shape[-1])
    free = max(1, int(np.maximum(present.sum(axis=1) - 1, 0).sum()))
    mean = rows.mean(axis=0) if len(rows) else np.full(values.shape[-1], NAN)
    return Start((*names, TRUTH), mean, sd, flat.T @ flat / free)


def bias_of(
    start: Start, score_P_G: np.ndarray, truth_P_G: np.ndarray, features_P_G_K: np.ndarray
) -> np.ndarray:
    """A judge's bias, shape (K,): what an SD of each behaviour adds to its advantages.

    The within-group regression of score - truth on behaviours and truth, over the SD of the score
    within groups. NaN where no group has two scores that differ.
    """
    values = _complete(features_P_G_K, truth_P_G) / np.where(start.varies, start.sd, 1.0)
    score = np.asarray(score_P_G, dtype=float)
    present = np.isfinite(values).all(axis=-1) & np.isfinite(score)
    x = centred(values, present).reshape(-1, values.shape[-1])
    error = centred(score - np.asarray(truth_P_G, dtype=float), present).ravel()
    free = np.maximum(present.sum(axis=1) - 1, 0).sum()
    spread = float((centred(score, present) ** 2).sum() / max(1, free)) ** 0.5
    if not spread > FLAT:
        return np.full(x.shape[1] - 1, NAN)
    ridge = RIDGE * present.sum() * np.eye(x.shape[1])
    return np.linalg.solve(x.T @ x + ridge, x.T @ error)[:-1] / spread


def push_of(
    start: Start, advantages_P_G: np.ndarray, features_P_G_K: np.ndarray, truth_P_G: np.ndarray
) -> np.ndarray:
    """E Cov(advantage, z) within groups in SDs of behaviours and truth, shape (K1,)."""
    covariance = group_cov(advantages_P_G, _complete(features_P_G_K, truth_P_G))
    means = np.array([known_mean(column) for column in covariance.T])
    return means / np.where(start.varies, start.sd, 1.0)


def _complete(features_P_G_K: np.ndarray, truth_P_G: np.ndarray) -> np.ndarray:
    truth = np.asarray(truth_P_G, dtype=float)[..., None]
    return np.concatenate([np.asarray(features_P_G_K, dtype=float), truth], axis=-1)


@dataclass(frozen=True)
class Response:
    """A fitted policy: what `fit` gives and `shifts` reads.

    Attributes:
        drift: shift of behaviours and truth under every judge, in SDs, shape (K1,).
        step: s_l of each behaviour, shape (K,).
        growth: r.
        truth: how far the truth follows the behaviours that it correlates with, above 0.
        exposure: mean sum of the learning rates of the runs that it was fitted on.
        spread: SD of a run about its forecast where little moves, in SDs, shape (K1,); NaN where
            it was not told.
        relative, beside: what a run's SD has beside it, as shares of what its judge teaches of the
            behaviour, and of the root mean square of all that its judge teaches.
        arms: that it was fitted on.
    """

    drift: np.ndarray
    step: np.ndarray
    growth: float
    truth: float
    exposure: float
    spread: np.ndarray
    relative: float = 0.0
    beside: float = 0.0
    arms: int = 0

    def shifts(self, start: Start, bias_A_K: np.ndarray, exposure: float) -> np.ndarray:
        """Forecast shifts in SDs of A judges, shape (A, K1); NaN for a bias that is not known."""
        share = exposure / self.exposure
        return np.maximum(self.drift * share + self.taught(start, bias_A_K, exposure), start.floor)

    def taught(self, start: Start, bias_A_K: np.ndarray, exposure: float) -> np.ndarray:
        """What of the shifts is the judges' and no drift, in SDs, shape (A, K1)."""
        share = exposure / self.exposure
        paid = bias_A_K * self.step
        rate = np.clip(self.growth * share * np.linalg.norm(paid, axis=1), *_GROWTH)
        moved = (paid * share) @ start.correlation[:-1] * (np.expm1(rate) / rate)[:, None]
        moved[:, -1] *= self.truth
        return moved

    def forecast(self, start: Start, bias_K: np.ndarray, exposure: float) -> list[Estimate]:
        """Shift of one run of a judge in SDs, for each of K1, with its prediction interval."""
        shifts = self.shifts(start, bias_K[None], exposure)[0]
        taught = self.taught(start, bias_K[None], exposure)[0]
        size, overall = _sizes(taught)
        variance = self.spread**2 + self.relative**2 * size + self.beside**2 * overall
        halves = student(max(1, self.arms - 1)) * np.sqrt(variance)
        ends = [(low, float("inf")) for low in start.floor]
        return [
            around(float(value), float(half), self.arms, "arm", ends=end) if moves else
            Estimate(NAN, n=self.arms, unit="arm", note="it did not vary in the first rollouts")
            for value, half, end, moves in zip(shifts, halves, ends, start.varies, strict=True)
        ]  # fmt: skip


def fit(
    start: Start,
    bias_A_K: np.ndarray,
    arm_R: np.ndarray,
    shift_R_K1: np.ndarray,
    exposure_R: np.ndarray,
    near: Response | None = None,
) -> Response:
    """Least squares over R runs of A arms, of log(1 + |residual|) so that no run decides alone.

    Args:
        arm_R: row of each run in ``bias_A_K``.
        shift_R_K1: in SDs; NaN is unknown.
        exposure_R: sum of each run's learning rates.
        near: a response to start the search from.

    The response has no ``spread`` yet: `with_spread` has it from arms that were left out.
    Raises ValueError: no run's shift is known.
    """
    has_shift = (
        np.isfinite(shift_R_K1) & start.varies & np.isfinite(bias_A_K[arm_R]).all(1)[:, None]
    )
    if not has_shift.any():
        raise ValueError("the response fit needs runs with known shifts and biases")
    behaviours, mean = bias_A_K.shape[1], float(np.mean(exposure_R))
    exposures, at_R = np.unique(exposure_R, return_inverse=True)
    bias = np.nan_to_num(bias_A_K)

    def response(x: np.ndarray) -> Response:
        step = _positive(x[0] + x[3 : 3 + behaviours])
        growth, truth = _positive(x[1:3]).tolist()
        drift = x[3 + behaviours :]
        return Response(drift, step, growth, truth, mean, np.full(len(drift), NAN))

    def residuals(x: np.ndarray) -> np.ndarray:
        trial = response(x)
        by_exposure = np.stack([trial.shifts(start, bias, each) for each in exposures])
        apart = np.where(has_shift, by_exposure[at_R, arm_R] - np.nan_to_num(shift_R_K1), 0.0)
        shrunk = np.append(SHRINK * x[3 : 3 + behaviours], 0.1 * x[2])
        return np.concatenate([(np.sign(apart) * np.log1p(np.abs(apart))).ravel(), shrunk])

    level = np.where(has_shift, shift_R_K1, 0.0).sum(axis=0)
    common, steps, drift = np.array([-1.0, 1.5, 0.0]), np.zeros(behaviours), level / len(arm_R)
    if near is not None:
        steps, drift = np.log(near.step), near.drift
        common = np.array([steps.mean(), np.log(near.growth), np.log(near.truth)])
        steps = steps - steps.mean()
    begin = np.concatenate([common, steps, drift])
    return response(least_squares(residuals, begin, max_nfev=60).x)


def _positive(log: np.ndarray) -> np.ndarray:
    """exp, between limits that no policy comes near: runs that tell nothing send a search far."""
    return np.exp(np.clip(log, -FARTHEST, FARTHEST))


def leave_one_arm_out(
    start: Start,
    bias_A_K: np.ndarray,
    arm_R: np.ndarray,
    shift_R_K1: np.ndarray,
    exposure_R: np.ndarray,
) -> tuple[Response, list[Response]]:
    """The response to all arms, and for each of A the one that was fitted on the others.

    Every one has its ``spread``: `with_spread` over the arms that it was fitted on.
    Raises ValueError: fewer than `FEWEST_ARMS` arms.
    """
    arms = len(bias_A_K)
    if arms < FEWEST_ARMS:
        raise ValueError(f"{arms} arms, but the response fit needs {FEWEST_ARMS}")
    whole = fit(start, bias_A_K, arm_R, shift_R_K1, exposure_R)
    others, residuals = [], np.full(shift_R_K1.shape, NAN)
    taught = np.zeros(shift_R_K1.shape)
    for arm in range(arms):
        is_other = arm_R != arm
        left_out = fit(
            start, bias_A_K, arm_R[is_other], shift_R_K1[is_other], exposure_R[is_other], whole
        )
        for run in np.flatnonzero(~is_other):
            bias = bias_A_K[[arm]]
            apart = shift_R_K1[run] - left_out.shifts(start, bias, exposure_R[run])[0]
            residuals[run] = np.where(start.varies, apart, NAN)
            taught[run] = left_out.taught(start, bias, exposure_R[run])[0]
        others.append(left_out)
    return (
        with_spread(whole, residuals, taught, arms),
        [
            with_spread(other, residuals[arm_R != arm], taught[arm_R != arm], arms - 1)
            for arm, other in enumerate(others)
        ],
    )


def with_spread(
    response: Response, residual_R_K1: np.ndarray, taught_R_K1: np.ndarray, arms: int
) -> Response:
    """The response with the spread of runs about forecasts of arms that were not seen.

    A residual's variance is spread_k^2 + (relative taught_k)^2 + beside^2 mean_k taught_k^2, fitted
    by the Gaussian likelihood; residuals that are not known are left out.
    """
    has_residual = np.isfinite(residual_R_K1) & np.isfinite(taught_R_K1)
    squares = np.where(has_residual, residual_R_K1, 0.0) ** 2
    size, overall = _sizes(np.where(has_residual, taught_R_K1, 0.0))
    has_spread = has_residual.any(axis=0)
    start = 0.25 * squares.sum(axis=0) / np.maximum(has_residual.sum(axis=0), 1) + LEAST**2

    def variance(x: np.ndarray) -> np.ndarray:
        return np.exp(x[2:]) + np.exp(x[0]) * size + np.exp(x[1]) * overall[:, None]

    def surprise(x: np.ndarray) -> float:
        values = variance(x)
        return float(((np.log(values) + squares / values) * has_residual).sum())

    begin = np.concatenate([[-2.0, -3.0], np.log(start)])
    ends = [(-12.0, 4.0)] * 2 + [(2 * np.log(LEAST), 8.0)] * len(start)
    best = minimize(surprise, begin, method="L-BFGS-B", bounds=ends).x
    relative, beside = (float(value) for value in np.exp(best[:2] / 2))
    spread = np.where(has_spread, np.exp(best[2:] / 2), NAN)
    return replace(response, spread=spread, relative=relative, beside=beside, arms=arms)


def _sizes(taught_R_K1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squares of what was taught, (R, K1), and their mean over behaviours, (R,)."""
    squares = taught_R_K1**2
    return squares, squares.mean(axis=-1)
