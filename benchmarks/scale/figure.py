"""The figure of docs/scaling.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.scale.fits import Line, exponent


def draw(
    rows: Sequence[Any],
    start_s: float,
    verdicts: Sequence[float],
    points: Mapping[str, Sequence[float]],
    fits: Mapping[str, Line],
    goal: int,
) -> Any:
    """CPU seconds and fresh tokens by what is varied, with the fitted powers; a report's time and
    memory by rows, with the lines and their intervals up to ``goal`` rows.

    Args:
        rows: as `benchmarks.scale.page.measure` returns.
        start_s: CPU seconds of a cell besides its steps, taken off.
        verdicts: of the studies whose reports were written.
        points: cpu_s and memory of each.
        fits: of both.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams |= {"svg.hashsalt": "scaling", "svg.fonttype": "none"}
    drawn, axes = pyplot.subplots(2, 2, figsize=(10, 7.5), layout="constrained")
    for place, name in enumerate(dict.fromkeys(row[0] for row in rows)):
        costs = {row[1]: row[3] for row in rows if row[0] == name}
        sizes = np.array(list(costs))
        for axis, values in (
            (axes[0][0], [max(1e-9, c.cpu_s - start_s * c.cells) for c in costs.values()]),
            (axes[0][1], [c.fresh for c in costs.values()]),
        ):
            slope = exponent(list(costs), values).slope
            middle = np.exp(np.mean(np.log(values)) - slope * np.mean(np.log(sizes)))
            colour = f"C{place}"
            axis.plot(sizes, values, "o", color=colour, markersize=4)
            label = f"{name}: {slope:.2f}"
            axis.plot(sizes, middle * sizes**slope, color=colour, linewidth=1, label=label)
    for axis, title in zip(
        axes[0], ("CPU seconds, without the starts of cells", "fresh tokens"), strict=True
    ):
        axis.set(xscale="log", yscale="log", title=title, xlabel="times the smallest")
        axis.set_xticks([1, 2, 4, 8], labels=["1", "2", "4", "8"])
        axis.minorticks_off()
        axis.legend(fontsize=7, title="exponent", title_fontsize=7)
    there = np.array(verdicts)
    grid = np.geomspace(there.min(), goal, 60)
    for axis, name, unit, title in (
        (axes[1][0], "cpu_s", 1.0, "a report, CPU seconds"),
        (axes[1][1], "memory", 1e6, "a report, MB at most"),
    ):
        estimates = np.array([fits[name].at(size) for size in grid]) / unit
        axis.plot(there, np.array(points[name]) / unit, "ko", markersize=4)
        axis.plot(grid, estimates[:, 0], "C0", label=f"line, R2 {fits[name].r2:.3f}")
        low = np.maximum(estimates[:, 1], estimates[:, 0].min() / 10)
        axis.fill_between(grid, low, estimates[:, 2], alpha=0.2, label="95 % for one more run")
        axis.set(xscale="log", yscale="log", title=title, xlabel="verdicts")
        axis.legend(fontsize=7)
    return drawn
