"""Which behaviour each judge would teach, before anybody trains: from the first rollouts alone."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.arm.forecast import figure, forecast
from analysis.arm.ranking import validate
from analysis.printed.arm import forecast_text
from study.bounds import Number
from study.cli import StudyOptions, command, option, output
from study.files import write_json


@dataclass(frozen=True)
class Options(StudyOptions):
    judges: str = option("presets with commas between, or study: those of the study", "study")
    steps: int = option("first steps that are read", 1, Number(low=1))
    validate: bool | None = option(
        "compare with the runs that were trained; true where judges=study"
    )
    out: Path | None = output("JSON file for the numbers")
    figure: Path | None = output("file for the figure")


@command("analysis.forecast study=quickstart judges=sim-fair,sim-verbose", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    result = forecast(options.folder, options.judges, options.steps)
    if options.judges == "study" if options.validate is None else options.validate:
        result["validation"] = validate(options.folder, result)
    if options.out:
        write_json(options.out, result)
    print(forecast_text(result))
    if options.figure:
        figure(pd.DataFrame(result["pushes"])).savefig(options.figure, dpi=150)
    return 0


if __name__ == "__main__":
    sys.exit(main())
