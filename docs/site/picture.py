"""The picture of the first page: ``python docs/site/picture.py STUDY_FOLDER FILE.svg``.

One panel per judge of the quickstart: judge's score and truth over the steps, means over runs with
95 % t intervals, and how long the answers were at both ends. In ``FILE-narrow.svg`` the panels
stand below each other, for a phone.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import read_study
from analysis.display.figures import DRAWN, line, looks, scored
from analysis.drift.estimate import learning_curves, run_curves
from analysis.records.runs import Run, ends, step_means

SAYS = {
    "sim-fair": "A fair judge",
    "sim-verbose": "A judge that pays for length",
    "sim-flattery": "A judge that pays for flattery",
}
"""Arm -> the panel's title, in the order of the panels."""
BESIDE = {"judge_score": ("judge's score", 17), "truth": ("truth", -27)}
"""Score -> what it is called, and how far above its last point that stands."""
STYLE = {
    "svg.hashsalt": "judgedrift", "svg.fonttype": "path", "font.family": "DejaVu Sans",
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


def panel(axes: Axes, runs: list[Run], look: dict[str, Any]) -> None:
    """Judge's score and truth of one arm's runs, by step, as the report draws them."""
    curves = learning_curves(run_curves(runs), DRAWN)
    for k, (metric, (label, beside)) in enumerate(BESIDE.items()):
        part = curves[curves["metric"] == metric]
        marks = scored(look, metric) | {"linewidth": 2.2, "markersize": 5}
        line(axes, part, label, (0, 1), (k, len(BESIDE)), **marks)
        at = part["step"].iloc[-1], part["mean"].iloc[-1]
        last = {"color": look["color"], "weight": "bold", "ha": "right"}
        axes.annotate(label, at, (0, beside), textcoords="offset points", **last)
    words = [ends(step_means(run, run.features[..., run.names.index("length")])) for run in runs]
    first, last = np.mean(words, axis=0)
    axes.set_xlabel(f"training step\nanswers: {first:.0f} words at first, {last:.0f} at the end")
    axes.set(ylim=(0, 1), xlim=(0, len(runs[0].steps) + 1))


def main(study: str, target: str) -> None:
    """Draw the picture of a study of the three judges."""
    runs = read_study(study).runs
    look = looks(sorted(SAYS))  # the report's order
    with mpl.rc_context(STYLE):
        narrow = Path(target).stem.endswith("-narrow")
        figure = Figure(figsize=(4.6, 7.4) if narrow else (10, 3.4), layout="constrained")
        panels = figure.subplots(*(3, 1) if narrow else (1, 3), sharey=True)
        for (arm, title), axes in zip(SAYS.items(), panels, strict=True):
            panel(axes, [run for run in runs if run.arm == arm and run.done], look[arm])
            axes.set_title(title, loc="left", fontsize=11, weight="bold")
        for axes in panels if narrow else panels[:1]:
            axes.set_ylabel("score, 0 to 1")
        figure.savefig(target, metadata={"Date": None, "Creator": None})
    text = Path(target).read_text(encoding="utf-8")
    Path(target).write_text(re.sub(r"[ \t]+\n", "\n", text), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
