"""Dose and response over runs: how much behaviour, or gap, a unit of injected bias makes.

    python -m analysis.dose study=dose-response [feature=length] [out=FILE] [figure=FILE]

The run is the unit. A line, a monotone step function and an Emax curve are fitted to the shift of
each run against the dose of its judge, with a trend test that permutes doses over runs. Natural
judges, whose bias is itself an estimate, are those of `analysis.natural`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.calibration import FEWEST as FEWEST_OTHERS
from analysis.command import study_command, write_json
from experiments.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from analysis.propagation import Trajectory
    from analysis.records import Run

USAGE = "python -m analysis.dose study=dose-response [feature=length] [runs_dir=runs] [out=FILE]"
DRAWS = 10_000
"""Permutations of the trend test, where not all can be counted."""
EXACT = 7
"""Runs up to which all orders are counted: 5,040 of 7."""
FEWEST = 3
"""Different doses that a curve takes."""


@dataclass(frozen=True)
class Line:
    """response = intercept + slope x dose; the slope's t interval is over runs."""

    intercept: float
    slope: float
    low: float
    high: float
    r2: float
    runs: int


@dataclass(frozen=True)
class Curve:
    """An Emax curve e0 + emax x d / (ed50 + d) of d = dose - smallest dose, ed50 > 0.

    ``aic`` against ``aic_line`` says whether the bend is worth its parameter; NaN and a note where
    it could not be fitted.
    """

    e0: float
    emax: float
    ed50: float
    aic: float
    aic_line: float
    note: str = ""


def line(dose: np.ndarray, response: np.ndarray, level: float = 0.95) -> Line:
    """Least squares over runs, shapes (R,).

    Raises:
        ValueError: fewer than three runs, or one dose only.
    """
    import numpy as np
    from scipy import stats

    if len(dose) < FEWEST or np.ptp(dose) == 0:
        raise ValueError("a line takes three runs and two doses")
    fit = stats.linregress(dose, response)
    half = float(stats.t.ppf((1 + level) / 2, len(dose) - 2) * fit.stderr)
    slope = float(fit.slope)
    return Line(
        float(fit.intercept), slope, slope - half, slope + half, float(fit.rvalue**2), len(dose)
    )


def steps(dose: np.ndarray, response: np.ndarray) -> list[tuple[float, float]]:
    """The monotone fit: (dose, response) for each dose, rising or falling as the line does."""
    import numpy as np
    from scipy.optimize import isotonic_regression

    doses = np.unique(dose)
    means = np.array([response[dose == one].mean() for one in doses])
    counts = np.array([(dose == one).sum() for one in doses], dtype=float)
    rising = np.corrcoef(dose, response)[0, 1] >= 0
    fitted = isotonic_regression(means, weights=counts, increasing=bool(rising)).x
    return [(float(one), float(value)) for one, value in zip(doses, fitted, strict=True)]


def emax(dose: np.ndarray, response: np.ndarray) -> Curve:
    """The Emax curve by least squares, with the AIC of curve and line (normal errors)."""
    import numpy as np
    from scipy.optimize import OptimizeWarning, curve_fit

    nan = float("nan")
    straight = line(dose, response)
    aic_line = _aic(response - straight.intercept - straight.slope * dose, 3)
    shifted = dose - dose.min()
    if len(np.unique(dose)) < FEWEST + 1:
        note = f"{len(np.unique(dose))} doses are too few for three parameters"
        return Curve(nan, nan, nan, nan, aic_line, note)

    def bent(d: np.ndarray, e0: float, most: float, half: float) -> np.ndarray:
        return e0 + most * d / (np.exp(half) + d)

    start = (response[shifted == 0].mean(), straight.slope * np.ptp(dose) * 2, np.log(np.ptp(dose)))
    try:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("error", OptimizeWarning)
            (e0, most, half), _ = curve_fit(bent, shifted, response, p0=start, maxfev=5000)
    except (RuntimeError, OptimizeWarning) as error:
        return Curve(nan, nan, nan, nan, aic_line, f"no fit: {str(error).splitlines()[0][:80]}")
    note = "" if np.exp(half) < 10 * np.ptp(dose) else "as good as straight over these doses"
    aic = _aic(response - bent(shifted, e0, most, half), 4)
    return Curve(float(e0), float(most), float(np.exp(half)), aic, aic_line, note)


def _aic(residuals: np.ndarray, parameters: int) -> float:
    """n log(RSS / n) + 2 k, the variance counted among the parameters."""
    import numpy as np

    n = len(residuals)
    rss = float(residuals @ residuals)
    return n * float(np.log(max(rss, 1e-300) / n)) + 2 * parameters


