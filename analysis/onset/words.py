"""What `analysis.onset` and `analysis.overopt` print: each run, followed over its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.display.markup import MISSING, TEXTS, number, p_value, with_interval
from analysis.display.printed import NO_RUN, aligned
from analysis.onset.best_of_n import BestOfN
from analysis.onset.display import best_of_n_table
from analysis.onset.estimate import Line, planted_false_alarms
from analysis.onset.overopt import place
from analysis.onset.threshold_grid import CELLS, span
from analysis.records.runs import Run


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
