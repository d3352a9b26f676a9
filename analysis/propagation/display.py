"""What `analysis.propagation` prints and draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.figures import blank, looks, marks_of, style
from analysis.display.printed import with_problems
from analysis.propagation.calibration import Calibration, PushPrediction
from analysis.propagation.estimate import Propagation
from analysis.statistics.estimate import columns
from study.features import unit

LEGEND = (
    "r2, slope, inside: scale fitted on all other runs; _unseen: on the runs of other arms only,\n"
    "as for a judge that nobody trained on; r2_repeated: no theory, mean of the arm's other runs.\n"
    "Placebos: r2_permuted, of advantages permuted within groups; r2_variance, of the push's sign\n"
    "times the behaviour's variance; r2_constant, of that sign times a constant."
)


def text(result: Propagation) -> str:
    """Calibration of every behaviour, then the runs of the one that is predicted best."""
    rows = pd.DataFrame([columns(row, observed=None, predicted="") for row in result.runs])
    calibration = pd.DataFrame([line.row() for line in result.calibration])
    best = calibration.sort_values("r2", ascending=False)["feature"].iloc[0]
    shown = "cell observed predicted low high of_truth of_bias scale unseen repeated".split()
    size = result.step_size
    lines = [
        f"Step size, one for all behaviours: {size.value:.3g} [{size.low:.3g},"
        f" {size.high:.3g}] SD per SD of push, over {size.n} runs",
        calibration.drop(columns="note").round(3).to_string(index=False),
        LEGEND,
        f"\n{best}, run by run (predicted with a scale fitted on the other runs):",
        rows[rows.feature == best][shown].to_string(index=False, float_format="%.3g"),
    ]
    if result.kl_limit:
        limits = pd.DataFrame(result.kl_limit).query("feature == @best")
        head = f"\n{best}, observed next to the limit of the KL penalty (Cov(A, z) / beta):"
        lines += [head, limits.to_string(index=False, float_format="%.3g")]
    return with_problems(lines, result.problems)


@style()
def figure(predictions: Sequence[PushPrediction], calibration: Sequence[Calibration]) -> Any:
    """Observed against predicted shift with its 95 % prediction interval, one point per run.

    A panel for each of the three features that moved furthest, in SDs of the first rollouts.
    """

    rows = pd.DataFrame([columns(row, observed=None, predicted="") for row in predictions])
    lines = {line.feature: line for line in calibration if np.isfinite(line.scores.r2)}
    moved = rows["observed"].abs() / rows["sd"].where(rows["sd"] > 0)
    furthest = moved.groupby(rows["feature"]).max().fillna(0.0)
    names = sorted(lines, key=lambda name: -furthest[name])[:3]
    arms = sorted(set(rows["arm"]))
    drawn = blank(3.3 * len(names), 3.6)
    panels = drawn.subplots(1, len(names), squeeze=False)
    look = looks(arms)
    for panel, name in zip(panels[0], names, strict=True):
        of_feature = rows[rows.feature == name]
        low = min(of_feature["predicted"].min(), of_feature["observed"].min())
        high = max(of_feature["predicted"].max(), of_feature["observed"].max())
        panel.plot(
            [low, high],
            [low, high],
            color="0.6",
            linewidth=1,
            zorder=0,
            label="as reconstructed",
        )
        for arm in arms:
            part = of_feature[of_feature.arm == arm]
            panel.errorbar(
                part["predicted"],
                part["observed"],
                xerr=(part["high"] - part["low"]) / 2,
                color=look[arm]["color"],
                fmt=look[arm]["marker"],
                markersize=5,
                elinewidth=0.8,
            )
            panel.plot([], [], linestyle="", label=arm, **marks_of(look[arm]))
        unseen = lines[name].unseen.r2
        panel.set(
            title=f"{name}, R² = {lines[name].scores.r2:.2f}"
            + f"\nunseen arm {unseen:.2f}" * (unseen == unseen),
            xlabel=f"reconstructed shift, 95 % interval ({unit(name)})",
            ylabel=f"observed shift ({unit(name)})",
        )
    handles, labels = panels[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=min(4, len(arms)))
    return drawn
