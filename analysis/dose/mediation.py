"""Does the truth fall because of the behaviour that the judge paid for? Descriptive, over runs.

Treatment is the dose of a run's judge, mediator the run's shift in a behaviour, outcome its shift
in truth. Two lines (mediator on treatment; outcome on both) split the total effect into one through
the behaviour and a rest. The dose is assigned by us, the behaviour is not: whatever moves behaviour
and truth together is read as mediation, and ``rho`` says how strong that would have to be.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from warnings import catch_warnings

import numpy as np
import pandas as pd
from statsmodels.regression.linear_model import OLS
from statsmodels.tools.sm_exceptions import SingularMatrixWarning

from analysis.dose.estimate import study as doses
from analysis.statistics.estimate import NAN, Estimate
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
    """Split the effect of ``treatment`` on ``outcome``, all of shape (R,). Raises ValueError: fewer
    than eight runs, or nothing that varies.

    Source: Baron and Kenny 1986 for the split; Imai, Keele and Tingley 2010, theorem 4, for rho.
    """
    x, m, y = (np.asarray(values, dtype=float) for values in (treatment, mediator, outcome))
    complete = np.isfinite(x) & np.isfinite(m) & np.isfinite(y)
    x, m, y = x[complete], m[complete], y[complete]
    if len(x) < FEWEST or min(np.ptp(x), np.ptp(m), np.ptp(y)) == 0:
        raise ValueError(f"mediation needs {FEWEST} runs in which all three vary, not {len(x)}")
    n, constant = len(x), np.ones(len(x))
    y_on_x = OLS(y, np.stack([constant, x], axis=1)).fit()
    m_on_x = OLS(m, np.stack([constant, x], axis=1)).fit()
    both = OLS(y, np.stack([constant, x, m], axis=1))
    both.df_resid = n - 3  # as drawn_b has it, where treatment and mediator are one column too
    with catch_warnings(action="ignore", category=SingularMatrixWarning):  # a note below says it
        y_on_both = both.fit()
    total, a, b = y_on_x.params[1], m_on_x.params[1], y_on_both.params[2]
    rng = np.random.default_rng(seed)
    drawn_a = a + m_on_x.bse[1] * rng.standard_t(n - 2, DRAWS)
    drawn_b = b + y_on_both.bse[2] * rng.standard_t(n - 3, DRAWS)
    low, high = np.quantile(drawn_a * drawn_b, [0.025, 0.975])
    ends = y_on_x.conf_int()[1]
    is_clear = ends[0] > 0 or ends[1] < 0
    notes = (
        [] if is_clear else ["the total effect is not clearly different from 0, so it has no share"]
    )
    if np.corrcoef(x, m)[0, 1] ** 2 > 0.95:
        notes.append("treatment and mediator move together: their effects are not separable")

    def over_runs(value: float, low: float, high: float) -> Estimate:
        return Estimate(float(value), float(low), float(high), n, "run")

    return Mediation(
        n=n,
        total=over_runs(total, *ends),
        indirect=over_runs(a * b, low, high),
        direct=float(total - a * b),
        share=float(a * b / total) if is_clear else NAN,
        a=over_runs(a, *m_on_x.conf_int()[1]),
        b=over_runs(b, *y_on_both.conf_int()[2]),
        rho=float(np.corrcoef(m_on_x.resid, y_on_x.resid)[0, 1]),
        note="; ".join(notes),
    )


def study(folder: Path, feature: str) -> tuple[pd.DataFrame, Mediation]:
    """Mediation over a study's finished runs under simulated judges. Raises UserError: too few
    runs, or no truth."""
    rows = doses(folder, feature)[0].runs
    try:
        return rows, mediate(*(rows[name].to_numpy() for name in ("dose", "shift", "truth")))
    except ValueError as error:
        raise UserError(f"{folder}: {error}. Train more seeds or doses.") from error
