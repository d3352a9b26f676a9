"""Figures of a judge's profile: one per question, in the style of the bias report.

Each takes tables of `analysis.probes.profile` and returns a matplotlib Figure that belongs to no
pyplot state. Bars are 95 % intervals, as in the tables.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from analysis.display.figures import WIDTH, looks, single, style
from analysis.probes.effects import END

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


FOREST = 4.8
"""Inches: names of variants and their bars, still readable on a phone."""


def forest(table: pd.DataFrame, margin: float, explained: Collection[str] = ()) -> Figure:
    """What does one judge pay for beyond the truth? A row per variant, the largest on top.

    Args:
        table: rows of `analysis.probes.effects.effects` of one judge.
        margin: of equivalence; the grey band.
        explained: variants whose bias is one for another behaviour, drawn hollow.
    """
    with style():
        import seaborn as sns

        rows = table[table["effect"].notna()].copy()
        rows = rows.loc[rows["effect"].sort_values().index].reset_index(drop=True)
        figure, axes = single(FOREST, 1.1 + 0.22 * max(1, len(rows)))
        palette = sns.color_palette("colorblind", 10)
        blue, orange, green, sky = palette[0], palette[1], palette[2], palette[9]
        biased = rows["claim"].str.startswith("bias")
        of_another = rows["variant"].isin(list(explained))
        kinds = {
            "bias": (biased & ~of_another, orange, "s"),
            "bias for another behaviour": (biased & of_another, orange, "s"),
            "no bias (equivalent)": (rows["claim"] == "no bias", blue, "o"),
            END: (rows["claim"] == END, sky, "v"),
            "undecided": (rows["claim"].isin(["undecided", "cannot tell"]), "0.45", "D"),
        }
        axes.axvspan(-margin, margin, color="0.9", label=f"margin of +-{margin:g}", zorder=0)
        for label, (where, colour, marker) in kinds.items():
            part = rows[where]
            if part.empty:
                continue
            below, above = part["effect"] - part["low"], part["high"] - part["effect"]
            sides = [below.fillna(0.0), above.fillna(0.0)]
            hollow = label == "bias for another behaviour"
            marks: Any = {"color": colour, "markerfacecolor": "white" if hollow else colour}
            marks |= {"marker": marker, "markersize": 5, "linestyle": ""}
            axes.errorbar(part["effect"], part.index, xerr=sides, capsize=3, **marks)
            axes.plot([], [], label=label, **marks)  # a bar has no marker in a legend
        planted = rows[rows["planted"].notna()]
        if len(planted):
            axes.plot(
                planted["planted"], planted.index, "|", color=green, markersize=12,
                markeredgewidth=2, label="planted dose (unclipped)", zorder=1,
            )  # fmt: skip
        axes.axvline(0, color="0.3", linewidth=1)
        axes.set_yticks(list(rows.index), list(rows["variant"]))
        axes.set_ylim(-0.7, max(0, len(rows) - 1) + 0.7)
        axes.set_xlabel("judge's change - truth's change (score units)")
        figure.legend(loc="outside upper center", ncols=3)
        return figure


def scores(table: pd.DataFrame, truth: bool) -> Figure:
    """How does each judge use its scale, beside the truth, on contents as they are?

    Args:
        table: `analysis.probes.profile.scores` of judges of single texts.
        truth: whether there is a truth to draw.
    """
    with style():
        from matplotlib.figure import Figure

        contents = table[(table["bias"] == "content") & table["score"].notna()]
        judges = list(contents["judge"].unique())
        figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
        panels = figure.subplots(1, max(1, len(judges)), sharey=True, squeeze=False).ravel()
        bins = [k / 20 for k in range(21)]
        for judge, axes in zip(judges, panels, strict=False):
            part = contents[contents["judge"] == judge]
            axes.hist(part["score"].clip(0, 1), bins=bins, color="C0", label="judge")
            if truth:
                axes.hist(
                    part["truth"].dropna(), bins=bins, histtype="step", color="0.1",
                    linewidth=1.4, label="rule truth",
                )  # fmt: skip
            axes.set_title(f"{judge} (n={len(part)})")
            axes.set_xlabel("score")
        panels[0].set_ylabel("texts")
        panels[0].legend()
        return figure


def failures(table: pd.DataFrame) -> Figure:
    """Do long texts lose their verdicts more often? By quarter of the texts' length."""
    with style():
        figure, axes = single(WIDTH, 3.4)
        for judge, look in looks(list(table["judge"].unique())).items():
            part = table[table["judge"] == judge]
            middle = (part["words_low"] + part["words_high"]) / 2
            share = 100 * part["share"]
            sides = [share - 100 * part["low"], 100 * part["high"] - share]
            axes.errorbar(middle, share, yerr=sides, label=judge, capsize=3, **look)
        axes.set(xlabel="length of the text (words, middle of quarter)", ylabel="unscored (%)")
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside upper center", ncols=4)
        return figure
