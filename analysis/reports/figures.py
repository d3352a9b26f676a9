"""Figures of the bias report: one per question, intervals everywhere, one colour-blind-safe style.

Each function takes a table of `analysis.reports.evidence.Evidence` and returns a matplotlib Figure.
Bars are 95 % t intervals over runs, as in the tables; where there is one run there is a line and no
bar.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.records.behaviour import possible, unit
from analysis.records.runs import step_means
from analysis.reports.ends import beyond
from analysis.reports.markup import TEXTS, said
from analysis.statistics.estimate import ENDS
from study.features import FEATURES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from analysis.records.runs import Run
    from analysis.run.onset import Line

WIDTH = 10.0
"""Inches; the report shows figures at most this wide."""
ALONE = 5.0
"""Inches of a figure of one panel: on a phone it is not much smaller."""
LEGEND = 150
"""Letters that a line of a legend holds at that width, about."""
BESIDE = 0.6
"""Share of the way to the next step over which the curves of a panel stand beside each other."""
NOISE = 1e-7
"""Judges write scores to a few digits: a gap below this is what that leaves of none."""
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SCORED = ("judge_score", "truth")
"""The two curves of every arm."""
LEDGER_BEHAVIOURS = 5
"""Behaviours in the stacked ledger."""
_ARMS: ContextVar[tuple[str, ...]] = ContextVar("arms", default=())
"""The arms of the report that is being written, in its order."""
NO_REASON = {"judge", "role", "scored", "verdicts", "unscored"}
"""Columns of the failure table that are not a reason."""


@contextmanager
def style() -> Generator[None]:
    """The one style of all figures, put back as it was on leaving."""
    import matplotlib as mpl
    import seaborn as sns

    ticks = {"axes.titlesize": 11, "axes.labelsize": 10, "legend.fontsize": 9.5}
    sizes = {"xtick.labelsize": 9, "ytick.labelsize": 9, "legend.frameon": False}
    rest = {"axes.titlelocation": "left", "axes.formatter.useoffset": False, **ticks, **sizes}
    theme: Any = {**sns.axes_style("whitegrid"), **sns.plotting_context("notebook"), **rest}
    with mpl.rc_context(theme):
        yield


def marks_of(look: dict[str, Any]) -> dict[str, Any]:
    """Colour and marker of an arm, for points; a bar of errors has no marker in a legend."""
    return {"color": look["color"], "marker": look["marker"], "markersize": 6}


def scored(look: dict[str, Any], metric: str) -> dict[str, Any]:
    """How an arm's curve of a score looks: the judge's full, the truth's hollow and dashed."""
    hollow = {"linestyle": "--", "markerfacecolor": "white"} if metric == "truth" else {}
    return look | {"linestyle": "-"} | hollow


@contextmanager
def looks_of(arms: Sequence[str]) -> Generator[None]:
    """Within the block these arms look in every figure as they look beside each other, whichever
    of them it shows."""
    token = _ARMS.set(tuple(arms))
    try:
        yield
    finally:
        _ARMS.reset(token)


