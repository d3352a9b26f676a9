"""Natural judges: the slope of behaviour on a bias that is itself measured, its error taken out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from analysis.command import study_command, write_json
from study.errors import UserError

if TYPE_CHECKING:
    pass
from analysis.arm.errors_in_variables import study

USAGE = "python -m analysis.natural study=quickstart [feature=length] [steps=1] [out=FILE]"


def main(arguments: Sequence[str]) -> int:
    """The command line; 0, or 2 after a user's error."""
    try:
        given, folder = study_command(arguments, ("feature", "steps", "out"), USAGE)
        steps = given.get("steps", "1")
        if not steps.isdecimal() or int(steps) < 1:
            raise UserError(f"steps={steps} is no number of steps. Type steps=1.")
        found = study(folder, given.get("feature", "length"), int(steps))
        if given.get("out"):
            write_json(given["out"], found)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(pd.DataFrame(found["judges"]).to_string(index=False, float_format="%.4g"))
    print(
        f"\n{found['feature']} per unit of measured bias, judge by judge"
        f" (reliability of the bias {found['reliability']:.3f}):"
    )
    print(pd.DataFrame(found["slopes"]).to_string(index=False, float_format="%.4g"))
    for problem in found["problems"]:
        print(f"problem: {problem}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
