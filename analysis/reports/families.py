"""Tables and figure of a study's judges by family, size and prompt, for the report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pandas as pd

from analysis.arm.families import Families, Natural
from analysis.reports import figures
from analysis.reports.figures import bar, looks, marks_of, style
from analysis.reports.markup import signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def judges_table(families: Families) -> pd.DataFrame:
    """A row for each judge: how its score and the truth moved, and how far behaviour followed."""
    return pd.DataFrame(
        _key(judge)
        | {"runs": judge.runs}
        | {"shift of its score": signed(judge.score), "shift of the truth": signed(judge.truth)}
        | {"behaviour follows bias (rank correlation)": signed(judge.followed)}
        for judge in families.judges
    )


def behaviours_table(families: Families) -> pd.DataFrame:
    """A row for each judge and behaviour: measured bias beside the shift of its runs."""
    rows = pd.DataFrame(
        _key(judge)
        | {"behaviour": each.name, "bias, score per SD [95 %]": signed(each.bias)}
        | {"bias by probe": "" if each.probed is None else signed(each.probed)}
        | {"shift in SDs [95 %]": signed(each.shift)}
        for judge in families.judges
        for each in judge.behaviours
    )
    probed = len(rows) and rows["bias by probe"].any()
    return rows if probed else rows.drop(columns="bias by probe", errors="ignore")


def slopes_table(families: Families) -> pd.DataFrame:
    """A row for each behaviour: what a unit of bias did, over judges; none where none is told."""
    return pd.DataFrame(
        {"behaviour": name, "SDs of shift per score of bias [95 %]": signed(slope)}
        | {"judges": slope.n}
        for name, slope in families.slopes.items()
        if slope.value == slope.value
    )


@style()
def followed(families: Families) -> Figure | None:
    """Did behaviour go where the judge's bias points? A mark for each judge and behaviour; None
    where no behaviour has both."""
    every = [
        each
        for judge in families.judges
        for each in judge.behaviours
        if math.isfinite(each.bias.value) and math.isfinite(each.shift.value)
    ]
    if not every:
        return None
    look = looks([judge.arm for judge in families.judges])
    drawn, axes = figures.single(figures.ALONE, 3.8)
    axes.axhline(0, color="0.3", linewidth=1)
    axes.axvline(0, color="0.3", linewidth=1)
    for judge in families.judges:
        marks = marks_of(look[judge.arm])
        for each in judge.behaviours:
            x, y = each.bias, each.shift
            ends = bar(x.value, x.low, x.high), bar(y.value, y.low, y.high)
            axes.errorbar(
                x.value, y.value, ends[1], ends[0], elinewidth=0.8, linestyle="", **marks, alpha=0.8
            )
        axes.plot([], [], linestyle="", label=", ".join(_key(judge).values()), **marks)
    axes.set(
        xlabel=f"bias, {families.measured} (score per SD of a behaviour)",
        ylabel="shift of the behaviour (SDs)",
        xlim=figures.around(each.bias.value for each in every),
        ylim=figures.around(each.shift.value for each in every),
    )
    figures.outside_legend(drawn, [axes])
    return drawn


def _key(judge: Natural) -> dict[str, str]:
    return {"family": judge.family, "size": judge.size, "prompt": judge.prompt}
