"""How a policy follows its judges, fitted to the courses of trained runs, and to all but some.

Least squares over arms of log(1 + |residual|), so that no run decides alone. Steps are shrunk to a
common one, and the growth to 2: a policy that trains from an adapter of zeros moves slowly at
first. Leaving judges out takes one step of Gauss and Newton from the fit of all (Pregibon 1981),
which needs no further replay.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from analysis.forecast.replay import PARTS, Follows, Pay, exposed, exposure, replay
from analysis.forecast.start import Start
from analysis.records.runs import tenths
from analysis.statistics.estimate import NAN, known_means

WINDOWS = 5
"""Equal parts of a run's steps whose means the fit sees, beside the shift at its end."""
PART_WEIGHT = 0.3
"""Weight of a part's residual beside that of the shift at the end."""
SCATTER = 0.15
"""SDs by which runs of one judge differ beyond the prompts and answers that they drew."""
SHRINK = 0.3
"""Weight of (log step_k)^2 about the common one beside the squared residuals, about .1 each."""
GROWTH = 2.0
TRUTH_STEP = -1.0
"""Logarithm of the truth's step beside that of behaviours: no policy takes to being right as it
does to a word."""
WIDTH = 0.05
"""Of a difference that stands for a derivative: groups are drawn anew where weights move."""
LONGEST = 0.7
"""Of the step by which a judge is left out: beyond it the fit is not near."""
FARTHEST = 8.0
"""Logarithm of the largest factor that a search tries."""


def course(of_steps_T: np.ndarray) -> np.ndarray:
    """How far what has one entry for each step moved from its first tenth to each of `WINDOWS`
    parts of the steps and, last, to its last tenth: shape (WINDOWS + 1, ...); NaN where no entry is
    known, and for a single step."""
    first, last = tenths(of_steps_T)
    parts = [*np.array_split(of_steps_T, WINDOWS), last]
    means = np.array([known_means(part) for part in parts])
    return means - known_means(first) if len(of_steps_T) > 1 else np.full(means.shape, NAN)


def replayed(start: Start, pay: Pay, follows: Follows) -> tuple[np.ndarray, float]:
    """The course of a run without its drift, in SDs, shape (WINDOWS + 1, K1), and the support of
    its last step, both as `replay` has them."""
    shown = replay(start, pay, follows)
    at_T, parts = exposed(pay.trainer), np.linspace(0, 1, PARTS + 1)
    of_steps = np.array([np.interp(at_T, parts, column) for column in shown.shift.T]).T
    return course(of_steps), float(np.interp(at_T[-1], parts, shown.support))


def drifts(exposures_A: np.ndarray, pays: Sequence[Pay]) -> np.ndarray:
    """The courses of drifts that end at so many exposures, shape (A, WINDOWS + 1)."""
    shapes = np.array([course(exposed(pay.trainer)) for pay in pays])
    ends = shapes[:, -1:]
    return exposures_A[:, None] * np.divide(
        shapes, ends, out=np.zeros(shapes.shape), where=ends != 0
    )


@dataclass(frozen=True)
class Fitting:
    """A fit of A arms by N numbers: log step, growth, and drifts.

    Attributes:
        follows: what was fitted.
        at: the numbers, shape (N,).
        curvature: of the whole, priors and all, shape (N, N); and of each arm, shape (A, N, N).
        slope: of each arm's squares at ``at``, shape (A, N).
    """

    follows: Follows
    at: np.ndarray
    curvature: np.ndarray
    curvature_A: np.ndarray
    slope_A: np.ndarray

    def without(self, arms: Sequence[int]) -> Follows:
        """The fit to the other arms."""
        rows = list(arms)
        curvature = self.curvature - self.curvature_A[rows].sum(axis=0)
        step = np.linalg.solve(curvature, self.slope_A[rows].sum(axis=0))
        return _follows(self.at + np.clip(step, -LONGEST, LONGEST), self.follows.exposure)


def _follows(at: np.ndarray, exposure: float) -> Follows:
    count = (len(at) - 2) // 2
    logs = np.clip(at[0] + at[2 : 2 + count], -FARTHEST, FARTHEST)
    return Follows(np.exp(logs), float(np.exp(np.clip(at[1], -2, 2))), at[2 + count :], exposure)


def fit(
    start: Start,
    pays: Sequence[Pay],
    course_A_W_K1: np.ndarray,
    runs_A: np.ndarray,
    sampling_A_K1: np.ndarray | float = 0.0,
) -> Fitting:
    """Least squares over A arms.

    Args:
        course_A_W_K1: mean `course` of each arm's runs in SDs, W = WINDOWS + 1; NaN is unknown.
        runs_A: runs of each arm.
        sampling_A_K1: variance of one run's shift by the draw of prompts and answers.

    Raises ValueError: no arm's course is known.
    """
    known = np.isfinite(course_A_W_K1) & start.varies
    if not known.any():
        raise ValueError("the fit needs runs with known shifts")
    observed = np.where(known, course_A_W_K1, 0.0)
    exposures = np.array([exposure(pay.trainer) for pay in pays])
    mean = float(np.average(exposures, weights=runs_A))
    drift_A_W = drifts(exposures / mean, pays)
    weight_W = np.append(np.full(WINDOWS, PART_WEIGHT), 1.0)
    size = observed.shape[-1]
    trust = SCATTER**2 / (SCATTER**2 + np.broadcast_to(sampling_A_K1, (len(pays), size)))
    trust = trust * (runs_A / runs_A.mean())[:, None]
    weights = np.sqrt(trust / trust.mean())[:, None] * weight_W[:, None]

    @functools.lru_cache(maxsize=1)  # all derivatives by drifts are at one place
    def courses(*steps_and_growth: float) -> np.ndarray:
        follows = _follows(np.append(steps_and_growth, np.zeros(size)), mean)
        return np.array([replayed(start, pay, follows)[0] for pay in pays])

    def of_arms(at: np.ndarray) -> np.ndarray:
        expected = courses(*at[: 2 + size]) + at[2 + size :] * drift_A_W[..., None]
        apart = np.where(known, expected - observed, 0.0) * weights
        return (np.sign(apart) * np.log1p(np.abs(apart))).reshape(len(pays), -1)

    def prior(at: np.ndarray) -> np.ndarray:
        beside = at[2 : 2 + size] - np.append(np.zeros(size - 1), TRUTH_STEP)
        return np.concatenate([SHRINK * beside, [0.5 * (at[1] - np.log(GROWTH))], at[2 + size :]])

    def residuals(at: np.ndarray) -> np.ndarray:
        return np.concatenate([of_arms(at).ravel(), prior(at)])

    def jacobian(at: np.ndarray) -> np.ndarray:
        here = residuals(at)
        steps = WIDTH * np.eye(len(at))[::-1]
        return np.array([(residuals(at + step) - here) / WIDTH for step in steps]).T[:, ::-1]

    begin = np.concatenate([[0.0, np.log(GROWTH)], np.zeros(2 * size)])
    begin[1 + size] = TRUTH_STEP
    found = least_squares(residuals, begin, jacobian, max_nfev=12, xtol=1e-3, ftol=1e-3)
    rows = found.jac
    of_arm = rows[: observed.size].reshape(len(pays), -1, len(begin))
    return Fitting(
        follows=_follows(found.x, mean),
        at=found.x,
        curvature=rows.T @ rows,
        curvature_A=np.einsum("arn,arm->anm", of_arm, of_arm),
        slope_A=np.einsum("arn,ar->an", of_arm, of_arms(found.x)),
    )
