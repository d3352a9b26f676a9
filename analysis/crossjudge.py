"""Every final policy under every judge: who likes what it taught, and what was given up for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.arm.crossjudge import figure, study
from analysis.arm.substitution import LEAST
from analysis.printed.arm import crossjudge_text
from study.bounds import Number
from study.cli import StudyOptions, command, option, output
from study.files import write_json


@dataclass(frozen=True)
class Options(StudyOptions):
    least: float = option("SDs that count as a substitution", LEAST, Number(above=0))
    out: Path | None = output("JSON file for the numbers")
    figure: Path | None = output("file for the figure")


@command("analysis.crossjudge study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    result = study(options.folder, options.least)
    if options.out:
        write_json(options.out, result)
    if options.figure:
        figure(pd.DataFrame(result["matrix"])).savefig(options.figure, dpi=150)
    print(crossjudge_text(result, options.least))
    return 0


if __name__ == "__main__":
    sys.exit(main())
