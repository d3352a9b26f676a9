"""The report's sections on ledger, propagation, onset, over-optimisation and other judges.

Each is a list of HTML fragments made from one `analysis.reports.pathway.Trace`, and says in words
what a study is too small or too blind to show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.arm import crossjudge, propagation
from analysis.arm.crossjudge import COLUMNS, agreement_figure
from analysis.arm.propagation import unpredicted
from analysis.records.runs import step_means
from analysis.reports import markup
from analysis.reports.figures import looks, style
from analysis.reports.pathway import substituted
from analysis.run.overopt import place
from analysis.run.threshold_grid import span
from analysis.statistics.estimate import columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.records.runs import Run
    from analysis.reports.pathway import Trace

SHOWN = 5
"""Behaviours in the stacked ledger."""
LEDGER = {
    "bias_share": "advantages from judge - truth (share of squares, covariance left out)",
    "tied": "groups tied in truth, not in reward (share)",
    "dead": "groups without a gradient (share)",
    "amplification": "weight of a point of bias in tied groups, times that in others",
    "phi": "phi of judge and truth as yes or no",
    "j": "Youden's J of judge and truth as yes or no",
    "align/truth/cosine": "cosine of the advantages with those of the truth",
    "align/truth/flips": "advantages whose sign the truth would turn (share)",
    "unscored": "verdicts missing (share)",
    "zero/cosine": "cosine with advantages if missing verdicts were 0",
    "drop_group/cosine": "cosine with advantages if their groups were dropped",
}
"""Rows of the ledger's table: metric of `analysis.step.ledger.judge_table` and what it is."""


def sections(found: Trace) -> list[str]:
    """All fragments, in order."""
    return [
        *ledger_section(found),
        *propagation_section(found),
        *onset_section(found),
        *frontier_section(found),
        *judges_section(found),
    ]


def ledger_section(found: Trace) -> list[str]:
    """What the advantages were made of, step by step."""
    head = ["<h2>What did the advantages reward?</h2>"]
    unique = [name for name in found.steps if name.startswith("unique/")]
    if found.steps.empty or not found.steps[unique].notna().any().any():
        return [*head, markup.paragraph("No step has rewards that differ within a group.")]
    note = (
        "Share of the within-group variance of the advantage that each behaviour explains alone, "
        "and what several explain together, by training step (mean over runs). The rest is what no "
        "behaviour explains, the truth among it."
    )
    said = "Means over the steps of a run; brackets are 95 % t intervals over runs."
    drawn = _drawn(stacked(found.steps, unique), note)
    return [*head, drawn, markup.table(ledger_table(found.table)), markup.paragraph(said)]


def ledger_table(table: pd.DataFrame) -> pd.DataFrame:
    """`LEDGER` by arm, with intervals over runs; rows that no arm has are left out."""
    cells = table.set_index(["metric", "arm"])
    arms = list(dict.fromkeys(table["arm"]))
    runs = {arm: int(table.loc[table["arm"] == arm, "n"].max()) for arm in arms}
    rows = []
    for metric, label in LEDGER.items():
        if metric not in cells.index:
            continue
        own = cells.loc[metric].reindex(arms)
        if own["mean"].notna().any():
            told = {
                f"{arm} ({runs[arm]} run{'' if runs[arm] == 1 else 's'})": " ".join(
                    [markup.number(one["mean"]), markup.bracket(one["low"], one["high"])]
                ).strip()
                for arm, one in own.iterrows()
            }
            rows.append({"mean over steps": label, **told})
    return pd.DataFrame(rows)


