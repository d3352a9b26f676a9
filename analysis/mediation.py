"""Does the truth fall because of the behaviour that the judge paid for? Descriptive, over runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.arm.mediation import study
from analysis.printed.arm import mediation_text
from study.cli import StudyOptions, command, option, output
from study.files import write_json


@dataclass(frozen=True)
class Options(StudyOptions):
    feature: str = option("the behaviour", "length")
    out: Path | None = output("JSON file for the numbers")


@command("analysis.mediation study=dose-response", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    result = study(options.folder, options.feature)
    if options.out:
        write_json(options.out, result)
    print(mediation_text(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
