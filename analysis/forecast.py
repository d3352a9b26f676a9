"""Which behaviour each judge would teach, before anybody trains: from the first rollouts alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from analysis.arm.ranking import moved_most, validate
from analysis.command import study_command, write_json
from study.errors import UserError

if TYPE_CHECKING:
    pass
from analysis.arm.forecast import figure, forecast

USAGE = (
    "python -m analysis.forecast study=quickstart judges=study|NAME,NAME [steps=1]"
    " [validate=true|false] [runs_dir=runs] [out=FILE] [figure=FILE]"
)


def main(arguments: Sequence[str]) -> int:
    """The command line; 0, or 2 after a user's error."""
    try:
        keys = ("judges", "steps", "validate", "out", "figure")
        given, folder = study_command(arguments, keys, USAGE)
        steps = given.get("steps", "1")
        if not steps.isdecimal() or int(steps) < 1:
            raise UserError(f"steps={steps} is no number of steps. Type steps=1.")
        judges = given.get("judges", "study")
        found = forecast(folder, judges, int(steps))
        if given.get("validate", str(judges == "study").lower()) == "true":
            found["validation"] = validate(folder, found)
        if given.get("out"):
            write_json(given["out"], found)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    table = pd.DataFrame(found["pushes"])
    wide = table.pivot(index="judge", columns="feature", values="in_sds")
    print(f"Push at the first step, in SDs of each behaviour ({found['prompts']} prompts):")
    print(wide.round(3).to_string())
    for name in moved_most(found["pushes"]):
        print(
            f"\n{name}: push [95 % t interval over prompts], rank [95 % over prompts drawn again]"
        )
        own = table[table.feature == name].set_index("judge")
        for line in sorted(
            (line for line in found["ranks"] if line["feature"] == name),
            key=lambda line: line["rank"],
        ):
            row = own.loc[line["judge"]]
            print(
                f"  {line['rank']}. [{line['low']}, {line['high']}] {line['judge']}:"
                f" {row.push:+.3g} [{row.low:+.3g}, {row.high:+.3g}]"
            )
    if "validation" in found:
        print("\nForecast against the runs that were trained (rank correlation over arms):")
        print(pd.DataFrame(found["validation"]).round(3).to_string(index=False))
    if given.get("figure"):
        figure(table).savefig(given["figure"], dpi=150)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
