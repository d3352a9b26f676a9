"""From what a step pushes to where a run ends: the behaviour's shift, predicted from the ledger."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from analysis.display.printed import show
from analysis.propagation import SCALES
from analysis.propagation.display import figure, text
from analysis.propagation.estimate import study
from study.cli import FigureOptions, command, option
from study.config.bounds import Choice


@dataclass(frozen=True)
class Options(FigureOptions):
    """Options of `analysis.propagation`: the study, and how a push becomes a shift."""

    scale: str = option("how a push becomes a shift", "adam", Choice(SCALES))


@command("analysis.propagation study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    result = study(options.folder, options.scale)
    has_r2 = any(line.scores.r2 == line.scores.r2 for line in result.calibration)
    draw = (lambda: figure(result.runs, result.calibration)) if has_r2 else None
    show(options, result.numbers(), lambda: text(result), draw)
    if options.figure and not has_r2:
        print("problem: no figure was drawn, as no behaviour has a prediction to compare")
    return 0


if __name__ == "__main__":
    sys.exit(main())
