"""Natural judges: the slope of behaviour on a bias that is itself measured, its error taken out.

The bias of a judge nobody dosed is an estimate, and noise in it flattens the slope of the runs'
shift on it. Three corrections from the stated errors: by moments (which allows for judges that
differ in more than this bias), Deming's and SIMEX, beside the plain line. The judge is the unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.ledger.transmission import within_regression
from analysis.records.runs import read_runs, shift, step_means
from analysis.statistics.estimate import NAN, Estimate, around
from analysis.statistics.intervals import student
from study.errors import UserError
from study.features import FEATURES

FEWEST = 3
"""Judges that a slope takes."""
ADDED = (0.0, 0.5, 1.0, 1.5, 2.0)
"""Variances that SIMEX adds, in units of the error's own."""
DRAWS = 200


def plain(bias: np.ndarray, error: np.ndarray, shift: np.ndarray, spread: np.ndarray) -> float:
    """Least squares, as if the bias were known; too flat by its reliability."""
    x, y = bias - bias.mean(), shift - shift.mean()
    return float(x @ y / (x @ x))


def reliability(bias: np.ndarray, error: np.ndarray) -> float:
    """Share of the measured bias's variance over judges that is no error, at most 1.

    Args:
        bias: measured bias per judge, shape (J,).
        error: its standard error, shape (J,).
    """
    whole = float(np.var(bias, ddof=1))
    return (whole - float(np.mean(error**2))) / whole if whole else NAN


def moments(bias: np.ndarray, error: np.ndarray, shift: np.ndarray, spread: np.ndarray) -> float:
    """The plain slope over the reliability; NaN where the errors explain all the spread.

    Source: Fuller 1987, Measurement Error Models, section 1.2.
    """
    share = reliability(bias, error)
    return plain(bias, error, shift, spread) / share if share > 0 else NAN


def deming(bias: np.ndarray, error: np.ndarray, shift: np.ndarray, spread: np.ndarray) -> float:
    """Slope of the line that both errors scatter about; too steep where judges differ otherwise.

    NaN where bias and shift have no covariance. ``spread``: standard error of each judge's mean
    shift, shape (J,).

    Source: Deming 1943; Fuller 1987, section 1.3.
    """
    ratio = float(np.mean(spread**2) / np.mean(error**2))
    (xx, xy), (_, yy) = np.cov(bias, shift)
    gap = yy - ratio * xx
    return float((gap + (gap**2 + 4 * ratio * xy**2) ** 0.5) / (2 * xy)) if xy else NAN


def simex(bias: np.ndarray, error: np.ndarray, shift: np.ndarray, spread: np.ndarray) -> float:
    """The plain slope under more and more added error, extrapolated to none (a quadratic).

    Conservative: a quadratic takes out most of the flattening and not all of it.

    Source: Cook and Stefanski 1994.
    """
    noise = np.random.default_rng(0).standard_normal((DRAWS, len(bias))) * error
    y = shift - shift.mean()
    slopes = []
    for added in ADDED:
        x = bias + added**0.5 * noise
        x = x - x.mean(axis=1, keepdims=True)
        slopes.append(float(np.mean((x @ y) / (x**2).sum(axis=1))))
    return float(np.polyval(np.polyfit(ADDED, slopes, 2), -1.0))


METHODS = {method.__name__: method for method in (plain, moments, deming, simex)}


def slopes(
    bias: np.ndarray, error: np.ndarray, shift: np.ndarray, spread: np.ndarray
) -> dict[str, Estimate]:
    """Method -> slope of shift on bias with its jackknife t interval over J judges, shapes (J,).

    There is no interval with three judges: leaving one out leaves a line through two points. Raises
    ValueError: fewer than three judges, or biases that do not differ or have no error.
    """
    count = len(bias)
    if count < FEWEST or np.ptp(bias) == 0 or not (error > 0).all():
        raise ValueError(
            "a slope needs three judges with different measured biases and their errors"
        )
    by_method = {}
    for name, method in METHODS.items():
        whole = method(bias, error, shift, spread)
        half = NAN
        if count > FEWEST:
            rows = (bias, error, shift, spread)
            leave_one_out = [method(*(np.delete(row, j) for row in rows)) for j in range(count)]
            pseudo = count * whole - (count - 1) * np.array(leave_one_out)
            half = student(count - 1) * pseudo.std(ddof=1) / count**0.5
        by_method[name] = around(whole, half, count, "judge")
    return by_method


@dataclass(frozen=True)
class MeasuredBiases:
    """Judges with their measured biases, and the slope of their runs' shift on the bias.

    Attributes:
        judges: arm, its bias with its standard error, its runs' mean shift with its standard error
            (``spread``), and their number.
        reliability: of the biases, see `reliability`.
        slopes: by method.
    """

    judges: list[dict[str, str | float]]
    reliability: float
    slopes: dict[str, Estimate]
    problems: list[str]


def study(folder: Path, feature: str, steps: int = 1) -> MeasuredBiases:
    """Bias per judge on its runs' first ``steps`` steps, shift of its runs, and the slopes.

    The bias is the within-group regression of judge - truth on all behaviours at once, its standard
    error clustered by group. Raises UserError: fewer than three judges with bias and shift.
    """
    runs, problems = read_runs(folder)
    done = [run for run in runs if run.done]
    k = FEATURES.index(feature)
    moved = {run.cell: shift(step_means(run, run.features[..., k])) for run in done}
    judges: list[dict[str, str | float]] = []
    for arm in dict.fromkeys(run.arm for run in done):
        of_arm = [run for run in done if run.arm == arm and np.isfinite(moved[run.cell])]
        if len(of_arm) < 2:
            problems.append(f"{arm} has {len(of_arm)} runs with a shift, but its error needs two")
            continue
        early = [run.step_P <= np.unique(run.step_P)[:steps].max() for run in of_arm]
        gaps = [(run.judge - run.truth)[rows] for run, rows in zip(of_arm, early, strict=True)]
        features = [run.features[rows] for run, rows in zip(of_arm, early, strict=True)]
        fit = within_regression(np.concatenate(gaps), np.concatenate(features))
        shifts = np.array([moved[run.cell] for run in of_arm])
        judges.append(
            {
                "arm": arm,
                "bias": float(fit.coef_K[k]),
                "error": float(fit.se_K[k]),
                "shift": float(shifts.mean()),
                "spread": float(shifts.std(ddof=1)) / len(shifts) ** 0.5,
                "runs": len(shifts),
            }
        )
    numbers = ("bias", "error", "shift", "spread")
    measured = np.array([[judge[key] for key in numbers] for judge in judges]).reshape(-1, 4)
    bias, error, mean_shift, spread = measured[np.isfinite(measured).all(axis=1)].T
    try:
        by_method = slopes(bias, error, mean_shift, spread)
    except ValueError as wrong:
        raise UserError(f"{folder}: {wrong}. Train other judges, two seeds or more.") from wrong
    return MeasuredBiases(judges, reliability(bias, error), by_method, problems)
