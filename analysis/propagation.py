"""From what a step pushes to where a run ends: the behaviour's shift, predicted from the ledger."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.arm.propagation import figure, study
from analysis.printed.arm import propagation_text
from study.cli import StudyOptions, command, option, output
from study.files import write_json


@dataclass(frozen=True)
class Options(StudyOptions):
    scale: str = option("how a push becomes a shift", "adam")
    out: Path | None = output("JSON file for the numbers")
    figure: Path | None = output("file for the figure")


@command("analysis.propagation study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    result = study(options.folder, options.scale)
    if options.out:
        write_json(options.out, result)
    print(propagation_text(result))
    runs, lines = pd.DataFrame(result["runs"]), pd.DataFrame(result["calibration"])
    if options.figure and lines["r2"].notna().any():
        figure(runs, lines).savefig(options.figure, dpi=150)
    elif options.figure:
        print("problem: no figure was drawn, as no behaviour has a prediction to compare")
    return 0


if __name__ == "__main__":
    sys.exit(main())
