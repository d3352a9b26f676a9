"""What papers of the field report of such a study: aggregates, paired differences, onset times."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass

from analysis.display.printed import show, with_problems, without_infinities
from analysis.drift.estimate import usable_cells
from analysis.field.display import lines
from analysis.field.estimate import THRESHOLDS, of_runs
from analysis.onset.estimate import dosed, line
from analysis.records.replays import with_replays
from analysis.study import read_study
from study.cli import ResultOptions, command, option
from study.config.bounds import Choice
from study.features import FEATURES


@dataclass(frozen=True)
class Options(ResultOptions):
    """Options of `analysis.field`: the study, and the shortcut."""

    feature: str | None = option(
        "shortcut to look for; left out, the judge's dosed behaviours",
        legal=Choice(tuple(FEATURES)),
    )


@command("analysis.field study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    records = read_study(options.folder)
    cells = usable_cells(records.table)
    runs = [run for run in records.runs if run.cell in cells]
    chosen = [options.feature] if options.feature else None
    onsets = [line(run, chosen or dosed(run)) for run in runs]
    runs, unread = with_replays(runs, options.folder)
    results = of_runs(runs, onsets, records.effects(), chosen, options.folder)
    numbers = {"thresholds": THRESHOLDS.tolist(), **without_infinities(asdict(results))}
    problems = [*records.problems, *unread, *results.problems]
    return show(options, numbers, lambda: with_problems(lines(results), problems))


if __name__ == "__main__":
    sys.exit(main())
