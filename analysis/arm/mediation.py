"""Does the truth fall because of the behaviour that the judge paid for? Descriptive, over runs.

    python -m analysis.mediation study=dose-response feature=length

Treatment is the dose of a run's judge, mediator the run's shift in a behaviour, outcome its shift
in truth. Two lines (mediator on treatment; outcome on both) split the total effect into one through
the behaviour and a rest. The dose is assigned by us, the behaviour is not: whatever moves behaviour
and truth together is read as mediation, and ``rho`` says how strong that would have to be.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from analysis.arm.dose import study as doses
from analysis.statistics.estimate import Estimate, columns
from study.errors import UserError

FEWEST = 8
"""Runs that two lines with an interval take at least."""
DRAWS = 20_000


@dataclass(frozen=True)
class Mediation:
    """Effects per unit of treatment; the run is the unit.

    Attributes:
        total: slope of outcome on treatment.
        indirect: a x b, through the mediator, with a Monte Carlo 95 % interval from the two
            slopes' t distributions.
        direct: total - indirect.
        share: indirect / total; NaN where the total is not told from 0.
        a: slope of mediator on treatment, with its t interval.
        b: slope of outcome on mediator at the same treatment.
        rho: correlation of the two lines' errors at which the indirect effect would be 0; near 0
            a weak common cause is enough to make all of it.
    """

    n: int
    total: Estimate
    indirect: Estimate
    direct: float
    share: float
    a: Estimate
    b: Estimate
    rho: float
    note: str = ""


def mediate(
    treatment: np.ndarray, mediator: np.ndarray, outcome: np.ndarray, seed: int = 0
) -> Mediation:
    """Split the effect of ``treatment`` on ``outcome``, all of shape (R,).

    Raises:
        ValueError: fewer than eight runs, or nothing that varies.

    Source: Baron and Kenny 1986 for the split; Imai, Keele and Tingley 2010, theorem 4, for rho.
    """
    x, m, y = (np.asarray(values, dtype=float) for values in (treatment, mediator, outcome))
    known = np.isfinite(x) & np.isfinite(m) & np.isfinite(y)
    x, m, y = x[known], m[known], y[known]
    if len(x) < FEWEST or min(np.ptp(x), np.ptp(m), np.ptp(y)) == 0:
        raise ValueError(f"mediation takes {FEWEST} runs in which all three vary, not {len(x)}")
    total, total_se, of_y = _slopes(y, x[:, None])
    on_x, a_se, of_m = _slopes(m, x[:, None])
    both, both_se, _ = _slopes(y, np.stack([x, m], axis=1))
    a, b = on_x[0], both[1]
    rng = np.random.default_rng(seed)
    drawn_a = a + a_se[0] * rng.standard_t(len(x) - 2, DRAWS)
    drawn_b = b + both_se[1] * rng.standard_t(len(x) - 3, DRAWS)
    low, high = np.quantile(drawn_a * drawn_b, [0.025, 0.975])
    t2, t3 = (float(stats.t.ppf(0.975, len(x) - lost)) for lost in (2, 3))
    seen = abs(total[0]) > t2 * total_se[0]
    notes = [] if seen else ["the total effect is not told from 0, so it has no share"]
    if np.corrcoef(x, m)[0, 1] ** 2 > 0.95:
        notes.append("treatment and mediator move together: their effects cannot be told apart")

    def around(slope: float, half: float) -> Estimate:
        return Estimate(float(slope), float(slope - half), float(slope + half), len(x), "run")

    return Mediation(
        len(x),
        around(total[0], t2 * total_se[0]),
        Estimate(float(a * b), float(low), float(high), len(x), "run"),
        float(total[0] - a * b),
        float(a * b / total[0]) if seen else float("nan"),
        around(a, t2 * a_se[0]),
        around(b, t3 * both_se[1]),
        float(np.corrcoef(of_m, of_y)[0, 1]),
        "; ".join(notes),
    )


def _slopes(y: np.ndarray, x_R_K: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least squares with an intercept: slopes, their standard errors, residuals."""
    design = np.column_stack([np.ones(len(y)), x_R_K])
    coef, *_ = np.linalg.lstsq(design, y, rcond=None)
    residuals = y - design @ coef
    variance = residuals @ residuals / (len(y) - design.shape[1])
    errors = np.sqrt(np.diag(np.linalg.pinv(design.T @ design)) * variance)
    return coef[1:], errors[1:], residuals


def study(folder: Path, feature: str) -> dict[str, Any]:
    """Mediation over a study's finished runs under simulated judges, as plain data.

    Raises:
        UserError: too few runs, or no truth.
    """
    rows = doses(folder, feature)["runs"]
    dose, shift, truth = (
        np.array([row[key] for row in rows]) for key in ("dose", "shift", "truth")
    )
    try:
        split = mediate(dose, shift, truth)
    except ValueError as error:
        raise UserError(f"{folder}: {error}. Train more seeds or doses.") from error
    return {
        **{"study": folder.name, "feature": feature, "unit": "run", "runs": rows},
        **columns(split, indirect=""),
    }
