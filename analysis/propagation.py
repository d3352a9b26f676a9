"""From what a step pushes to where a run ends: the behaviour's shift, predicted from the ledger."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from analysis.command import study_command, write_json
from study.errors import UserError

if TYPE_CHECKING:
    pass
from analysis.arm.propagation import figure, study

USAGE = (
    "python -m analysis.propagation study=quickstart [runs_dir=runs] [scale=adam] [out=FILE] "
    "[figure=FILE]"
)


LEGEND = (
    "r2, slope, inside: scale fitted on all other runs; _unseen: on the runs of other arms only,\n"
    "as for a judge that nobody trained on; r2_repeated: no theory, mean of the arm's other runs."
)


def main(arguments: Sequence[str]) -> int:
    """The command line; 0, or 2 after a user's error."""
    try:
        given, folder = study_command(arguments, ("scale", "out", "figure"), USAGE)
        found = study(folder, given.get("scale", "adam"))
        if given.get("out"):
            write_json(given["out"], found)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    rows, lines = pd.DataFrame(found["runs"]), pd.DataFrame(found["calibration"])
    print(lines.drop(columns="note").round(3).to_string(index=False))
    print(LEGEND)
    best = lines.sort_values("r2", ascending=False)["feature"].iloc[0]
    print(f"\n{best}, run by run (predicted with a scale fitted on the other runs):")
    columns = ["cell", "observed", "predicted", "low", "high", "of_truth", "of_bias", "scale"]
    columns += ["unseen", "repeated"]
    print(rows[rows.feature == best][columns].to_string(index=False, float_format="%.3g"))
    if found["kl_limit"]:
        held = pd.DataFrame(found["kl_limit"])
        print(f"\n{best}, observed beside what the KL penalty would hold (Cov(A, z) / beta):")
        print(held[held.feature == best].to_string(index=False, float_format="%.3g"))
    for problem in found["problems"]:
        print(f"problem: {problem}")
    if given.get("figure") and lines["r2"].notna().any():
        figure(rows, lines).savefig(given["figure"], dpi=150)
    elif given.get("figure"):
        print("problem: no figure was drawn, as no behaviour has a prediction to compare")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
