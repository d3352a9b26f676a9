"""The picture of the first page: ``python docs/site/picture.py STUDY_FOLDER FILE.svg``.

One panel per judge of the quickstart: judge's score and truth over the steps, means over runs with
95 % t intervals, and how long the answers were at both ends. In ``FILE-narrow.svg`` the panels
stand below each other, for a phone.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import read_study
from analysis.records.behaviour import ends
from analysis.records.runs import Run, step_means
from analysis.statistics.intervals import mean_interval

SAYS = {
    "sim-fair": "A fair judge",
    "sim-verbose": "A judge that pays for length",
    "sim-flattery": "A judge that pays for flattery",
}
"""Arm -> the panel's title, in the order of the panels."""
COLOURS = {"judge's score": ("#0173b2", "-"), "truth": ("#de8f05", "--")}
WINDOW = 3
"""Steps of the running mean."""
STYLE = {
    "svg.hashsalt": "judgedrift", "svg.fonttype": "path", "font.family": "DejaVu Sans",
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


def smooth(values_T: np.ndarray) -> np.ndarray:
    """Running mean, shorter at both ends."""
    weights = np.ones(WINDOW)
    counts = np.convolve(np.ones(len(values_T)), weights, mode="same")
    return np.convolve(values_T, weights, mode="same") / counts


def panel(axes: Axes, runs: list[Run]) -> None:
    """Judge's score and truth of one arm's runs, by step."""
    beside = {"judge's score": 6, "truth": -14}
    for (label, (colour, dash)), name in zip(COLOURS.items(), ("judge", "truth"), strict=True):
        by_run = [smooth(step_means(run, getattr(run, name))) for run in runs]
        points = [mean_interval(list(values)) for values in zip(*by_run, strict=True)]
        steps = np.arange(1, len(points) + 1)
        low = np.clip([point.low for point in points], 0, 1)
        high = np.clip([point.high for point in points], 0, 1)
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(steps, [point.value for point in points], color=colour, ls=dash, lw=2.2)
        at, last = (steps[-1], points[-1].value), {"color": colour, "weight": "bold", "ha": "right"}
        axes.annotate(label, at, (0, beside[label]), textcoords="offset points", **last)
    words = [ends(step_means(run, run.features[..., run.names.index("length")])) for run in runs]
    first, last = np.mean(words, axis=0)
    axes.set_xlabel(f"training step\nanswers: {first:.0f} words at first, {last:.0f} at the end")
    axes.set(ylim=(0, 1), xlim=(1, len(points)))


def main(study: str, target: str) -> None:
    """Draw the picture of a study of the three judges."""
    runs = read_study(study).runs
    with mpl.rc_context(STYLE):
        narrow = Path(target).stem.endswith("-narrow")
        figure = Figure(figsize=(4.6, 7.4) if narrow else (10, 3.4), layout="constrained")
        panels = figure.subplots(*(3, 1) if narrow else (1, 3), sharey=True)
        for (arm, title), axes in zip(SAYS.items(), panels, strict=True):
            panel(axes, [run for run in runs if run.arm == arm and run.done])
            axes.set_title(title, loc="left", fontsize=11, weight="bold")
        for axes in panels if narrow else panels[:1]:
            axes.set_ylabel("score, 0 to 1")
        figure.savefig(target, metadata={"Date": None, "Creator": None})
    text = Path(target).read_text(encoding="utf-8")
    Path(target).write_text(re.sub(r"[ \t]+\n", "\n", text), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
