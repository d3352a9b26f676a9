"""Verdicts without a score: how many of each judge, why, and on how long answers."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.statistics.intervals import grouped_intervals
from study.verdict import Outcome


def failure_table(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Verdicts by judge, role and outcome (those that occurred, scored always) with their sum.

    ``outcomes`` is as in `analysis.records.runs.OUTCOMES`; ``unscored`` is a share.
    """
    keys = ["judge", "role"]
    counts = outcomes.pivot_table(
        index=keys, columns="outcome", values="verdicts", aggfunc="sum", fill_value=0
    )
    order = [str(outcome) for outcome in Outcome]
    occurred = [name for name in order if name in counts or name == "scored"]
    other = [name for name in counts if name not in order]
    table = counts.reindex(columns=[*occurred, *other], fill_value=0).astype("int64").reset_index()
    table.columns.name = None
    table["verdicts"] = table[[*occurred, *other]].sum(axis=1).astype("int64")
    table["unscored"] = 1 - table["scored"] / table["verdicts"]
    return table


def failures_by_length(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Share of unscored verdicts by decile of answer length, per judge.

    Deciles are cut per judge over all of its verdicts whose answer has a length; equal lengths stay
    together, so there may be fewer than ten bins. Each share is a mean over runs with its t
    interval. ``outcomes`` is as in `analysis.records.runs.OUTCOMES`.
    """
    tables = []
    for judge, part in outcomes[outcomes["words"].notna()].groupby("judge"):
        words, count = part["words"].to_numpy(dtype=float), part["verdicts"].to_numpy(dtype=int)
        cuts = np.unique(np.quantile(np.repeat(words, count), np.linspace(0, 1, 11)))
        # bins are open below and closed above, but for the first, which has the shortest answer
        bins = np.maximum(np.searchsorted(cuts, words, side="left") - 1, 0)
        lost = count * part["outcome"].ne("scored").to_numpy()
        part = part.assign(bin=bins, lost=lost)
        by_run = part.groupby(["cell", "bin"])[["lost", "verdicts"]].sum().reset_index()
        table = grouped_intervals(by_run.assign(value=by_run["lost"] / by_run["verdicts"]), ["bin"])
        in_bin = part.groupby("bin").agg(
            words_low=("words", "min"), words_high=("words", "max"), verdicts=("verdicts", "sum")
        )
        tables.append(in_bin.reset_index().merge(table, on="bin").assign(judge=judge))
    columns = ["judge", "bin", "words_low", "words_high", "verdicts"]
    columns += ["mean", "low", "high", "n", "missing"]
    return (
        pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)
    )