def trend_p(dose: np.ndarray, response: np.ndarray, seed: int = 0, draws: int = DRAWS) -> float:
    """Two-sided permutation p of the correlation of dose and response over runs.

    All orders are counted where there are no more than ``draws``, and so many are drawn elsewhere.
    """
    from itertools import permutations
    from math import factorial

    import numpy as np

    if len(dose) < FEWEST or np.ptp(dose) == 0 or np.ptp(response) == 0:
        return float("nan")
    x, y = dose - dose.mean(), response - response.mean()
    least = abs(x @ y) - 1e-9 * (abs(x) @ abs(y))  # equal on paper is equal here
    if len(y) <= EXACT and factorial(len(y)) <= draws:
        shuffled = np.array(list(permutations(y))) @ x
        return float((abs(shuffled) >= least).mean())
    rng = np.random.default_rng(seed)
    shuffled = rng.permuted(np.tile(y, (draws, 1)), axis=1) @ x
    return (int((abs(shuffled) >= least).sum()) + 1) / (draws + 1)


def study(folder: Path, feature: str) -> dict[str, Any]:
    """Dose of every finished run, its shift, the fits and the theory, as plain data.

    ``runs`` has per run: dose, ``beta`` of its KL penalty, the shifts of the feature and of the
    truth, and the ``first_order`` one of `first_order`.

    Raises:
        UserError: no simulated judges, or fewer than three doses of the feature.
    """
    import numpy as np
    import yaml

    from analysis.behaviour import shift
    from analysis.propagation import paths
    from analysis.records import read_runs, step_means

    runs, problems = read_runs(folder)
    dosed, rows = [], []
    for run in runs:
        if not run.done or feature not in run.names:
            continue
        config = yaml.safe_load((folder / run.cell / "config.yaml").read_text(encoding="utf-8"))
        simulated = config["judge"].get("simulated")
        if simulated is not None:
            dosed.append(run)
            dose = float(simulated["doses"].get(feature, 0.0))
            beta = float((config.get("trainer") or {}).get("beta", 0.0))
            rows.append({"cell": run.cell, "dose": dose, "beta": beta})
    own = [path for path in paths(dosed) if path.feature == feature]
    expected = first_order(dosed, own, {row["cell"]: row["beta"] for row in rows})
    for run, path, row in zip(dosed, own, rows, strict=True):
        row["shift"] = shift(path.level)
        row["truth"] = shift(step_means(run, run.truth))
        row["first_order"] = expected[run.cell]
    rows = [row for row in rows if np.isfinite(row["shift"])]
    dose, response = (np.array([row[key] for row in rows]) for key in ("dose", "shift"))
    if len(np.unique(dose)) < FEWEST:
        raise UserError(
            f"{folder} has finished runs under {len(np.unique(dose))} doses of {feature}, and a"
            f" curve takes {FEWEST}. Type: python -m experiments.sweep experiment=dose-response"
        )
    return {
        "study": folder.name,
        "feature": feature,
        "unit": "run",
        "runs": rows,
        "line": asdict(line(dose, response)),
        "monotone": steps(dose, response),
        "emax": asdict(emax(dose, response)),
        "trend_p": trend_p(dose, response),
        "theory": theory(rows),
        "problems": problems,
    }


def first_order(
    runs: Sequence[Run], own: Sequence[Trajectory], betas: Mapping[str, float]
) -> dict[str, float]:
    """Cell -> shift of one feature that theory says, NaN where it cannot say any.

    Under a KL penalty it is where that holds the feature (`analysis.propagation.kl_limit`); else
    what the run's steps have pushed, times the scale of the other runs without a penalty.

    Args:
        own: the path of the feature in each run.
        betas: cell -> ``trainer.beta``.
    """
    from analysis.propagation import kl_limit, predict

    free = predict([path for path in own if betas[path.cell] == 0], "adam")
    expected = {row.cell: row.predicted for row in free}
    for run, path in zip(runs, own, strict=True):
        if betas[run.cell] > 0:
            expected[run.cell] = kl_limit(run, betas[run.cell])[path.feature][0]
    return expected


