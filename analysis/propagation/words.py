"""What `analysis.propagation` prints."""

from __future__ import annotations

import pandas as pd

from analysis.display.printed import with_problems
from analysis.propagation.estimate import Propagation
from analysis.statistics.estimate import columns

LEGEND = (
    "r2, slope, inside: scale fitted on all other runs; _unseen: on the runs of other arms only,\n"
    "as for a judge that nobody trained on; r2_repeated: no theory, mean of the arm's other runs.\n"
    "Placebos: r2_permuted, of advantages permuted within groups; r2_variance, of the push's sign\n"
    "times the behaviour's variance; r2_constant, of that sign times a constant."
)


def text(result: Propagation) -> str:
    """Calibration of every behaviour, then the runs of the one that is predicted best."""
    rows = pd.DataFrame([columns(row, observed=None, predicted="") for row in result.runs])
    calibration = pd.DataFrame([line.row() for line in result.calibration])
    best = calibration.sort_values("r2", ascending=False)["feature"].iloc[0]
    shown = "cell observed predicted low high of_truth of_bias scale unseen repeated".split()
    size = result.step_size
    lines = [
        f"Step size, one for all behaviours: {size.value:.3g} [{size.low:.3g},"
        f" {size.high:.3g}] SD per SD of push, over {size.n} runs",
        calibration.drop(columns="note").round(3).to_string(index=False),
        LEGEND,
        f"\n{best}, run by run (predicted with a scale fitted on the other runs):",
        rows[rows.feature == best][shown].to_string(index=False, float_format="%.3g"),
    ]
    if result.kl_limit:
        limits = pd.DataFrame(result.kl_limit).query("feature == @best")
        head = f"\n{best}, observed next to the limit of the KL penalty (Cov(A, z) / beta):"
        lines += [head, limits.to_string(index=False, float_format="%.3g")]
    return with_problems(lines, result.problems)
