"""What each judge would teach, from the first rollouts of a study."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.display.printed import show
from analysis.forecast.display import figure, text
from analysis.forecast.estimate import ask, forecast
from analysis.forecast.study import in_units
from study.cli import FigureOptions, command, option
from study.config.bounds import Name, Number


@dataclass(frozen=True)
class Options(FigureOptions):
    """Options of `analysis.forecast`: the study, its judges, and the runs to fit on."""

    judges: str = option("presets separated by commas, or study: those of the study", "study")
    steps: int = option("number of first steps to read", 1, Number(low=1))
    fit: str = option(
        "study whose runs the response fit uses; empty is this one",
        "",
        Name(empty=True),
        empty=True,
    )
    probes: str = option(
        "folder of experiments.probe whose judges are forecast from their probes alone",
        "",
        empty=True,
    )


@command("analysis.forecast study=quickstart judges=sim-fair,sim-verbose", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    probes = Path(options.probes) if options.probes else None
    first_rewards = ask(options.folder, "" if probes else options.judges, options.steps)
    pushes = forecast(first_rewards)
    units = in_units(first_rewards, options.folder, options.fit, probes)
    return show(
        options,
        pushes.numbers() | units.numbers(),
        lambda: text(pushes, units),
        lambda: figure(pushes.pushes),
    )


if __name__ == "__main__":
    sys.exit(main())
