"""Figures and tables of onsets, of judge score against truth, of peaks and of the best of n."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.display import markup
from analysis.display.figures import ALONE, curve, looks, marks_of, row_names, single, style
from analysis.display.markup import (
    DECIMALS,
    MISSING,
    TEXTS,
    folded,
    number,
    p_value,
    paragraph,
    picture,
    render_text,
    sheet,
    title,
    with_interval,
)
from analysis.display.printed import NO_RUN, aligned
from analysis.onset.estimate import Line, planted_false_alarms
from analysis.onset.overopt import BestOfN, place
from analysis.onset.threshold_grid import CELLS, span
from analysis.records.runs import Run, step_means

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style()
def onsets(lines: Sequence[Line]) -> Figure:
    """When did each run leave the truth? A row per run, its onset with the interval, and the early
    stop of an alarm."""
    from matplotlib.ticker import MaxNLocator

    look = looks(dict.fromkeys(each.arm for each in lines))
    names, high = row_names(f"{each.arm}, seed {each.seed}" for each in lines)
    figure, axes = single(ALONE, 0.9 + 0.24 * high * len(lines))
    for row, each in enumerate(lines):
        step, marks = each.onset.step, marks_of(look[each.arm])
        if math.isfinite(step.value):
            ends = [step.value], [step.low], [step.high]
            curve(axes, [row], *ends, across=True, linestyle="", **marks)
        if each.alarm is not None:
            axes.plot(each.alarm, row, "|", color=marks["color"], markersize=11, alpha=0.7)
    axes.set_yticks(range(len(lines)), names)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlim(0, max(each.steps for each in lines) + 1)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set_xlabel("training step")
    return figure


def onset_table(lines: Iterable[Line]) -> pd.DataFrame:
    """When each run's gap began to rise, one row per run."""
    rows = []
    for line in lines:
        onset, step = line.onset, line.onset.step
        begun = f"{step.value:.0f} {markup.bracket(step.low, step.high)}"
        if not math.isfinite(step.value):  # where there is a p, a rise was looked for
            begun = "none seen" if onset.p == onset.p else markup.MISSING
        rows.append(
            {
                "arm": line.arm,
                "seed": line.seed,
                "gap, first": round(line.gap_first, DECIMALS),
                "gap, last": round(line.gap_last, DECIMALS),
                "rise explained": line.explained,
                "onset (step)": begun,
                "p": markup.p_value(onset.p),
                "early stop (step)": "" if line.alarm is None else str(line.alarm),
                "threshold grid (step)": span(line.grid),
                "grid, top tenth": span(line.own_grid),
                "note": "; ".join(filter(None, [onset.note, line.grid.note])),
            }
        )
    return pd.DataFrame(rows)


