"""Behaviour of the policy as numbers: features of every answer, step means, and a run's shift."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from judges.features import FEATURES, features

if TYPE_CHECKING:
    import pandas as pd

UNITS: dict[str, str] = {
    "length": "words",
    "repetition": "share of words",
}
"""Unit of a feature where it is not a count per answer."""

TAIL = 0.1
"""Share of the recorded steps at each end that a shift compares."""


def unit(feature: str) -> str:
    """The unit of one feature, for axes and tables."""
    return UNITS.get(feature, "per answer")


def study_keyword(runs: pd.DataFrame) -> str:
    """The keyword that the ``keyword`` feature counts: the first one any judge was dosed with.

    One keyword for all runs, because arms are compared on it.
    """
    chosen = sorted(set(runs["keyword"]) - {""})
    return chosen[0] if chosen else ""


def feature_frame(rollouts: pd.DataFrame, keyword: str = "") -> pd.DataFrame:
    """Features of every rollout's answer: cell, arm, seed, step, rollout_id + one column each.

    An answer that is missing (thinking that never ended) has NaN features: it was not measured.
    Equal answers are measured once.
    """
    import numpy as np
    import pandas as pd

    codes, texts = pd.factorize(rollouts["answer"])
    measured = [features(text, keyword) for text in texts]
    values = np.full((len(texts) + 1, len(FEATURES)), np.nan)
    for row, found in enumerate(measured):
        values[row] = [found[name] for name in FEATURES]
    # factorize gives missing answers the code -1, which is the last row: all NaN.
    columns = pd.DataFrame(values[codes], columns=list(FEATURES), index=rollouts.index)
    return pd.concat([rollouts[["cell", "arm", "seed", "step", "rollout_id"]], columns], axis=1)


def step_means(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Mean of each column over the rollouts of one run and step, long.

    Columns: cell, arm, seed, step, metric, value. Missing values are left out of a mean; a step
    without any gives NaN.
    """
    keys = ["cell", "arm", "seed", "step"]
    means = frame.groupby(keys, observed=True, sort=True)[columns].mean().reset_index()
    return means.melt(id_vars=keys, value_vars=columns, var_name="metric", value_name="value")


def run_shift(means: pd.DataFrame) -> pd.DataFrame:
    """How far each run moved: cell, arm, seed, metric, first, last, shift, steps.

    With w = ceil(recorded steps / 10): ``first`` is the mean of the first w step means, ``last``
    that of the last w, ``shift`` last - first. A run of one step has no shift (NaN); neither has
    one whose first or last w steps hold no value at all.
    """
    import pandas as pd

    rows = []
    keys = ["cell", "arm", "seed", "metric"]
    for _, run in means.groupby(keys, observed=True, sort=True):
        values = run.sort_values("step")["value"]
        window = math.ceil(len(values) * TAIL)
        first, last = values.iloc[:window].mean(), values.iloc[-window:].mean()
        shift = last - first if len(values) > 1 else float("nan")
        rows.append((*run[keys].iloc[0], first, last, shift, len(values)))
    return pd.DataFrame(rows, columns=[*keys, "first", "last", "shift", "steps"])
