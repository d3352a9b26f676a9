"""The figure and the table of dose and response."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.display import markup
from analysis.display.figures import ALONE, DASHES, palette, single, style
from analysis.display.markup import picture, render_text, sentences, sheet, title
from analysis.dose.estimate import DoseResponse, left_out, straight
from study.features import unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style()
def dose_response(dose: DoseResponse) -> Figure:
    """Shift of every run against its dose: line, curve, monotone fit, and the theory's lines.

    A theory far off the runs is cut at the edge, so that the runs can be seen.
    """
    import seaborn as sns

    doses, shift = (dose.runs[name].to_numpy() for name in ("dose", "shift"))
    grid = np.linspace(doses.min(), doses.max(), 200)
    figure, axes = single(ALONE, 4.2)
    blue, orange, green, red = palette(4)
    plain: Any = {"ax": axes, "legend": False}
    axes.axhline(0, color="0.7", linewidth=1)
    sns.scatterplot(x=doses, y=shift, s=26, color=blue, zorder=3, label="run", **plain)
    fit, bent = dose.line, dose.emax
    line = fit.intercept + fit.slope.value * grid
    sns.lineplot(x=grid, y=line, color=orange, label="line", **plain)
    if not np.isnan(bent.emax) and not bent.note:
        d = grid - doses.min()
        curve = bent.e0 + bent.emax * d / (bent.ed50 + d)
        sns.lineplot(x=grid, y=curve, color=green, linestyle="--", label="Emax", **plain)
    xs, ys = zip(*dose.monotone, strict=True)
    axes.plot(xs, ys, color=red, linestyle=":", marker="_", label="monotone")
    low, high = axes.get_ylim()
    for k, theory in enumerate(theory for theory in dose.theory if theory.points):
        label = f"first order, beta = {theory.beta:g}" if theory.beta > 0 else "first order"
        xs, ys = zip(*theory.points, strict=True)
        look: Any = {"linestyle": DASHES[k % len(DASHES)], "marker": "x", "markersize": 5}
        axes.plot(xs, ys, color="0.25", linewidth=1.5, label=label, **look)
    below, above = axes.get_ylim()
    room, note = high - low, dose_caption(dose)
    if below < low - room or above > high + room:
        note += " A line leaves the panel."
    axes.set(
        xlabel=f"dose (score per SD of {dose.feature})",
        ylabel=f"shift in {dose.feature} ({unit(dose.feature)})",
        ylim=(max(below, low - room), min(above, high + room)),
    )
    figure.legend(loc="outside upper center", ncols=3)
    figure.supxlabel(fill(note, 92), fontsize=8.5, x=0.01, ha="left")
    return figure


def dose_caption(dose: DoseResponse) -> str:
    """What the theory's lines in `dose_response` are, or why there is none."""
    sentences = []
    for theory in dose.theory:
        kind = "penalty" if theory.beta > 0 else "free"
        sentence = render_text("theory", kind, beta=theory.beta, feature=dose.feature)
        if theory.slope == theory.slope:
            sentence += f"; observed / predicted slope {theory.amplification:.2f}"
        sentences.append(theory.note or f"{sentence}.")
    return " ".join(sentences)


def dose_table(dose: DoseResponse) -> pd.DataFrame:
    """One row on a dose-response study: slope with its unit of inference, tests, theory."""
    slope, measured = dose.slope, unit(dose.feature)
    amplified = {
        f"observed / first-order slope, beta {theory.beta:g}": theory.amplification
        for theory in dose.theory
    }
    row = {
        "behaviour": dose.feature,
        f"{measured} per unit of dose [95 %]": markup.estimate(slope.value, slope.low, slope.high),
        "n": slope.n,
        "unit": slope.unit,
        "runs": len(dose.runs),
        "trend p": markup.p_value(dose.trend_p),
        "lack of fit p": markup.p_value(dose.lack_of_fit_p),
        **amplified,
        "missing (share)": dose.unscored,
        "note": slope.note,
    }
    return pd.DataFrame([row])


def section(doses: Sequence[DoseResponse]) -> list[str]:
    """Every behaviour that the judges pay for in three doses or more, for the report."""
    return [title("doses"), *(fragment for dose in doses for fragment in _section(dose))]


def _section(dose: DoseResponse) -> list[str]:
    feature, fit = dose.feature, straight(dose.lack_of_fit_p)
    theory = dose_caption(dose)
    by_dose = ", ".join(f"{amount:g} {shift:+.3g}" for amount, shift in dose.monotone)
    emax = f"; Emax: {dose.emax.note}" if dose.emax.note else ""
    within = "within seeds" if dose.slope.unit == "seed" else "over runs"
    return [
        picture("doses", dose_response, dose, feature=feature, theory=theory),
        sheet("doses", dose_table(dose), of=feature, feature=feature),
        sentences(
            [
                f"Monotone fit, dose and shift in {feature}: {by_dose}.",
                f"{fit[0].upper()}{fit[1:]}{emax}.",
                f"Doses are permuted {within} for the trend.",
                *([f"{others}."] if (others := left_out(dose.left_out)) else []),
            ]
        ),
    ]
