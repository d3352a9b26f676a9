"""From what a step pushes to where a run ends: the behaviour's shift, predicted from the ledger."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.arm.propagation import SCALES, figure, study
from analysis.printed import show, with_problems
from study.bounds import Choice
from study.cli import StudyOptions, command, option, output

LEGEND = (
    "r2, slope, inside: scale fitted on all other runs; _unseen: on the runs of other arms only,\n"
    "as for a judge that nobody trained on; r2_repeated: no theory, mean of the arm's other runs.\n"
    "Placebos: r2_permuted, of advantages permuted within groups; r2_variance, of the push's sign\n"
    "times the behaviour's variance; r2_constant, of that sign times a constant."
)


@dataclass(frozen=True)
class Options(StudyOptions):
    scale: str = option("how a push becomes a shift", "adam", Choice(SCALES))
    out: Path | None = output("JSON file for the numbers")
    figure: Path | None = output("file for the figure")


@command("analysis.propagation study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    result = study(options.folder, options.scale)
    runs, lines = pd.DataFrame(result["runs"]), pd.DataFrame(result["calibration"])
    compared = lines["r2"].notna().any()
    draw = (lambda: figure(runs, lines)) if compared else None
    show(options, result, lambda: _text(result), draw)
    if options.figure and not compared:
        print("problem: no figure was drawn, as no behaviour has a prediction to compare")
    return 0


def _text(result: dict) -> str:
    rows, calibration = pd.DataFrame(result["runs"]), pd.DataFrame(result["calibration"])
    best = calibration.sort_values("r2", ascending=False)["feature"].iloc[0]
    columns = "cell observed predicted low high of_truth of_bias scale unseen repeated".split()
    size = result["step_size"]
    lines = [
        f"Step size, one for all behaviours: {size['factor']:.3g} [{size['low']:.3g},"
        f" {size['high']:.3g}] SD per SD of push, over {size['n']} runs",
        calibration.drop(columns="note").round(3).to_string(index=False),
        LEGEND,
        f"\n{best}, run by run (predicted with a scale fitted on the other runs):",
        rows[rows.feature == best][columns].to_string(index=False, float_format="%.3g"),
    ]
    if result["kl_limit"]:
        limits = pd.DataFrame(result["kl_limit"]).query("feature == @best")
        head = f"\n{best}, observed beside what the KL penalty would hold (Cov(A, z) / beta):"
        lines += [head, limits.to_string(index=False, float_format="%.3g")]
    return with_problems(lines, result["problems"])


if __name__ == "__main__":
    sys.exit(main())