@style()
def frontier(runs: Sequence[Run]) -> Figure | None:
    """One path per run in the plane of judge score and truth; None where no run has both ends."""
    import seaborn as sns

    look = looks(sorted({run.arm for run in runs}))
    figure, axes = single(ALONE, 3.6)
    axes.axline((0.5, 0.5), slope=1, color="0.6", linewidth=1, zorder=0)
    labelled: set[str] = set()
    for run in runs:
        path = step_means(run, run.judge), step_means(run, run.levels())
        window = -(-len(path[0]) // 10)
        first, last = path[0][:window], path[0][-window:]
        if not np.isfinite(first).any() or not np.isfinite(last).any():
            continue
        marks = marks_of(look[run.arm])
        x, y = (np.convolve(means, np.ones(window) / window, "valid") for means in path)
        path_look: Any = {"color": marks["color"], "linewidth": 1, "alpha": 0.7}
        sns.lineplot(x=x, y=y, sort=False, estimator=None, ax=axes, **path_look)
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


def best_of_n_table(lines: Sequence[BestOfN]) -> pd.DataFrame:
    """The truth of the best of 1, 2, 4, ... and of all answers, by judge."""
    most = {(line.arm, line.judge): line.n for line in lines}
    rows = [
        {
            "arm": line.arm,
            "chosen by": line.judge,
            "n": line.n,
            "KL (nats)": line.kl,
            "truth [95 %]": markup.with_interval(line.truth),
            "truth gained [95 %]": markup.signed(line.gain),
            "its score [95 %]": markup.with_interval(line.score),
            "prompts": line.truth.n,
        }
        for line in lines
        if line.n & (line.n - 1) == 0 or line.n == most[line.arm, line.judge]
    ]
    return pd.DataFrame(rows)


def peaks_table(fits: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """The best over-optimisation fit of each run: where the truth peaks."""
    rows = [
        {
            "arm": fit["arm"],
            "seed": fit["seed"],
            "form": TEXTS["forms"][fit["best"]["form"]],
            "peak (square root of KL)": place(fit["best"]["peak"]),
            "low": place(fit["low"]),
            "high": place(fit["high"]),
            "largest square root of KL": fit["d_max"],
            "note": fit["note"],
        }
        for fit in fits
    ]
    return pd.DataFrame(rows)


def onset_text(runs: Sequence[Run], lines: Sequence[Line]) -> list[str]:
    """A line per run, then the alarm's rule and the notes."""
    rows = []
    for line in lines:
        onset, grid = line.onset, line.grid
        step = onset.step
        rows.append(
            {
                "arm": line.arm,
                "seed": str(line.seed),
                "steps": str(line.steps),
                "gap first": number(line.gap_first, sign=True),
                "last": number(line.gap_last, sign=True),
                "explained": number(line.explained, sign=True),
                "onset [95 %]": with_interval(step),
                "p": p_value(onset.p),
                "rise": number(onset.rise, sign=True),
                "CHERRL [min, max]": span(grid),
                "cells": f"{grid.resolved}/{CELLS}",
                "top tenth": span(line.own_grid),
                "severe": number(grid.severe),
                "alarm": number(line.alarm),
                "shortcut": line.shortcut or "?",
            }
        )
    notes = [(note, line.cell) for line in lines for note in (line.onset.note, line.grid.note)]
    return _table(
        rows,
        "Unit: a run; intervals resample groups within steps and say nothing of other runs. "
        "Onset is where judge - truth begins to rise beyond what the judge's calibration on the "
        "first steps explains; p is against group-sampling noise and refits of the calibration.",
        *_rule(runs, lines),
        *_by_note(notes),
    )


def _rule(runs: Sequence[Run], lines: Sequence[Line]) -> list[str]:
    """The alarm's rule, as for the first run that is long enough."""
    for run, line in zip(runs, lines, strict=True):
        if (rule := line.rule) is not None:
            share = planted_false_alarms(run, rule)
            return [
                f"Alarm: CUSUM of that part of the gap over the mean of the first {rule.baseline} "
                f"steps, slack {rule.slack:g} SE, limit {rule.limit:.2f} SE; it stops "
                f"{share.value:.1%} [{share.low:.1%}, {share.high:.1%}] of 500 simulated bias-free "
                "runs of this shape (Wilson)."
            ]
    return ["Alarm: no run has a calibration and is long enough, with two groups a step, for it."]


def overopt_text(table: Sequence[dict[str, Any]]) -> list[str]:
    """A line per run and score, then the unit and the notes."""
    heads = ("form", "alpha", "beta", "AIC rl - bon", "line - best", "peak d", "[95 %]", "turned")
    rows = []
    for row in table:
        best, fit = row["best"], [MISSING] * len(heads)
        if best is not None:
            aic = {form["form"]: form["aic"] for form in row["fits"]}
            fit = [
                *(best["form"], number(best["alpha"]), number(best["beta"])),
                number(aic["rl"] - aic["bon"], sign=True),
                number(aic["line"] - best["aic"], sign=True),
                *(place(best["peak"]), f"[{place(row['low'])}, {place(row['high'])}]"),
                number(row["reached"]),
            ]
        run = {"arm": row["arm"], "seed": str(row["seed"]), "score": row["score"]}
        fitted = dict(zip(heads, fit, strict=True))
        rows.append(run | fitted | {"largest d": number(row["d_max"])})
    return _table(
        rows,
        "Unit: a run. d = sqrt(KL in nats per completion); score = start + "
        "d (alpha - beta log d) (rl) or d (alpha - beta d) (bon); turned is the share of resampled "
        "curves with a peak before the largest d.",
        *_by_note([(row["note"], row["cell"]) for row in table]),
    )


def best_of_n_text(lines: Sequence[BestOfN]) -> list[str]:
    """A line per arm, judge and n, then what they are; nothing where no judge scored."""
    table = best_of_n_table(lines)
    if table.empty:
        return []
    rows = [
        {name: value if isinstance(value, str) else number(value) for name, value in row.items()}
        for row in table.to_dict("records")
    ]
    return ["", *_table(rows, TEXTS["paragraphs"]["best_of_n"])]


def _table(rows: list[dict[str, str]], meaning: str, *lines: str) -> list[str]:
    """The rows, then what they mean."""
    return [*aligned(rows), f"\n{meaning}", *lines] if rows else [NO_RUN]


def _by_note(notes: Sequence[tuple[str, str]]) -> list[str]:
    """Each note once, with the cells that it is about."""
    cells: dict[str, dict[str, None]] = {}
    for note, cell in notes:
        if note:
            cells.setdefault(note, {})[cell] = None
    return [f"{note} ({', '.join(named)})" for note, named in cells.items()]


def section(lines: Sequence[Line]) -> list[str]:
    """When each run's gap began to grow, by the change point and by the threshold grid, for the
    report."""
    looked_for = any(math.isfinite(line.onset.p) for line in lines)
    drawn = [picture("onsets", onsets, lines)] if looked_for else []
    meaning = paragraph(TEXTS["paragraphs"]["onsets"])
    return [title("onsets"), *drawn, sheet("onsets", onset_table(lines)), meaning]


def frontier_section(
    runs: Sequence[Run], fits: Sequence[dict[str, Any]], chosen: Sequence[BestOfN]
) -> list[str]:
    """Truth against judge along training, the over-optimisation fits where KL is known, and what
    choosing by the judge would give without training, for the report."""
    rest: list[str] = []
    if chosen:
        table = sheet("best_of_n", best_of_n_table(chosen))
        meaning = paragraph(TEXTS["paragraphs"]["best_of_n"])
        rest = folded(TEXTS["folded"]["frontier"], [table, meaning])
    return [title("frontier"), *_frontier(runs, fits), *rest]


def _frontier(runs: Sequence[Run], fits: Sequence[dict[str, Any]]) -> list[str]:
    if not fits:
        return [paragraph(TEXTS["empty"]["frontier"])]
    drawn = picture("frontier", frontier, runs)
    if not drawn:
        return [paragraph(TEXTS["empty"]["path"])]
    fitted = [fit for fit in fits if fit["best"] is not None and fit["score"] == "truth"]
    if not fitted:
        why = "; ".join(sorted({fit["note"] for fit in fits}))
        return [drawn, paragraph(render_text("limits", "no_fit", why=why))]
    return [drawn, sheet("peaks", peaks_table(fitted)), paragraph(TEXTS["paragraphs"]["peaks"])]
