"""The table of onsets: when each run's gap began to rise."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from analysis.display import markup
from analysis.display.markup import DECIMALS
from analysis.run.onset import Line
from analysis.run.threshold_grid import span


def onset_table(lines: Iterable[Line]) -> pd.DataFrame:
    """When each run's gap began to rise, one row per run."""
    rows = []
    for line in lines:
        onset, step = line.onset, line.onset.step
        begun = f"{step.value:.0f} {markup.bracket(step.low, step.high)}"
        if not math.isfinite(step.value):  # where there is a p, a rise was looked for
            begun = "none seen" if onset.p == onset.p else markup.MISSING
        rows.append(
            {
                "arm": line.arm,
                "seed": line.seed,
                "gap, first": round(line.gap_first, DECIMALS),
                "gap, last": round(line.gap_last, DECIMALS),
                "rise explained": line.explained,
                "onset (step)": begun,
                "p": markup.p_value(onset.p),
                "early stop (step)": "" if line.alarm is None else str(line.alarm),
                "threshold grid (step)": span(line.grid),
                "grid, top tenth": span(line.own_grid),
                "note": "; ".join(filter(None, [onset.note, line.grid.note])),
            }
        )
    return pd.DataFrame(rows)
