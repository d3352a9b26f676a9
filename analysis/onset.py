"""When a run's judge and truth part: a change point, the threshold grid of CHERRL, an alarm."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING

from analysis.command import study_command, write_json
from analysis.records.runs import read_runs
from analysis.reports.markup import bracket, number, p_value
from analysis.run.threshold_grid import (
    CELLS,
    FEWEST_HIGH,
    HIGH,
    span,
)
from analysis.statistics.estimate import columns
from study.errors import UserError
from study.features import FEATURES

if TYPE_CHECKING:
    from analysis.records.runs import Run
from analysis.run.onset import Line, dosed, line, planted_false_alarms

USAGE = (
    "python -m analysis.onset study=quickstart [feature=length] [high=0.99] [fewest=20] "
    "[runs_dir=runs] [out=FILE]"
)


def main(arguments: Sequence[str]) -> int:
    """Command line. Exit codes: 0 printed, 2 a user's error."""
    try:
        given, folder = study_command(arguments, ("feature", "high", "fewest", "out"), USAGE)
        high, fewest = _options(given)
        runs, problems = read_runs(folder)
        lines = []
        for run in runs:
            features = [given["feature"]] if given.get("feature") else dosed(run)
            lines.append(line(run, features, high, fewest))
        if given.get("out"):
            write_json(
                given["out"],
                [asdict(line) | {"onset": columns(line.onset, step="")} for line in lines],
            )
        _print(runs, lines)
        for problem in problems:
            print(f"problem: {problem}")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _options(given: dict[str, str]) -> tuple[float, int]:
    """``high`` and ``fewest``, after a look at ``feature``."""
    wrong = []
    if given.get("feature", FEATURES[0]) not in FEATURES:
        wrong.append(f"feature={given['feature']} is none of {', '.join(FEATURES)}")
    numbers = []
    for name, usual in (("high", f"{HIGH}"), ("fewest", f"{FEWEST_HIGH}")):
        try:
            numbers.append(float(given.get(name, usual)))
        except ValueError:
            wrong.append(f"{name}={given[name]} is no number")
            continue
        if not isfinite(numbers[-1]):
            wrong.append(f"{name}={given[name]} is not finite")
    if wrong:
        raise UserError(f"The command cannot be run: {'; '.join(wrong)}. Type: {USAGE}")
    return numbers[0], int(numbers[1])


def _print(runs: Sequence[Run], lines: Sequence[Line]) -> None:
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
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, *rows]:
        print(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )
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
        f"[{share.low:.1%}, {share.high:.1%}] of 500 simulated bias-free runs of "
        "this shape (Wilson)."
    )


def _step(step: int | None) -> str:
    return "\u2013" if step is None else str(step)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
