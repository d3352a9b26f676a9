"""Frozen evaluation by arm: what moved on held-out rows, and whether training rows moved as far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.drift.estimate import run_shifts, shift_table
from analysis.frozen.run import answer_values, frozen_shifts, has_frozen
from analysis.records.runs import Run
from analysis.statistics.intervals import mean_interval


def held_out_table(runs: Sequence[Run], base: str | None) -> pd.DataFrame:
    """Shifts on held-out rows by arm and metric, beside those on the rows that were trained on.

    Columns are those of `analysis.drift.estimate.shift_table` for the drawn answers, and further
    ``greedy`` (the shift of the most probable answers), ``training`` (of the rollouts, between the
    first and the last tenth of the steps) and ``apart``, ``apart_low``, ``apart_high``: held-out
    minus training, with its 95 % t interval over runs. About 0 is a shift that transfers. Metrics
    that no held-out answer has, or that are the same at both ends of every arm, are left out, and
    so are runs without frozen evaluation.
    """
    evaluated = [run for run in runs if has_frozen(run)]
    drawn, greedy = frozen_shifts(evaluated), frozen_shifts(evaluated, "greedy")
    training = run_shifts(evaluated, answer_values)
    table = shift_table(drawn, base)
    extra_rows = []
    for arm, metric in zip(table["arm"], table["metric"], strict=True):
        of_kind = [
            part.loc[(part["arm"] == arm) & (part["metric"] == metric)].set_index("cell")
            for part in (drawn, greedy, training)
        ]
        held_out, at_most, trained = (part["shift"] for part in of_kind)
        # both ends are samples of their own, and so is what the intervals may not fall below
        within = of_kind[0]["group_var"] + of_kind[2]["group_var"]
        apart = mean_interval((held_out - trained).tolist(), within=within.tolist())
        means = {"greedy": at_most, "training": trained}
        extra_rows.append(
            {name: mean_interval(shifts.tolist()).value for name, shifts in means.items()}
            | {"apart": apart.value, "apart_low": apart.low, "apart_high": apart.high}
        )
    names = ["greedy", "training", "apart", "apart_low", "apart_high"]
    whole = table.join(pd.DataFrame(extra_rows, index=table.index, columns=names, dtype=np.float64))
    levels = whole.groupby("metric")[["first", "last"]].agg(["min", "max"])
    low, high = (levels.xs(end, axis=1, level=1) for end in ("min", "max"))
    varying = set(levels.index[high.max(axis=1) > low.min(axis=1)])
    varying |= set(whole.loc[whole["training"].abs() > 0, "metric"])
    is_shown = whole["shift"].notna() & whole["metric"].isin(varying)
    return whole[is_shown].reset_index(drop=True)
