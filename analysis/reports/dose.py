"""A dose-response study as a page shows it: figure, caption, table and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.arm.dose import FEWEST, doses_of, response, straight
from analysis.records.behaviour import unit
from analysis.reports import markup
from analysis.reports.figures import DASHES, style

if TYPE_CHECKING:
    from analysis.records.runs import Run


def dose_section(runs: Sequence[Run]) -> list[str]:
    """HTML fragments for every feature that the runs' judges pay for in three doses or more."""
    parts = []
    for feature in runs[0].names if runs else ():
        if len(set(doses_of(runs, feature).values())) >= FEWEST:
            parts += _of_feature(response(runs, feature))
    return ["<h2>How much behaviour does a dose buy?</h2>", *parts] if parts else []


def _of_feature(found: dict[str, Any]) -> list[str]:
    import matplotlib.pyplot as plt

    slope, feature = found["slope"], found["feature"]
    drawn = figure(found)
    note = (
        f"Shift in {feature} of each run against the dose of its judge, with a line, a monotone "
        "fit, an Emax curve where there is one, and what first-order theory says. " + caption(found)
    )
    shown = markup.figure(drawn, note)
    plt.close(drawn)
    amplified = {
        f"observed / first-order slope, beta {one['beta']:g}": one["amplification"]
        for one in found["theory"]
    }
    table = pd.DataFrame(
        [
            {
                "behaviour": feature,
                f"{unit(feature)} per unit of dose [95 %]": markup.estimate(
                    slope["slope"], slope["low"], slope["high"]
                ),
                "n": slope["n"],
                "unit": slope["unit"],
                "runs": len(found["runs"]),
                "trend p": markup.p_value(found["trend_p"]),
                "lack of fit p": markup.p_value(found["lack_of_fit_p"]),
                **amplified,
                "unscored (share)": found["unscored"],
                "note": slope["note"],
            }
        ]
    )
    by_dose = ", ".join(f"{dose:g} {value:+.3g}" for dose, value in found["monotone"])
    said = [
        f"Monotone fit, dose and shift in {feature}: {by_dose}.",
        f"{straight(found['lack_of_fit_p'])[0].upper()}{straight(found['lack_of_fit_p'])[1:]}"
        + (f"; Emax: {found['emax']['note']}." if found["emax"]["note"] else "."),
        "Doses are permuted within seeds for the trend."
        if slope["unit"] == "seed"
        else "Doses are permuted over runs for the trend.",
    ]
    return [shown, markup.table(table), markup.sentences(said)]


def caption(found: dict[str, Any]) -> str:
    """What the theory's lines in `figure` are, or why there is none."""
    said = []
    for one in found["theory"]:
        if one["note"]:
            said.append(one["note"])
            continue
        source = (
            f"First order at beta = {one['beta']:g}: where the KL penalty would hold "
            f"{found['feature']} in the end, Cov(A, z) / beta of the first step (dose x Var(z) / "
            "beta beside the truth's part)"
            if one["beta"] > 0
            else f"First order: covariance of advantage and {found['feature']}, summed over each "
            "run's steps, times the scale fitted on the other runs"
        )
        ratio = f"; observed / predicted slope {one['amplification']:.2f}"
        said.append(source + (ratio if one["slope"] == one["slope"] else "") + ".")
    return " ".join(said)


def figure(found: dict[str, Any]) -> Any:
    """Shift of every run against its dose: line, curve, monotone fit, and the theory's lines.

    A theory far off the runs is cut at the edge, so that the runs can be seen.
    """
    import matplotlib.pyplot as plt
    import seaborn as sns

    dose = np.array([run["dose"] for run in found["runs"]])
    shift = np.array([run["shift"] for run in found["runs"]])
    grid = np.linspace(dose.min(), dose.max(), 200)
    with style():
        made, axes = plt.subplots(figsize=(6, 5), layout="constrained")
        blue, orange, green, red = sns.color_palette("colorblind", 4)
        axes.axhline(0, color="0.7", linewidth=1)
        axes.scatter(dose, shift, s=26, color=blue, zorder=3, label="run")
        fit, bent = found["line"], found["emax"]
        axes.plot(grid, fit["intercept"] + fit["slope"] * grid, color=orange, label="line")
        if not np.isnan(bent["emax"]) and not bent["note"]:
            d = grid - dose.min()
            curve = bent["e0"] + bent["emax"] * d / (bent["ed50"] + d)
            axes.plot(grid, curve, color=green, linestyle="--", label="Emax")
        xs, ys = zip(*found["monotone"], strict=True)
        axes.plot(xs, ys, color=red, linestyle=":", marker="_", label="monotone")
        low, high = axes.get_ylim()
        for k, one in enumerate(one for one in found["theory"] if one["points"]):
            named = f"first order, beta = {one['beta']:g}" if one["beta"] > 0 else "first order"
            xs, ys = zip(*one["points"], strict=True)
            look: Any = {"linestyle": DASHES[k % len(DASHES)], "marker": "x", "markersize": 5}
            axes.plot(xs, ys, color="0.25", linewidth=1.5, label=named, **look)
        below, above = axes.get_ylim()
        room, said = high - low, caption(found)
        if below < low - room or above > high + room:
            said += " A line leaves the panel."
        axes.set(
            xlabel=f"dose (score per SD of {found['feature']})",
            ylabel=f"shift in {found['feature']} ({unit(found['feature'])})",
            ylim=(max(below, low - room), min(above, high + room)),
        )
        made.legend(loc="outside upper center", ncols=3)
        made.supxlabel(fill(said, 92), fontsize=8.5, x=0.01, ha="left")
    return made
