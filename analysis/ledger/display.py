"""The figure and the tables of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.display import markup
from analysis.display.figures import blank, palette, style
from analysis.display.markup import DECIMALS, TEXTS
from study.screen import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LEDGER_BEHAVIOURS = 5
"""Behaviours in the stacked ledger."""


@style()
def stacked(steps: pd.DataFrame, unique: Sequence[str]) -> Figure:
    """Explained advantage variance by behaviour as stacked areas, one panel per arm."""

    top = list(steps[list(unique)].mean().sort_values(ascending=False).index[:LEDGER_BEHAVIOURS])
    arms = sorted(steps["arm"].unique())
    wide = min(3, len(arms))
    high = -(-len(arms) // wide)
    figure = blank(3.4 * wide, 2.8 * high)
    panels = figure.subplots(high, wide, sharex=True, sharey=True, squeeze=False)
    colours = [*palette(len(top), "Set2"), (0.75, 0.75, 0.75)]  # not those of the arms
    labels = [*(name.removeprefix("unique/") for name in top), "several together"]
    for arm, axes in zip(arms, panels.flat, strict=False):
        part = steps[steps["arm"] == arm].groupby("step")[[*top, "advantage_r2"]].mean()
        # a feature that was the same in a whole step explains nothing there; without an R2
        # nothing was there to explain
        alone = part[top].fillna(0.0).clip(lower=0.0).to_numpy(copy=True).T
        alone[:, part["advantage_r2"].isna()] = np.nan
        together = np.clip(part["advantage_r2"] - alone.sum(axis=0), 0.0, None)
        axes.stackplot(part.index, *alone, together, colors=colours, labels=labels)
        axes.set(title=arm, ylim=(0, 1))
        axes.set(xlabel="training step", ylabel="share of variance")
        axes.tick_params(labelbottom=True, labelleft=True)
    for axes in list(panels.flat)[len(arms) :]:
        axes.set_visible(False)
    handles, names = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3)
    return figure


def ledger_table(table: pd.DataFrame, labels: str = "ledger") -> pd.DataFrame:
    """Metrics of ``texts.yaml`` by arm, intervals over runs; those that no arm has are left out."""
    runs = table.groupby("arm", sort=False)["n"].max().astype(int)
    rows = []
    head = TEXTS["heads"][labels]
    for metric, label in TEXTS[labels].items():
        by_arm = table[table["metric"] == metric].set_index("arm").reindex(runs.index)
        if by_arm["mean"].notna().any():
            line = {head: label}
            for arm, row in by_arm.iterrows():
                name = f"{arm} ({plural(runs[arm], 'run')})"
                ends = np.round(row[["mean", "low", "high"]].astype(float), DECIMALS)
                line[name] = markup.estimate(*ends, sign=labels != "ledger")
            rows.append(line)
    return pd.DataFrame(rows)


def calibration_table(table: pd.DataFrame) -> pd.DataFrame:
    """How well the advantages give each behaviour, the slope with its interval; what no behaviour
    has is left out."""
    slopes = [markup.estimate(*ends, sign=False) for ends in zip(
        table["slope"], table["low"], table["high"], strict=True)]  # fmt: skip
    shown = table.drop(columns=["low", "high"]).assign(slope=slopes)
    return shown.dropna(axis="columns", how="all").rename(columns=TEXTS["calibration"])
