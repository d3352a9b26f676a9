"""What `analysis.onset` and `analysis.overopt` print: each run, followed over its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.records.runs import Run
from analysis.reports.markup import MISSING, bracket, number, p_value
from analysis.run.onset import Line, planted_false_alarms
from analysis.run.overopt import place
from analysis.run.threshold_grid import CELLS, span


def print_onset(runs: Sequence[Run], lines: Sequence[Line]) -> None:
    """A line per run, then the alarm's rule and the notes."""
    if not lines:
        print("No run of this study has recorded rollouts yet.")
        return
    heads = ("arm", "seed", "steps", "gap first", "last", "onset [95 %]", "p", "rise")
    heads += ("CHERRL [min, max]", "cells", "top tenth", "severe", "alarm", "shortcut")
    rows = []
    for one in lines:
        onset, grid = one.onset, one.grid
        rows.append(
            (
                *(one.arm, str(one.seed), str(one.steps)),
                *(number(one.gap_first, sign=True), number(one.gap_last, sign=True)),
                f"{number(onset.step.value)} {bracket(onset.step.low, onset.step.high)}".strip(),
                *(p_value(onset.p), number(onset.rise, sign=True)),
                *(span(grid), f"{grid.resolved}/{CELLS}", span(one.own_grid)),
                *(_step(grid.severe), _step(one.alarm), one.shortcut or "?"),
            )
        )
    _print_columns([heads, *rows])
    print(
        "\nUnit: a run; intervals resample groups within steps and say nothing of other runs. "
        "Onset is where judge - truth begins to rise; p is against group-sampling noise."
    )
    _print_rule(runs, lines)
    notes = [(note, one.cell) for one in lines for note in (one.onset.note, one.grid.note) if note]
    for note in dict.fromkeys(note for note, _ in notes):
        print(f"{note} ({', '.join(cell for said, cell in notes if said == note)})")


def _print_rule(runs: Sequence[Run], lines: Sequence[Line]) -> None:
    first = next((at for at, one in enumerate(lines) if one.rule is not None), None)
    if first is None:
        print("Alarm: no run is long enough, with two groups a step, for the rule.")
        return
    rule = lines[first].rule
    assert rule is not None
    share = planted_false_alarms(runs[first], rule)
    print(
        f"Alarm: CUSUM of the gap over the mean of the first {rule.baseline} steps, slack "
        f"{rule.slack:g} SE, limit {rule.limit:.2f} SE; it stops {share.value:.1%} "
        f"[{share.low:.1%}, {share.high:.1%}] of 500 simulated bias-free runs of this shape "
        "(Wilson)."
    )


def _step(step: int | None) -> str:
    return "\u2013" if step is None else str(step)


def print_overopt(table: Sequence[dict[str, Any]]) -> None:
    """A line per run and score, then the unit and the notes."""
    if not table:
        print("No run of this study has recorded rollouts yet.")
        return

    heads = ("arm", "seed", "score", "form", "alpha", "beta", "AIC rl - bon", "line - best")
    heads += ("peak d", "[95 %]", "turned", "largest d")
    lines = [heads]
    for row in table:
        best = row["best"]
        axes = (row["arm"], str(row["seed"]), row["score"])
        if best is None:
            lines.append((*axes, *[MISSING] * 8, number(row["d_max"])))
            continue
        aic = {one["form"]: one["aic"] for one in row["fits"]}
        lines.append(
            (
                *axes,
                *(best["form"], number(best["alpha"]), number(best["beta"])),
                number(aic["rl"] - aic["bon"], sign=True),
                number(aic["line"] - best["aic"], sign=True),
                *(place(best["peak"]), f"[{place(row['low'])}, {place(row['high'])}]"),
                *(number(row["reached"]), number(row["d_max"])),
            )
        )
    _print_columns(lines)
    print(
        "\nUnit: a run. d = sqrt(KL in nats per completion); score = start + "
        "d (alpha - beta log d) (rl) or d (alpha - beta d) (bon); turned is the share of resampled "
        "curves with a peak before the largest d."
    )
    for note in dict.fromkeys(row["note"] for row in table if row["note"]):
        cells = dict.fromkeys(row["cell"] for row in table if row["note"] == note)
        print(f"{note} ({', '.join(cells)})")


def without_infinities(value: Any) -> Any:
    """A table for JSON, in which a peak that is not reached says so."""
    if isinstance(value, dict):
        return {key: without_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(item) for item in value]
    return "not reached" if value == float("inf") else value


def _print_columns(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        padded = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        print("  ".join(padded).rstrip())
