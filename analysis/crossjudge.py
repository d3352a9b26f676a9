"""Every final policy under every judge: who likes what it taught, and what was given up for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.arm.substitution import LEAST
from analysis.command import study_command, write_json
from study.errors import UserError

if TYPE_CHECKING:
    pass
from analysis.arm.crossjudge import figure, mean_gains, study

USAGE = "python -m analysis.crossjudge study=quickstart [least=0.25] [runs_dir=runs] [out=FILE]"


def main(arguments: Sequence[str]) -> int:
    """The command line; 0, or 2 after a user's error."""
    try:
        given, folder = study_command(arguments, ("least", "out", "figure"), USAGE)
        try:
            least = float(given.get("least", LEAST))
        except ValueError as error:
            raise UserError(f"least={given['least']} is no number. Type least=0.25.") from error
        if not 0 < least < float("inf"):
            raise UserError(f"least={given['least']} must be above 0. Type least=0.25.")
        found = study(folder, least)
        if given.get("out"):
            write_json(given["out"], found)
        if given.get("figure"):
            figure(pd.DataFrame(found["matrix"])).savefig(given["figure"], dpi=150)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(_text(found, least))
    return 0


def _text(found: Mapping[str, Any], least: float) -> str:
    """What the command prints."""
    table = pd.DataFrame(found["matrix"])
    wide = mean_gains(table)
    lines = ["Gain from the first to the last tenth of the steps, by the judge that scored, on"]
    lines += ["rollouts that the own judge scored as well; mean over runs:"]
    lines += [wide.round(3).to_string(), "\nGain with the own judge [95 % t intervals over runs]:"]
    lines.append(pd.DataFrame(found["inflation"]).round(3).to_string(index=False))
    lines += [f"  {name}: {meaning}" for name, meaning in found["inflation_columns"].items()]
    shared = pd.DataFrame(found["agreement"])
    shared = shared[shared["judge"] < shared["other"]]
    lines.append("\nCorrelation within groups, mean over runs [95 % t interval over runs]:")
    lines += [shared.round(3).to_string(index=False), ""]
    lines += [
        f"{one['arm']}: {one['risen']} rose by {one['up']:.2f} SD or more beyond {one['base']} in"
        f" each of {one['runs']} pairs of runs, {one['fallen']} fell by {-one['down']:.2f} SD or"
        f" more; a bias-free arm would show any in {one['chance']:.2g} of studies"
        for one in found["substitutions"]
    ]
    if found["substitutions_untold"]:
        lines.append(found["substitutions_untold"])
    elif not found["substitutions"]:
        lines.append(
            f"No behaviour rose while another fell by {least:g} SD beyond {found['base_arm']} in"
            " all pairs of runs of an arm."
        )
    return "\n".join([*lines, *(f"problem: {problem}" for problem in found["problems"])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