def theory(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """First-order shift against dose, one line for each beta among the runs of `study`.

    ``points`` are (dose, mean over runs); ``slope`` is theirs over runs and ``amplification`` the
    observed slope over it, NaN where there is no line; ``note`` says why there are no points.
    """
    import numpy as np

    nan = float("nan")
    found = []
    for beta in sorted({row["beta"] for row in rows}):
        own = [row for row in rows if row["beta"] == beta]
        dose, response, expected = (
            np.array([row[key] for row in own]) for key in ("dose", "shift", "first_order")
        )
        known = np.isfinite(expected)
        dose, response, expected = dose[known], response[known], expected[known]
        points = [(float(one), float(expected[dose == one].mean())) for one in np.unique(dose)]
        one = {"beta": beta, "points": points, "slope": nan, "amplification": nan, "note": ""}
        if len(dose) >= FEWEST and np.ptp(dose) > 0:
            one["slope"] = line(dose, expected).slope
            if one["slope"] != 0:
                one["amplification"] = line(dose, response).slope / one["slope"]
        if not points:
            one["note"] = f"No first-order prediction at beta = {beta:g}: " + (
                "the first step has no two rewards and answers to compare within a group."
                if beta > 0
                else f"its scale is fitted on the other runs without a KL penalty, at least "
                f"{FEWEST_OTHERS} with a logged gradient norm, and there are {len(own) - 1}."
            )
        found.append(one)
    return found


def caption(found: dict[str, Any]) -> str:
    """What the theory's lines in `figure` are, or why there is none."""
    said = []
    for one in found["theory"]:
        if one["note"]:
            said.append(one["note"])
            continue
        source = (
            f"First order at beta = {one['beta']:g}: where the KL penalty would hold "
            f"{found['feature']} in the end, Cov(A, z) / beta of the first step (dose x Var(z) / "
            "beta beside the truth's part)"
            if one["beta"] > 0
            else f"First order: covariance of advantage and {found['feature']}, summed over each "
            "run's steps, times the scale fitted on the other runs"
        )
        ratio = f"; observed / predicted slope {one['amplification']:.2f}"
        said.append(source + (ratio if one["slope"] == one["slope"] else "") + ".")
    return " ".join(said)


def figure(found: dict[str, Any]) -> Any:
    """Shift of every run against its dose: line, curve, monotone fit, and the theory's lines.

    A theory far off the runs is cut at the edge, so that the runs can be seen.
    """
    from textwrap import fill

    import matplotlib.pyplot as plt
    import numpy as np
    import seaborn as sns

    from analysis.behaviour import unit
    from analysis.figures import DASHES, style

    dose = np.array([run["dose"] for run in found["runs"]])
    shift = np.array([run["shift"] for run in found["runs"]])
    grid = np.linspace(dose.min(), dose.max(), 200)
    with style():
        made, axes = plt.subplots(figsize=(6, 5), layout="constrained")
        blue, orange, green, red = sns.color_palette("colorblind", 4)
        axes.axhline(0, color="0.7", linewidth=1)
        axes.scatter(dose, shift, s=26, color=blue, zorder=3, label="run")
        fit, bent = found["line"], found["emax"]
        axes.plot(grid, fit["intercept"] + fit["slope"] * grid, color=orange, label="line")
        if not np.isnan(bent["emax"]) and not bent["note"]:
            d = grid - dose.min()
            curve = bent["e0"] + bent["emax"] * d / (bent["ed50"] + d)
            axes.plot(grid, curve, color=green, linestyle="--", label="Emax")
        xs, ys = zip(*found["monotone"], strict=True)
        axes.plot(xs, ys, color=red, linestyle=":", marker="_", label="monotone")
        low, high = axes.get_ylim()
        for k, one in enumerate(one for one in found["theory"] if one["points"]):
            named = f"first order, beta = {one['beta']:g}" if one["beta"] > 0 else "first order"
            xs, ys = zip(*one["points"], strict=True)
            look: Any = {"linestyle": DASHES[k % len(DASHES)], "marker": "x", "markersize": 5}
            axes.plot(xs, ys, color="0.25", linewidth=1.5, label=named, **look)
        below, above = axes.get_ylim()
        room, said = high - low, caption(found)
        if below < low - room or above > high + room:
            said += " A line leaves the panel."
        axes.set(
            xlabel=f"dose (score per SD of {found['feature']})",
            ylabel=f"shift in {found['feature']} ({unit(found['feature'])})",
            ylim=(max(below, low - room), min(above, high + room)),
        )
        made.legend(loc="outside upper center", ncols=3)
        made.supxlabel(fill(said, 92), fontsize=8.5, x=0.01, ha="left")
    return made


def main(arguments: Sequence[str]) -> int:
    """The command line; 0, or 2 after a user's error."""
    try:
        given, folder = study_command(arguments, ("feature", "out", "figure"), USAGE)
        found = study(folder, given.get("feature", "length"))
        if given.get("out"):
            write_json(given["out"], found)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    fit, bent = found["line"], found["emax"]
    print(f"{found['feature']}: {fit['runs']} runs, shift per unit of dose {fit['slope']:.3g}"
          f" [{fit['low']:.3g}, {fit['high']:.3g}], R2 {fit['r2']:.3f},"
          f" trend p {found['trend_p']:.4g} (permutation)")  # fmt: skip
    print("monotone: " + ", ".join(f"{dose:g} -> {value:.3g}" for dose, value in found["monotone"]))
    print(f"Emax: e0 {bent['e0']:.3g}, emax {bent['emax']:.3g}, ed50 {bent['ed50']:.3g};"
          f" AIC {bent['aic']:.1f} against {bent['aic_line']:.1f} of the line"
          f"{' (' + bent['note'] + ')' if bent['note'] else ''}")  # fmt: skip
    print(caption(found))
    for problem in found["problems"]:
        print(f"problem: {problem}")
    if given.get("figure"):
        figure(found).savefig(given["figure"], dpi=150)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
