"""Dose and response over runs: how much behaviour, or gap, a unit of injected bias makes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.arm.dose import study
from analysis.printed.arm import dose_text
from analysis.reports.figures import dose_response
from study.cli import StudyOptions, command, option, output
from study.files import write_json


@dataclass(frozen=True)
class Options(StudyOptions):
    feature: str = option("the behaviour", "length")
    out: Path | None = output("JSON file for the numbers")
    figure: Path | None = output("file for the figure")


@command("analysis.dose study=dose-response", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    result = study(options.folder, options.feature)
    if options.out:
        write_json(options.out, result)
    print(dose_text(result))
    if options.figure:
        dose_response(result).savefig(options.figure, dpi=150)
    return 0


if __name__ == "__main__":
    sys.exit(main())
