"""What each judge would teach, before anybody trains: from the first rollouts alone."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.arm import forecast_units
from analysis.arm.forecast import Asked, ask, figure, forecast
from analysis.arm.forecast_units import Candidates, Fitted
from analysis.printed import show
from analysis.printed.forecast import text
from analysis.statistics.estimate import columns
from study.bounds import Name, Number
from study.cli import StudyOptions, command, option, output
from study.errors import UserError


@dataclass(frozen=True)
class Options(StudyOptions):
    judges: str = option("presets with commas between, or study: those of the study", "study")
    steps: int = option("first steps that are read", 1, Number(low=1))
    fit: str = option(
        "study whose runs say how a policy answers to a bias; empty is this one",
        "",
        Name(empty=True),
        empty=True,
    )
    out: Path | None = output("JSON file for the numbers")
    figure: Path | None = output("file for the figure")


@command("analysis.forecast study=quickstart judges=sim-fair,sim-verbose", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    asked = ask(options.folder, options.judges, options.steps)
    result = forecast(asked)
    try:
        judged = forecast_units.candidates(asked)
        made = _fitted(options, asked, judged)
        result |= _in_units(options, asked, judged, made)
    except UserError as error:
        if options.fit:
            raise
        result["no_units"] = str(error)
    return show(options, result, lambda: text(result), lambda: figure(result["pushes"]))


def _file(options: Options, study: str) -> Path:
    return Path(options.runs_dir) / study / f"response-{options.steps}.json"


def _fitted(options: Options, asked: Asked, judged: Candidates) -> Fitted:
    """What another study kept; without one, fitted on this study's own runs, and kept."""
    if options.fit:
        return forecast_units.load(_file(options, options.fit))
    if options.judges != "study":
        asked = ask(options.folder, "study", options.steps)
        judged = forecast_units.candidates(asked)
    made = forecast_units.fitted(asked, judged, forecast_units.trained(options.folder, judged))
    forecast_units.save(_file(options, asked.study), made)
    return made


def _in_units(options: Options, asked: Asked, judged: Candidates, made: Fitted) -> dict[str, Any]:
    """Shifts of every candidate, and, of those that were trained, how the forecasts came out."""
    lines = forecast_units.forecasts(made, asked, judged)
    runs = forecast_units.trained(options.folder, judged)
    scores = forecast_units.scored(made, asked, judged, runs) if len(runs.arm) else []
    return {
        "fit": made.study,
        "shifts": [columns(line, shift="") | dict(line.simpler) for line in lines],
        "scores": [columns(line, slope="") for line in scores],
    }


if __name__ == "__main__":
    sys.exit(main())