def looks(arms: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour, line and marker of each arm, the same in every figure of a report."""
    colours, known = palette(10), _ARMS.get()
    shown = set(arms)
    order = [*known, *sorted(shown.difference(known))]
    return {
        arm: {
            "color": colours[k % 10],
            "linestyle": DASHES[k // 10 % len(DASHES)],
            "marker": MARKERS[k % len(MARKERS)],
        }
        for k, arm in enumerate(order)
        if arm in shown
    }


@style()
def learning(curves: pd.DataFrame) -> Figure:
    """Does the judge's score rise, and does the truth rise with it? One panel per arm.

    ``curves`` as `analysis.run.drift.learning_curves` gives them.
    """
    shown = curves[curves["metric"].isin(["judge_score", "truth"])]
    arms = sorted(shown["arm"].unique())
    figure, panels = grid(len(arms), share=True)
    look = looks(arms)
    for arm, axes in zip(arms, panels, strict=True):
        part = shown[shown["arm"] == arm]
        for k, metric in enumerate(SCORED):
            label, curve = TEXTS["scores"][metric], part[part["metric"] == metric]
            line(axes, curve, label, (0, 1), (k, 2), **scored(look[arm], metric))
        axes.set_title(f"{arm} ({_runs(part)})")
        axes.set(xlabel="training step", ylabel="score (mean over runs)")
    outside_legend(figure, panels, colour="0.3")
    return figure


@style()
def gap(curves: pd.DataFrame) -> Figure:
    """How far does the judge's score run ahead of the truth, under each arm?"""
    shown = curves[curves["metric"] == "gap"]
    ends = shown[["mean", "low", "high"]]
    shown = shown.assign(**ends.where(ends.abs().gt(NOISE) | ends.isna(), 0.0))
    figure, axes = single(ALONE, 3.4)
    lines(axes, shown, shown, lambda arm, part: f"{arm} ({_runs(part)})")
    axes.axhline(0, color="0.3", linewidth=1)
    axes.set(xlabel="training step", ylabel="judge score - truth (score units)")
    outside_legend(figure, [axes])
    return figure


@style()
def behaviour(curves: pd.DataFrame) -> Figure:
    """Which behaviours move while training? One panel per feature that occurs, a line per arm."""
    metrics = _in_order(curves["metric"])
    figure, panels = grid(len(metrics), height=2.5)
    for metric, axes in zip(metrics, panels, strict=True):
        lines(axes, curves, curves[curves["metric"] == metric], ends=possible(metric))
        axes.set_title(metric)
        axes.set(xlabel="training step", ylabel=unit(metric))
    outside_legend(figure, panels)
    return figure


@style()
def shifts(table: pd.DataFrame, base: str) -> Figure:
    """How far beyond the base arm did each behaviour move? Differences paired by seed.

    ``table`` as `analysis.run.drift.shift_table` gives it; one panel per metric.
    """
    from matplotlib.ticker import MaxNLocator

    shown = table[table["diff"].notna()]
    metrics = _in_order(shown["metric"])
    arms = sorted(shown["arm"].unique())
    look = looks([*arms, base])
    heights = {arm: len(arms) - 1 - k for k, arm in enumerate(arms)}
    figure, panels = grid(len(metrics), height=1.15 + 0.28 * len(arms))
    of_base = {row["metric"]: row for row in table[table["arm"] == base].to_dict("records")}
    for metric, axes in zip(metrics, panels, strict=True):
        rows = shown[shown["metric"] == metric].to_dict("records")
        for row in rows:
            axes.errorbar(
                row["diff"],
                heights[row["arm"]],
                xerr=bar(row["diff"], *beyond(row, of_base.get(metric))),
                fmt=look[row["arm"]]["marker"],
                color=look[row["arm"]]["color"],
                capsize=3,
            )
        axes.axvline(0, color="0.3", linewidth=1)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_yticks(list(heights.values()), list(heights))
        axes.set_ylim(-0.6, len(arms) - 0.4)
        axes.set_title(metric)
        axes.set_xlabel(f"difference in shift ({rows[0]['unit']})")
    return figure


@style()
def failures(table: pd.DataFrame, by_length: pd.DataFrame) -> Figure:
    """Which verdicts are missing, why, and do long answers lose theirs more often?"""
    figure, (bars, lines) = grid(2, height=max(3.4, 1.4 + 0.35 * len(table)))
    labels = [
        f"{row['judge']} ({row['role']}, n={row['verdicts']:,})" for row in table.to_dict("records")
    ]
    left = np.zeros(len(table))
    reasons = [name for name in table if name not in NO_REASON]
    for k, reason in enumerate(reasons):
        share = (100 * table[reason] / table["verdicts"]).to_numpy()
        hatch = ("", "//", "..", "xx")[k % 4]
        bars.barh(labels, share, left=left, label=reason, color=palette(10)[k], hatch=hatch)
        left = left + share
    bars.invert_yaxis()
    bars.grid(axis="y", visible=False)
    bars.set(xlabel="unscored verdicts (% of all)", ylabel="")
    bars.set_title("reasons")
    for judge, look in looks(list(by_length["judge"].unique())).items():
        part = by_length[by_length["judge"] == judge]
        middle = (part["words_low"] + part["words_high"]) / 2
        half = 100 * (part["high"] - part["mean"])
        lines.errorbar(middle, 100 * part["mean"], yerr=half, label=judge, capsize=2, **look)
    lines.set(xlabel="answer length (words, middle of decile)", ylabel="unscored (%)")
    lines.set_title("by length")
    lines.set_ylim(bottom=0)
    for axes, entries in ((bars, reasons), (lines, by_length)):
        if len(entries):
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
    return figure


@style()
def dose_response(dose: dict[str, Any]) -> Figure:
    """Shift of every run against its dose: line, curve, monotone fit, and the theory's lines.

    A theory far off the runs is cut at the edge, so that the runs can be seen.
    """
    doses, shift = (np.array([run[key] for run in dose["runs"]]) for key in ("dose", "shift"))
    grid = np.linspace(doses.min(), doses.max(), 200)
    figure, axes = single(ALONE, 4.2)
    blue, orange, green, red = palette(4)
    axes.axhline(0, color="0.7", linewidth=1)
    axes.scatter(doses, shift, s=26, color=blue, zorder=3, label="run")
    fit, bent = dose["line"], dose["emax"]
    axes.plot(grid, fit["intercept"] + fit["slope"] * grid, color=orange, label="line")
    if not np.isnan(bent["emax"]) and not bent["note"]:
        d = grid - doses.min()
        curve = bent["e0"] + bent["emax"] * d / (bent["ed50"] + d)
        axes.plot(grid, curve, color=green, linestyle="--", label="Emax")
    xs, ys = zip(*dose["monotone"], strict=True)
    axes.plot(xs, ys, color=red, linestyle=":", marker="_", label="monotone")
    low, high = axes.get_ylim()
    for k, theory in enumerate(theory for theory in dose["theory"] if theory["points"]):
        label = f"first order, beta = {theory['beta']:g}" if theory["beta"] > 0 else "first order"
        xs, ys = zip(*theory["points"], strict=True)
        look: Any = {"linestyle": DASHES[k % len(DASHES)], "marker": "x", "markersize": 5}
        axes.plot(xs, ys, color="0.25", linewidth=1.5, label=label, **look)
    below, above = axes.get_ylim()
    room, note = high - low, dose_caption(dose)
    if below < low - room or above > high + room:
        note += " A line leaves the panel."
    axes.set(
        xlabel=f"dose (score per SD of {dose['feature']})",
        ylabel=f"shift in {dose['feature']} ({unit(dose['feature'])})",
        ylim=(max(below, low - room), min(above, high + room)),
    )
    figure.legend(loc="outside upper center", ncols=3)
    figure.supxlabel(fill(note, 92), fontsize=8.5, x=0.01, ha="left")
    return figure


def dose_caption(dose: dict[str, Any]) -> str:
    """What the theory's lines in `dose_response` are, or why there is none."""
    sentences = []
    for theory in dose["theory"]:
        kind = "penalty" if theory["beta"] > 0 else "free"
        sentence = said("theory", kind, beta=theory["beta"], feature=dose["feature"])
        if theory["slope"] == theory["slope"]:
            sentence += f"; observed / predicted slope {theory['amplification']:.2f}"
        sentences.append(theory["note"] or f"{sentence}.")
    return " ".join(sentences)


@style()
def stacked(steps: pd.DataFrame, unique: Sequence[str]) -> Figure:
    """Explained advantage variance by behaviour as stacked areas, one panel per arm."""
    from matplotlib.figure import Figure

    top = list(steps[list(unique)].mean().sort_values(ascending=False).index[:LEDGER_BEHAVIOURS])
    arms = sorted(steps["arm"].unique())
    wide = min(3, len(arms))
    high = -(-len(arms) // wide)
    figure = Figure(figsize=(3.4 * wide, 2.8 * high), layout="constrained")
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


@style()
def frontier(runs: Sequence[Run]) -> Figure | None:
    """One path per run in the plane of judge score and truth; None where no run has both ends."""
    look = looks(sorted({run.arm for run in runs}))
    figure, axes = single(ALONE, 3.6)
    axes.axline((0.5, 0.5), slope=1, color="0.6", linewidth=1, zorder=0)
    labelled: set[str] = set()
    for run in runs:
        path = step_means(run, run.judge), step_means(run, run.truth)
        window = -(-len(path[0]) // 10)
        first, last = path[0][:window], path[0][-window:]
        if not np.isfinite(first).any() or not np.isfinite(last).any():
            continue
        marks = marks_of(look[run.arm])
        x, y = (np.convolve(means, np.ones(window) / window, "valid") for means in path)
        axes.plot(x, y, color=marks["color"], linewidth=1, alpha=0.7)
        if run.arm not in labelled:
            axes.plot([], [], label=run.arm, linewidth=1, **marks)
        labelled.add(run.arm)
        for end, face in ((slice(window), "white"), (slice(-window, None), marks["color"])):
            x, y = (np.nanmean(means[end]) for means in path)
            axes.plot(x, y, mfc=face, linestyle="", **marks)
    axes.set(xlabel="judge score (mean of a step)", ylabel="rule truth (mean of a step)")
    if not labelled:
        return None
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@style()
def onsets(lines: Sequence[Line]) -> Figure:
    """When did each run leave the truth? A row per run, its onset with the interval, and the early
    stop of an alarm."""
    from matplotlib.ticker import MaxNLocator

    look = looks(dict.fromkeys(each.arm for each in lines))
    figure, axes = single(ALONE, 0.9 + 0.24 * len(lines))
    for place, each in enumerate(lines):
        step, marks = each.onset.step, marks_of(look[each.arm])
        if math.isfinite(step.value):
            axes.plot(step.value, place, linestyle="", **marks)
            if math.isfinite(step.low) and math.isfinite(step.high):
                axes.hlines(place, step.low, step.high, color=marks["color"], linewidth=1.2)
        if each.alarm is not None:
            axes.plot(each.alarm, place, "|", color=marks["color"], markersize=11, alpha=0.7)
    axes.set_yticks(range(len(lines)), [f"{each.arm}, seed {each.seed}" for each in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlim(0, max(each.steps for each in lines) + 1)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set_xlabel("training step")
    return figure


def bar(value: float, low: float, high: float) -> np.ndarray | None:
    """An interval as `errorbar` takes it, (2, 1); None where an end of it is not known."""
    known = math.isfinite(low) and math.isfinite(high)
    return np.abs([[low - value], [high - value]]) if known else None


def palette(count: int, name: str = "colorblind") -> Any:
    """So many colours that colour-blind readers can tell apart."""
    import seaborn as sns

    return sns.color_palette(name, count)


def _in_order(metrics: Iterable[str]) -> list[str]:
    """Each metric once: features in their own order, others after them by name."""
    order = {name: k for k, name in enumerate(FEATURES)}
    return sorted(set(metrics), key=lambda metric: (order.get(metric, len(order)), metric))


def single(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of one panel, in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def grid(panels: int, height: float = 3.0, share: bool = False) -> tuple[Figure, list[Axes]]:
    """Up to three panels in a row, at report width; places left over are taken away."""
    from matplotlib.figure import Figure

    rows = max(1, rows_of(panels))
    wide = WIDTH if panels > 1 else ALONE
    figure = Figure(figsize=(wide, height * rows + 0.4), layout="constrained")
    return figure, panels_of(figure, panels, share)


def rows_of(panels: int) -> int:
    """Rows that so many panels take at report width."""
    return math.ceil(panels / _columns(panels))


def panels_of(figure: Figure | SubFigure, panels: int, share: bool = False) -> list[Axes]:
    """Panels in rows, places left over taken away."""
    columns = _columns(panels)
    shape = max(1, rows_of(panels)), columns
    axes = figure.subplots(*shape, sharex=share, sharey=share, squeeze=False).ravel()
    for extra in axes[panels:]:
        extra.remove()
    used = list(axes[:panels])
    for axis in used if share else ():  # each is a picture of its own on a page
        axis.tick_params(labelbottom=True, labelleft=True)
    return used


def _columns(panels: int) -> int:
    return 2 if panels == 4 else min(3, max(1, panels))


def lines(
    axes: Axes,
    curves: pd.DataFrame,
    part: pd.DataFrame,
    label: Any = lambda arm, _: arm,
    ends: tuple[float, float] = ENDS,
) -> None:
    """A line with its intervals for every arm of the curves, of what the part of them holds."""
    look = looks(list(curves["arm"].unique()))
    for k, arm in enumerate(look):
        of_arm = part[part["arm"] == arm]
        line(axes, of_arm, label(arm, of_arm), ends, (k, len(look)), **look[arm])


def line(
    axes: Axes,
    part: pd.DataFrame,
    label: str,
    ends: tuple[float, float] = ENDS,
    place: tuple[int, int] = (0, 1),
    **look: Any,
) -> None:
    """A curve with a bar for each interval, cut at the ends of what can be, or at the mark where
    that lies beyond them.

    Args:
        place: which of how many curves it is: they stand beside each other at each step, so that
            no interval hides another.
    """
    from matplotlib.ticker import MaxNLocator

    part = part[part["mean"].notna()].sort_values("step")
    if part.empty:
        return
    steps = part["step"].to_numpy(dtype=float)
    apart = float(np.diff(steps).min()) if len(steps) > 1 else 1.0
    at = steps + BESIDE * apart * ((place[0] + 0.5) / place[1] - 0.5)
    low = part["low"].clip(lower=ends[0]).clip(upper=part["mean"])
    high = part["high"].clip(upper=ends[1]).clip(lower=part["mean"])
    known = part["low"].notna().to_numpy()
    marks: Any = {"marker": "o", "markersize": 4, "linewidth": 1.3, **look}
    axes.plot(at, part["mean"], label=label, **marks)
    axes.vlines(at[known], low[known], high[known], color=look["color"], linewidth=1, alpha=0.6)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


def outside_legend(
    figure: Figure | SubFigure, panels: Sequence[Axes], colour: str | None = None
) -> None:
    """One legend above all panels, each label once: it can never cover a curve. With a colour it
    is for what all arms have in common, such as dashes."""
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        columns = max(1, min(4, len(entries), LEGEND // (6 + max(map(len, entries)))))
        made = figure.legend(
            list(entries.values()), list(entries), loc="outside upper center", ncols=columns
        )
        if colour:
            for handle in made.get_lines():
                handle.set_color(colour)


def _runs(part: pd.DataFrame) -> str:
    n = int(part["n"].max()) if len(part) else 0
    return "1 run, no interval" if n == 1 else f"{n} runs"
