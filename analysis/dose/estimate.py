"""Dose and response over runs: how much behaviour, or gap, a unit of injected bias makes.

A line, a monotone step function and an Emax curve are fitted to the shift of each run against the
dose of its judge. Where every seed ran every dose the seed is the unit: the slope's interval is
over the seeds' own slopes, and the trend test permutes doses within seeds. Natural judges, whose
bias is itself an estimate, are those of `analysis.natural`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import factorial, isfinite, prod
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats
from scipy.optimize import OptimizeWarning, curve_fit, isotonic_regression

from analysis.propagation.calibration import AGAINST
from analysis.propagation.estimate import kl_limit, paths, predict
from analysis.records.runs import Run, read_runs, shift, step_means
from analysis.statistics.estimate import NAN, Estimate, columns
from analysis.statistics.intervals import Line, line, mean_interval
from analysis.statistics.prediction import FEWEST as FEWEST_OTHERS
from study.errors import UserError

LABELS = ("judge.name", "judge.family", "judge.size", "judge.endpoint.model")
"""What a simulated judge is called; nothing that it does."""
DRAWS = 10_000
"""Permutations of the trend test; all are counted where there are no more."""
FEWEST = 3
"""Different doses that a curve takes."""


@dataclass(frozen=True)
class Curve:
    """An Emax curve e0 + emax x d / (ed50 + d) of d = dose - smallest dose, ed50 > 0.

    ``aic`` against ``aic_line`` says whether the bend is worth its parameter; NaN and a note where
    it could not be fitted, or bends so late that its parameters mean nothing.
    """

    e0: float = NAN
    emax: float = NAN
    ed50: float = NAN
    aic: float = NAN
    aic_line: float = NAN
    note: str = ""


@dataclass(frozen=True)
class Theory:
    """First-order shift against dose, of the runs at one ``beta``.

    ``points`` are (dose, mean over runs); ``slope`` is theirs over runs and ``amplification`` the
    observed slope over it, NaN where there is no line; ``note`` says why there are no points.
    """

    beta: float
    points: list[tuple[float, float]]
    slope: float
    amplification: float
    note: str


@dataclass(frozen=True)
class DoseResponse:
    """How much of a feature a unit of dose makes, over runs.

    Attributes:
        runs: cell, seed, dose, KL penalty (``beta``), and shifts of the feature and of the truth;
            ``first_order``, the shift that theory predicts: under a penalty where that holds the
            feature (`analysis.propagation.estimate.kl_limit`), else the run's cumulative push times
            the scale of the other runs without one; ``unpredicted``, why it then predicts none.
        left_out: runs under simulated judges that `doses_of` has not.
        unscored: share of rollouts without a judge's score.
        slope: `slope_by_seed`; ``line`` is over runs taken for independent.
        monotone: `steps`.
    """

    feature: str
    runs: pd.DataFrame
    left_out: int
    unscored: float
    slope: Estimate
    line: Line
    lack_of_fit_p: float
    monotone: list[tuple[float, float]]
    emax: Curve
    trend_p: float
    theory: list[Theory]

    def numbers(self) -> dict[str, object]:
        """For JSON."""
        return {
            "feature": self.feature,
            "unit": self.slope.unit,
            "runs": self.runs.to_dict("records"),
            "left_out": self.left_out,
            "unscored": self.unscored,
            "slope": self.slope.row("slope") | {"unit": self.slope.unit},
            "line": columns(self.line, slope=""),
            "lack_of_fit_p": self.lack_of_fit_p,
            "monotone": self.monotone,
            "emax": vars(self.emax),
            "trend_p": self.trend_p,
            "theory": [vars(line) for line in self.theory],
        }


def complete(dose: np.ndarray, seed: np.ndarray) -> bool:
    """Whether there are two seeds or more, and each ran the same doses once."""
    runs = zip(seed.tolist(), dose.tolist(), strict=True)
    return len(set(seed)) > 1 and sorted(runs) == list(product(np.unique(seed), np.unique(dose)))


def slope_by_seed(dose: np.ndarray, response: np.ndarray, seed: np.ndarray) -> Estimate:
    """The mean of the seeds' own slopes where each ran every dose, else the line over runs.

    What seeds differ in is then no noise of the slope. All arguments are of shape (R,). Raises
    ValueError: fewer than three runs, or one dose only.
    """
    if not complete(dose, seed) or len(np.unique(dose)) < FEWEST:
        why = "seeds did not all run the same doses: runs are treated as independent"
        return replace(line(dose, response).slope, note=why)
    of_seed = [seed == number for number in np.unique(seed)]
    return mean_interval([line(dose[rows], response[rows]).slope.value for rows in of_seed], "seed")


def lack_of_fit(dose: np.ndarray, response: np.ndarray, seed: np.ndarray) -> float:
    """p that the means of the doses are on a straight line; NaN where that cannot be tested.

    F of what the line leaves of the dose means over what is left beside dose means (and seed means,
    where each seed ran every dose).

    Source: analysis of variance of a randomised block design, Montgomery, ch. 4.
    """
    doses, at, counts = np.unique(dose, return_inverse=True, return_counts=True)
    means = np.bincount(at, response) / counts
    fit = line(dose, response)
    bend = float((counts * (means - fit.intercept - fit.slope.value * doses) ** 2).sum())
    residuals, free = response - means[at], len(response) - len(doses)
    if complete(dose, seed):
        _, of, sizes = np.unique(seed, return_inverse=True, return_counts=True)
        residuals = residuals - (np.bincount(of, residuals) / sizes)[of]
        free -= len(sizes) - 1
    noise = float(residuals @ residuals)
    if len(doses) < FEWEST or free < 1 or noise <= 1e-20 * float(response @ response):
        return NAN
    return float(stats.f.sf(bend / (len(doses) - 2) / (noise / free), len(doses) - 2, free))


def steps(dose: np.ndarray, response: np.ndarray) -> list[tuple[float, float]]:
    """The monotone fit: (dose, response) for each dose, rising or falling as the line does."""
    doses, counts = np.unique(dose, return_counts=True)
    means = np.array([response[dose == d].mean() for d in doses])
    rising = np.cov(dose, response)[0, 1] >= 0
    fitted = isotonic_regression(means, weights=counts, increasing=bool(rising)).x
    return list(zip(doses.tolist(), fitted.tolist(), strict=True))


def emax(dose: np.ndarray, response: np.ndarray) -> Curve:
    """The Emax curve by least squares, with the AIC of curve and line (normal errors)."""
    straight = line(dose, response)
    aic_line = _aic(response - straight.intercept - straight.slope.value * dose, 3)
    shifted = dose - dose.min()
    if (doses := len(np.unique(dose))) < FEWEST + 1:
        return Curve(aic_line=aic_line, note=f"{doses} doses are too few for three parameters")

    def bent(d: np.ndarray, e0: float, most: float, half: float) -> np.ndarray:
        return e0 + most * d / (np.exp(half) + d)

    span = np.ptp(dose)
    start = (response[shifted == 0].mean(), straight.slope.value * span * 2, np.log(span))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", OptimizeWarning)
            (e0, most, half), _ = curve_fit(bent, shifted, response, p0=start, maxfev=5000)
    except (RuntimeError, OptimizeWarning) as error:
        return Curve(aic_line=aic_line, note=f"no fit: {str(error).splitlines()[0][:80]}")
    aic = _aic(response - bent(shifted, e0, most, half), 4)
    if np.exp(half) >= 10 * span:
        return Curve(aic=aic, aic_line=aic_line, note="as good as straight over these doses")
    return Curve(float(e0), float(most), float(np.exp(half)), aic, aic_line)


def _aic(residuals: np.ndarray, parameters: int) -> float:
    """n log(RSS / n) + 2 k, the variance counted among the parameters."""
    mean_square = max(float(residuals @ residuals), 1e-300) / len(residuals)
    return len(residuals) * float(np.log(mean_square)) + 2 * parameters


def trend_p(
    dose: np.ndarray,
    response: np.ndarray,
    seed: int = 0,
    draws: int = DRAWS,
    blocks: np.ndarray | None = None,
) -> float:
    """Two-sided permutation p of the covariance of dose and response, both of shape (R,).

    All orders are counted where there are no more than ``draws``, and so many are drawn elsewhere.
    Responses are permuted within ``blocks`` (labels, shape (R,); one block by default), and the
    covariance is that within blocks.
    """
    if len(dose) < FEWEST or np.ptp(dose) == 0 or np.ptp(response) == 0:
        return NAN
    labels = np.zeros(len(dose)) if blocks is None else blocks
    blocks_of = [labels == label for label in np.unique(labels)]
    parts = [(dose[b] - dose[b].mean(), response[b] - response[b].mean()) for b in blocks_of]
    observed = abs(sum(x @ y for x, y in parts))
    least = observed - 1e-9 * sum(abs(x) @ abs(y) for x, y in parts)  # equal on paper is equal here
    if prod(factorial(len(y)) for _, y in parts) <= draws:
        sums = np.zeros(1)
        for x, y in parts:
            sums = np.add.outer(sums, np.array(list(permutations(y))) @ x).ravel()
        return float((abs(sums) >= least).mean())
    rng = np.random.default_rng(seed)
    shuffled = np.zeros(draws)
    for x, y in parts:
        shuffled += rng.permuted(np.tile(y, (draws, 1)), axis=1) @ x
    return (int((abs(shuffled) >= least).sum()) + 1) / (draws + 1)


def study(folder: Path, feature: str) -> tuple[DoseResponse, list[str]]:
    """`response` of a study's finished runs, and what could not be read. Raises UserError: no
    simulated judges, or fewer than three doses of the feature."""
    runs, problems = read_runs(folder)
    done = [run for run in runs if run.done]
    doses = len(set(doses_of(done, feature).values()))
    if doses < FEWEST:
        raise UserError(
            f"{folder} has finished runs under {doses} doses of {feature}, but a curve needs"
            f" {FEWEST}. Type: python -m experiments.sweep experiment=dose-response"
        )
    return response(done, feature), problems


def doses_of(runs: Sequence[Run], feature: str) -> dict[str, float]:
    """Cell -> dose of the feature, of the runs of one curve whose shift is known.

    The judges of a curve are simulated and equal but for this dose and their names: one that pays
    for another behaviour too, or errs in another way, is no point of it at any dose. Of several
    such curves it is the one of most doses, with a dose of 0 rather than without, of most runs.
    """
    curves: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for run in runs:
        if feature not in run.names or run.doses is None:
            continue
        if isfinite(shift(step_means(run, run.features[..., run.names.index(feature)]))):
            dose = float(run.doses.get(feature) or 0.0)
            curves.setdefault(_beside(run, feature), {})[run.cell] = dose

    def size(doses: Mapping[str, float]) -> tuple[int, bool, int]:
        return len(set(doses.values())), 0.0 in doses.values(), len(doses)

    return max(curves.values(), key=size, default={})


def _beside(run: Run, feature: str) -> tuple[tuple[str, str], ...]:
    """What makes the judge of a run what it is, but its names and its dose of a feature."""
    dose = "judge.simulated.doses"
    settings = {
        key: repr(value)
        for key, value in run.identity.items()
        if key.startswith("judge.") and key not in (*LABELS, dose, f"{dose}.{feature}")
        if not key.startswith(f"{dose}.") or value != 0
    }
    return tuple(sorted(settings.items()))


def response(runs: Sequence[Run], feature: str) -> DoseResponse:
    """Dose of every run, its shift, the fits and the theory.

    ``runs``: with `FEWEST` doses of the feature or more, see `doses_of`.
    """
    doses = doses_of(runs, feature)
    dosed = [run for run in runs if run.cell in doses]
    betas = {run.cell: float(run.config.get("trainer.beta") or 0.0) for run in dosed}
    every_path = paths(dosed)
    shifts = {path.cell: shift(path.level) for path in every_path if path.feature == feature}
    free = [path for path in every_path if betas[path.cell] == 0]
    predicted = {row.cell: row for row in predict(free, "adam") if row.feature == feature}
    rows = pd.DataFrame(
        {
            "cell": run.cell,
            "seed": run.seed,
            "dose": doses[run.cell],
            "beta": betas[run.cell],
            "shift": shifts[run.cell],
            "truth": shift(step_means(run, run.levels())),
            "first_order": predicted[run.cell].predicted.value
            if run.cell in predicted
            else kl_limit(run, betas[run.cell])[feature][0],
            "unpredicted": predicted[run.cell].note if run.cell in predicted else "",
        }
        for run in dosed
    )
    dose, moved, seed = (rows[name].to_numpy() for name in ("dose", "shift", "seed"))
    slope = slope_by_seed(dose, moved, seed)
    scored = sum(int(np.isfinite(run.judge).sum()) for run in dosed)
    return DoseResponse(
        feature=feature,
        runs=rows,
        left_out=sum(run.doses is not None and run.cell not in doses for run in runs),
        unscored=1 - scored / sum(run.rollouts for run in dosed),
        slope=slope,
        line=line(dose, moved),
        lack_of_fit_p=lack_of_fit(dose, moved, seed),
        monotone=steps(dose, moved),
        emax=emax(dose, moved),
        trend_p=trend_p(dose, moved, blocks=seed if slope.unit == "seed" else None),
        theory=theory(rows),
    )


def theory(rows: pd.DataFrame) -> list[Theory]:
    """First-order shift against dose, one line for each beta among the runs of a `DoseResponse`."""
    lines = []
    for beta in sorted(rows["beta"].unique().tolist()):
        at_beta = rows[rows["beta"] == beta]
        numbers = at_beta[["dose", "shift", "first_order"]].to_numpy()
        dose, response, expected = numbers[np.isfinite(numbers[:, 2])].T
        points = [(float(d), float(expected[dose == d].mean())) for d in np.unique(dose)]
        slope = amplification = NAN
        if len(dose) >= FEWEST and np.ptp(dose) > 0:
            slope = line(dose, expected).slope.value
            amplification = line(dose, response).slope.value / slope if slope != 0 else NAN
        why = (
            f"its scale is fitted on the other runs without a KL penalty, at least "
            f"{FEWEST_OTHERS} with a logged gradient norm, but there are {len(at_beta) - 1}."
        )
        if beta > 0:
            why = "the first step has no two rewards and answers to compare within a group."
        elif at_beta["unpredicted"].eq(AGAINST).any():
            why = f"{AGAINST}."
        note = "" if points else f"No first-order prediction at beta = {beta:g}: {why}"
        lines.append(Theory(beta, points, slope, amplification, note))
    return lines


def left_out(runs: int) -> str:
    """The sentence on runs that are no point of a curve; empty where there are none."""
    verb = "run is" if runs == 1 else "runs are"
    why = "judges that differ in more than this dose, or no known shift"
    return f"{runs} {verb} left out: {why}" if runs else ""


def straight(p: float) -> str:
    """What the lack-of-fit test says, in words."""
    if not isfinite(p):
        return "whether it is straight cannot be tested"
    verdict = "a straight line does not hold" if p < 0.05 else "no bend is seen"
    return f"{verdict} (lack of fit p {p:.2g})"
