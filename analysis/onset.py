"""When a run's judge and truth part: a change point, the threshold grid of CHERRL, an alarm."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from analysis.printed import by_note, show, table, with_problems
from analysis.records.runs import Run, read_runs
from analysis.reports.markup import estimate, number, p_value
from analysis.run.onset import Line, dosed, line, planted_false_alarms
from analysis.run.threshold_grid import CELLS, FEWEST_HIGH, HIGH, span
from analysis.statistics.estimate import columns
from study.bounds import Choice
from study.cli import StudyOptions, command, option, output
from study.features import FEATURES


@dataclass(frozen=True)
class Options(StudyOptions):
    feature: str | None = option(
        "the shortcut to look for; what the judge was dosed with where it is left out",
        legal=Choice(tuple(FEATURES)),
    )
    high: float = option("score from which a rollout counts as high", HIGH)
    fewest: int = option("high rollouts that a step needs", FEWEST_HIGH)
    out: Path | None = output("JSON file for the numbers")


@command("analysis.onset study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    runs, problems = read_runs(options.folder)
    chosen = [options.feature] if options.feature else None
    lines = [line(run, chosen or dosed(run), options.high, options.fewest) for run in runs]
    rows = [asdict(line) | {"onset": columns(line.onset, step="")} for line in lines]
    return show(options, rows, with_problems(_text(runs, lines), problems))


def _text(runs: Sequence[Run], lines: Sequence[Line]) -> list[str]:
    """A line per run, then the alarm's rule and the notes."""
    rows = []
    for shown in lines:
        onset, grid = shown.onset, shown.grid
        step = onset.step
        rows.append(
            {
                "arm": shown.arm,
                "seed": str(shown.seed),
                "steps": str(shown.steps),
                "gap first": number(shown.gap_first, sign=True),
                "last": number(shown.gap_last, sign=True),
                "onset [95 %]": estimate(step.value, step.low, step.high, sign=False),
                "p": p_value(onset.p),
                "rise": number(onset.rise, sign=True),
                "CHERRL [min, max]": span(grid),
                "cells": f"{grid.resolved}/{CELLS}",
                "top tenth": span(shown.own_grid),
                "severe": number(grid.severe),
                "alarm": number(shown.alarm),
                "shortcut": shown.shortcut or "?",
            }
        )
    notes = [(note, shown.cell) for shown in lines for note in (shown.onset.note, shown.grid.note)]
    return table(
        rows,
        "Unit: a run; intervals resample groups within steps and say nothing of other runs. "
        "Onset is where judge - truth begins to rise; p is against group-sampling noise.",
        *_rule(runs, lines),
        *by_note(notes),
    )


def _rule(runs: Sequence[Run], lines: Sequence[Line]) -> list[str]:
    """The alarm's rule, as for the first run that is long enough."""
    for run, shown in zip(runs, lines, strict=True):
        if (rule := shown.rule) is not None:
            share = planted_false_alarms(run, rule)
            return [
                f"Alarm: CUSUM of the gap over the mean of the first {rule.baseline} steps, slack "
                f"{rule.slack:g} SE, limit {rule.limit:.2f} SE; it stops {share.value:.1%} "
                f"[{share.low:.1%}, {share.high:.1%}] of 500 simulated bias-free runs of this "
                "shape (Wilson)."
            ]
    return ["Alarm: no run is long enough, with two groups a step, for the rule."]


if __name__ == "__main__":
    sys.exit(main())