def stacked(steps: pd.DataFrame, unique: Sequence[str]) -> Figure:
    """Explained advantage variance by behaviour as stacked areas, one panel per arm."""
    import matplotlib.pyplot as plt
    import seaborn as sns

    top = list(steps[list(unique)].mean().sort_values(ascending=False).index[:SHOWN])
    arms = sorted(steps["arm"].unique())
    wide = min(3, len(arms))
    high = -(-len(arms) // wide)
    with style():
        made, panels = plt.subplots(
            high, wide, figsize=(3.4 * wide, 2.8 * high), sharex=True, sharey=True,
            layout="constrained", squeeze=False,
        )  # fmt: skip
        colours = [*sns.color_palette("colorblind", len(top)), (0.75, 0.75, 0.75)]
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
        for axes in panels[-1]:
            axes.set_xlabel("training step")
        for axes in panels[:, 0]:
            axes.set_ylabel("share of variance")
        for axes in list(panels.flat)[len(arms) :]:
            axes.set_visible(False)
        handles, names = panels.flat[0].get_legend_handles_labels()
        made.legend(handles, names, loc="outside lower center", ncols=3)
    return made


def propagation_section(found: Trace) -> list[str]:
    """Predicted beside observed shifts, where there are runs enough."""
    head = ["<h2>Does what was rewarded explain what was learned?</h2>"]
    if found.unpredicted:
        return [*head, markup.paragraph(found.unpredicted)]
    table = pd.DataFrame([columns(line, slope="") for line in found.calibration])
    known = table.dropna(subset=["r2"])
    shown = known.drop(columns="note").rename(
        columns={
            "low": "slope low",
            "high": "slope high",
            "inside": "in 95 % interval (share)",
            "r2_unseen": "r2, step size from other arms",
            "inside_unseen": "in interval, from other arms",
            "r2_repeated": "r2 of repeating the arm's other runs",
        }
    )
    drawn = propagation.figure(pd.DataFrame([asdict(row) for row in found.predicted]), table)
    note = (
        "Shift of each run (last tenth of the steps minus first) against the one predicted from "
        "the covariance of advantage and behaviour in its own rollouts, with a step size fitted on "
        "the other runs. On the line: explained; bars are 95 % prediction intervals."
    )
    said = (
        "One row per behaviour, over runs. Other seeds of an arm are nearly repetitions: what is "
        "predicted, and not repeated, is in the columns with the step size from other arms."
    )
    if why := unpredicted(found.predicted):
        left_out = ", ".join(f"{cell} ({note})" for cell, note in sorted(why.items()))
        said += f" Not predicted: {left_out}."
    return [*head, _drawn(drawn, note), markup.table(shown), markup.paragraph(said)]


def onset_section(found: Trace) -> list[str]:
    """When each run's gap began to grow, by the change point and by the threshold grid."""
    note = (
        "Change point of judge minus truth with its 95 % interval (groups within steps are "
        "resampled), an early stop that would have ended the run, and for comparison the threshold "
        "grid of CHERRL (arXiv 2606.04923) over the rollouts scored .99 or more, and over the "
        "best-scored tenth of each run; docs/onset.md says what each assumes."
    )
    table = pd.DataFrame([_onset_row(one) for one in found.onsets])
    head = "<h2>When did the judge leave the truth?</h2>"
    return [head, markup.paragraph(note), markup.table(table)]


def _onset_row(found: Any) -> dict[str, Any]:
    """One line of `analysis.onset` for people."""
    onset = found.onset
    if onset.step == onset.step:
        begun = f"{onset.step.value:.0f} {markup.bracket(onset.step.low, onset.step.high)}"
    else:  # a p says that a rise was looked for
        begun = "none seen" if onset.p == onset.p else markup.MISSING
    return {
        "arm": found.arm,
        "seed": found.seed,
        "gap, first": found.gap_first,
        "gap, last": found.gap_last,
        "onset (step)": begun,
        "p": markup.p_value(onset.p),
        "early stop (step)": "" if found.alarm is None else str(found.alarm),
        "threshold grid (step)": span(found.grid),
        "grid, top tenth": span(found.own_grid),
        "note": "; ".join(filter(None, [onset.note, found.grid.note])),
    }


def frontier_section(found: Trace) -> list[str]:
    """Truth against judge along training, and the over-optimisation fits where KL is known."""
    head = ["<h2>How far can the judge be followed?</h2>"]
    if not found.fits:
        return [*head, markup.paragraph("No rule knows the truth of these rows.")]
    drawn = frontier(found.runs)
    if drawn is None:
        why = "No run has judge and truth at both ends of its training, so there is no path."
        return [*head, markup.paragraph(why)]
    note = (
        "Mean truth against mean judge score of each step, from the ring (first tenth) to the dot "
        "(last tenth), one line per run. On the grey line the judge says the truth."
    )
    fitted = [row for row in found.fits if row["best"] is not None and row["score"] == "truth"]
    if not fitted:
        why = sorted({row["note"] for row in found.fits})
        return [*head, _drawn(drawn, note), markup.sentences(why)]
    table = pd.DataFrame(
        [
            {
                "arm": row["arm"],
                "seed": row["seed"],
                "form": row["best"]["form"],
                "peak (sqrt KL)": place(row["best"]["peak"]),
                "low": place(row["low"]),
                "high": place(row["high"]),
                "largest sqrt KL": row["d_max"],
                "note": row["note"],
            }
            for row in fitted
        ]
    )
    said = "One row per run; the 95 % interval of the peak resamples groups within steps."
    return [*head, _drawn(drawn, note), markup.table(table), markup.paragraph(said)]


def frontier(runs: Sequence[Run]) -> Figure | None:
    """One path per run in the plane of judge score and truth; None where no run has both ends."""
    import matplotlib.pyplot as plt

    look = looks(sorted({run.arm for run in runs}))
    with style():
        made, axes = plt.subplots(figsize=(6.5, 4.5), layout="constrained")
        axes.axline((0.5, 0.5), slope=1, color="0.6", linewidth=1, zorder=0)
        named: set[str] = set()
        for run in runs:
            x, y = step_means(run, run.judge), step_means(run, run.truth)
            window = -(-len(x) // 10)
            if not np.isfinite(x[:window]).any() or not np.isfinite(x[-window:]).any():
                continue
            colour = look[run.arm]["color"]
            smooth = np.ones(window) / window
            axes.plot(
                np.convolve(x, smooth, "valid"), np.convolve(y, smooth, "valid"),
                color=colour, linewidth=1, alpha=0.7, label="" if run.arm in named else run.arm,
            )  # fmt: skip
            named.add(run.arm)
            ends = [(np.nanmean(v[:window]), np.nanmean(v[-window:])) for v in (x, y)]
            axes.plot(ends[0][0], ends[1][0], "o", mfc="white", color=colour, markersize=6)
            axes.plot(ends[0][1], ends[1][1], "o", color=colour, markersize=6)
        axes.set(xlabel="judge score (mean of a step)", ylabel="rule truth (mean of a step)")
        if named:
            made.legend(loc="outside lower center", ncols=2)
            return made
    plt.close(made)
    return None


def judges_section(found: Trace) -> list[str]:
    """Every policy under every judge that looked on or replayed, and what was given up."""
    head = ["<h2>Do other judges agree?</h2>"]
    if not any(run.shadows for run in found.runs):
        body = [
            markup.paragraph(
                "No other judge looked on. Type shadow=[NAME,NAME] with the sweep, or score the "
                "recorded rollouts again: python -m judges.replay study=... judge=NAME"
            )
        ]
    else:
        note = (
            "Gain in score from the first to the last tenth of the steps, by the judge that "
            "trained (rows) and the judge that scored (columns), on the rollouts that both scored; "
            "mean over runs."
        )
        gains = pd.DataFrame([one.row() for one in found.inflation])
        shared = (
            "Correlation of two judges' scores of the same rollouts, centred within groups: only "
            "differences inside a group reach an advantage. Mean over runs."
        )
        told = found.agreement[found.agreement["judge"] < found.agreement["other"]]
        body = [
            _drawn(crossjudge.figure(found.matrix), note),
            markup.table(gains),
            markup.sentences([f"{name}: {meaning}" for name, meaning in COLUMNS.items()]),
            _drawn(agreement_figure(found.agreement), shared),
            markup.table(told.rename(columns={"mean": "correlation", "n": "runs"})),
        ]
    none = (
        found.untold
        or "No arm raised one behaviour and lowered another, each by 0.25 SD beyond the base arm, "
        "in all of its pairs of runs."
    )
    left_out = [markup.sentences(found.problems)] if found.problems else []
    return [*head, *body, *left_out, markup.sentences(substituted(found) or [none])]


def _drawn(figure: Figure, note: str) -> str:
    """The figure as HTML, closed: a notebook shows every figure that is left open once more."""
    import matplotlib.pyplot as plt

    text = markup.figure(figure, note)
    plt.close(figure)
    return text
