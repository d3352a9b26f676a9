"""What `analysis.frozen` prints: shifts on held-out rows by arm."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.display.markup import estimate, number, p_value
from analysis.display.printed import NO_RUN, aligned
from analysis.frozen.estimate import has_frozen
from analysis.records.runs import Run

NONE = (
    "No run of this study has frozen evaluation. Train with trainer.eval_steps=40 "
    "trainer.eval_samples=3, for example."
)


def frozen_text(runs: Sequence[Run], table: pd.DataFrame, base: str | None) -> list[str]:
    """A line per arm and metric, then what the columns are."""
    if not runs:
        return [NO_RUN]
    evaluated = [run for run in runs if has_frozen(run)]
    if not evaluated:
        return [NONE]
    rows = [
        {
            "arm": row["arm"],
            "metric": row["metric"],
            "first": number(row["first"]),
            "last": number(row["last"]),
            "shift [95 %]": estimate(row["shift"], row["low"], row["high"]),
            f"vs {base}": estimate(row["diff"], row["diff_low"], row["diff_high"]),
            "p (Holm)": p_value(row["p_holm"]),
            "greedy": number(row["greedy"], sign=True),
            "training": number(row["training"], sign=True),
            "held-out - training": estimate(row["apart"], row["apart_low"], row["apart_high"]),
            "runs": number(row["n"]),
        }
        for row in table.to_dict("records")
    ]
    without_frozen = len(runs) - len(evaluated)
    lines = [
        "Unit: a run. Shifts are within prompts: held-out rows answered at step 0 and at the last "
        "evaluation, drawn as in training and by the same random numbers; greedy: their most "
        "probable answers. Training: the rollouts' own shift, first to last tenth of the steps. "
        "Held-out - training is about 0 where what was learned transfers."
    ]
    if without_frozen:
        lines.append(
            f"{without_frozen} of {len(runs)} runs have no frozen evaluation and are left out."
        )
    return [*aligned(rows), "", *lines]
