"""When a run's judge and truth part: a change point, the threshold grid of CHERRL, an alarm."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass

from analysis.display.printed import show, with_problems
from analysis.onset.display import onset_text
from analysis.onset.estimate import dosed, line
from analysis.onset.threshold_grid import FEWEST_HIGH, HIGH
from analysis.records.runs import read_runs
from analysis.statistics.estimate import columns
from study.cli import ResultOptions, command, option
from study.config.bounds import Choice
from study.features import FEATURES


@dataclass(frozen=True)
class Options(ResultOptions):
    """Options of `analysis.onset`: the study, the shortcut, and what counts as high."""

    feature: str | None = option(
        "shortcut to look for; left out, the judge's dosed behaviours",
        legal=Choice(tuple(FEATURES)),
    )
    high: float = option("score from which a rollout counts as high", HIGH)
    min_high: int = option("fewest high rollouts of a step", FEWEST_HIGH, former="fewest")


@command("analysis.onset study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    runs, problems = read_runs(options.folder)
    chosen = [options.feature] if options.feature else None
    lines = [line(run, chosen or dosed(run), options.high, options.min_high) for run in runs]
    rows = [asdict(line) | {"onset": columns(line.onset, step="")} for line in lines]
    return show(options, rows, lambda: with_problems(onset_text(runs, lines), problems))


if __name__ == "__main__":
    sys.exit(main())
