"""Figures of the bias report: one per question, intervals everywhere, one colour-blind-safe style.

Each function takes a table of `analysis.run.drift` and returns a matplotlib Figure that belongs to
no pyplot state. Bands and bars are 95 % t intervals over runs, as in the tables; where there is one
run there is a line and no band.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from analysis.records.behaviour import unit
from study.features import FEATURES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 10.0
"""Inches; the report shows figures at most this wide."""
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@contextmanager
def style() -> Generator[None]:
    """The one style of all figures, put back as it was on leaving."""
    import matplotlib as mpl
    import seaborn as sns

    ticks = {"axes.titlesize": 11, "axes.labelsize": 10, "legend.fontsize": 9.5}
    sizes = {"xtick.labelsize": 9, "ytick.labelsize": 9, "legend.frameon": False}
    own = {"axes.titlelocation": "left", "axes.formatter.useoffset": False, **ticks, **sizes}
    theme: Any = {**sns.axes_style("whitegrid"), **sns.plotting_context("notebook"), **own}
    with mpl.rc_context(theme):
        yield


def looks(arms: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, line and marker of each arm, the same in every figure of a report."""
    import seaborn as sns

    colours = sns.color_palette("colorblind", 10)
    return {
        arm: {
            "color": colours[k % 10],
            "linestyle": DASHES[(k + k // 10) % len(DASHES)],
            "marker": MARKERS[k % len(MARKERS)],
        }
        for k, arm in enumerate(sorted(arms))
    }


def learning(curves: pd.DataFrame) -> Figure:
    """Does the judge's score rise, and does the truth rise with it? One panel per arm.

    ``curves`` as `analysis.run.drift.learning_curves` gives them.
    """
    with style():
        import seaborn as sns

        shown = curves[curves["metric"].isin(["judge_score", "truth"])]
        arms = sorted(shown["arm"].unique())
        figure, panels = _grid(len(arms), share=True)
        blue, orange = sns.color_palette("colorblind", 2)
        kinds = (("judge_score", "judge score", blue, "-"), ("truth", "rule truth", orange, "--"))
        for arm, axes in zip(arms, panels, strict=True):
            part = shown[shown["arm"] == arm]
            for metric, label, colour, dash in kinds:
                _band(axes, part[part["metric"] == metric], label, color=colour, linestyle=dash)
            axes.set_title(f"{arm} ({_runs(part)})")
            axes.set(xlabel="training step", ylabel="score (mean over runs)")
        _outside_legend(figure, panels)
        return figure


def gap(curves: pd.DataFrame) -> Figure:
    """How far does the judge's score run ahead of the truth, under each arm?"""
    with style():
        shown = curves[curves["metric"] == "gap"]
        figure, (axes,) = _grid(1, height=4.2)
        for arm, look in looks(list(shown["arm"].unique())).items():
            line = {key: look[key] for key in ("color", "linestyle")}
            part = shown[shown["arm"] == arm]
            _band(axes, part, f"{arm} ({_runs(part)})", **line)
        axes.axhline(0, color="0.3", linewidth=1)
        axes.set(xlabel="training step", ylabel="judge score - truth (score units)")
        _outside_legend(figure, [axes])
        return figure


def behaviour(curves: pd.DataFrame) -> Figure:
    """Which behaviours move while training? One panel per feature that occurs, a line per arm."""
    with style():
        metrics = _in_order(curves["metric"])
        figure, panels = _grid(len(metrics), height=2.5)
        for metric, axes in zip(metrics, panels, strict=True):
            part = curves[curves["metric"] == metric]
            for arm, look in looks(list(curves["arm"].unique())).items():
                line = {key: look[key] for key in ("color", "linestyle")}
                _band(axes, part[part["arm"] == arm], arm, **line)
            axes.set_title(metric)
            axes.set(xlabel="training step", ylabel=unit(metric))
        _outside_legend(figure, panels)
        return figure


def shifts(table: pd.DataFrame, base: str) -> Figure:
    """How far beyond the base arm did each behaviour move? Differences paired by seed.

    ``table`` as `analysis.run.drift.shift_table` gives it; one panel per metric.
    """
    with style():
        from matplotlib.ticker import MaxNLocator

        shown = table[table["diff"].notna()]
        metrics = _in_order(shown["metric"])
        arms = sorted(shown["arm"].unique())
        look = looks([*arms, base])
        rows = {arm: len(arms) - 1 - k for k, arm in enumerate(arms)}
        figure, panels = _grid(len(metrics), height=1.15 + 0.28 * len(arms))
        for metric, axes in zip(metrics, panels, strict=True):
            for row in shown[shown["metric"] == metric].to_dict("records"):
                axes.errorbar(
                    row["diff"],
                    rows[row["arm"]],
                    xerr=None if math.isnan(row["diff_low"]) else row["diff"] - row["diff_low"],
                    fmt=look[row["arm"]]["marker"],
                    color=look[row["arm"]]["color"],
                    capsize=3,
                )
            axes.axvline(0, color="0.3", linewidth=1)
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.set_yticks(list(rows.values()), list(rows))
            axes.set_ylim(-0.6, len(arms) - 0.4)
            axes.set_title(metric)
            unit_here = shown.loc[shown["metric"] == metric, "unit"].iloc[0]
            axes.set_xlabel(f"difference in shift ({unit_here})")
        for axes in panels:
            left = axes.get_subplotspec()
            if left is not None and not left.is_first_col():
                axes.set_yticklabels([])
        return figure


def failures(table: pd.DataFrame, by_length: pd.DataFrame) -> Figure:
    """Which verdicts are missing, why, and do long answers lose theirs more often?"""
    with style():
        import seaborn as sns

        known = {"judge", "role", "scored", "verdicts", "unscored"}
        kinds = [name for name in table if name not in known]
        figure, (bars, lines) = _grid(2, height=max(3.4, 1.4 + 0.35 * len(table)))
        labels = [
            f"{row['judge']} ({row['role']}, n={row['verdicts']:,})"
            for row in table.to_dict("records")
        ]
        colours = sns.color_palette("colorblind", 10)
        left = [0.0] * len(table)
        for k, kind in enumerate(kinds):
            share = list(100 * table[kind] / table["verdicts"])
            hatch = ("", "//", "..", "xx")[k % 4]
            bars.barh(labels, share, left=left, label=kind, color=colours[k], hatch=hatch)
            left = [a + b for a, b in zip(left, share, strict=True)]
        bars.invert_yaxis()
        bars.grid(axis="y", visible=False)
        bars.set(xlabel="unscored verdicts (% of all)", ylabel="")
        bars.set_title("reasons")
        if kinds:
            bars.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
        for judge, look in looks(list(by_length["judge"].unique())).items():
            part = by_length[by_length["judge"] == judge]
            middle = (part["words_low"] + part["words_high"]) / 2
            lines.errorbar(
                middle,
                100 * part["mean"],
                yerr=100 * (part["high"] - part["mean"]),
                label=judge,
                capsize=2,
                **look,
            )
        lines.set(xlabel="answer length (words, middle of decile)", ylabel="unscored (%)")
        lines.set_title("by length")
        lines.set_ylim(bottom=0)
        if len(by_length):
            lines.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
        return figure


def _in_order(metrics: Iterable[str]) -> list[str]:
    """Each metric once: features in their own order, others after them by name."""
    known = list(FEATURES)
    return sorted(set(metrics), key=lambda m: (known.index(m) if m in known else len(known), m))


def _grid(panels: int, height: float = 3.0, share: bool = False) -> tuple[Figure, list[Axes]]:
    """Up to three panels in a row, at report width; places left over are taken away."""
    from matplotlib.figure import Figure

    columns = 2 if panels == 4 else min(3, max(1, panels))
    rows = max(1, math.ceil(panels / columns))
    figure = Figure(figsize=(WIDTH, height * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=share, sharey=share, squeeze=False).ravel()
    for extra in axes[panels:]:
        extra.remove()
    kept = list(axes[:panels])
    if share:
        for axis in kept[max(0, panels - columns) :]:
            axis.tick_params(labelbottom=True)
    return figure, kept


def _band(axes: Axes, part: pd.DataFrame, label: str, **line: Any) -> None:
    import seaborn as sns
    from matplotlib.ticker import MaxNLocator

    part = part[part["mean"].notna()]
    if part.empty:
        return
    sns.lineplot(
        x=part["step"], y=part["mean"], ax=axes, label=label, errorbar=None, legend=False, **line
    )
    if len(part) == 1:
        axes.plot(part["step"], part["mean"], "o", color=line["color"])
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.fill_between(part["step"], part["low"], part["high"], color=line["color"], alpha=0.18)


def _outside_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend above all panels, each label once: it can never cover a curve."""
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        columns = min(4, len(entries))
        figure.legend(
            list(entries.values()), list(entries), loc="outside upper center", ncols=columns
        )


def _runs(part: pd.DataFrame) -> str:
    n = int(part["n"].max()) if len(part) else 0
    return "1 run, no interval" if n == 1 else f"{n} runs"
