"""Tables of over-optimisation: the best of n answers, and where the truth peaks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from analysis.display import markup
from analysis.run.best_of_n import BestOfN
from analysis.run.overopt import place


def best_of_n_table(lines: Sequence[BestOfN]) -> pd.DataFrame:
    """The truth of the best of 1, 2, 4, ... and of all answers, by judge."""
    most = {(line.arm, line.judge): line.n for line in lines}
    rows = [
        {
            "arm": line.arm,
            "chosen by": line.judge,
            "n": line.n,
            "KL (nats)": line.kl,
            "truth [95 %]": markup.with_interval(line.truth),
            "truth gained [95 %]": markup.signed(line.gain),
            "its score [95 %]": markup.with_interval(line.score),
            "prompts": line.truth.n,
        }
        for line in lines
        if line.n & (line.n - 1) == 0 or line.n == most[line.arm, line.judge]
    ]
    return pd.DataFrame(rows)


def peaks_table(fits: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """The best over-optimisation fit of each run: where the truth peaks."""
    rows = [
        {
            "arm": fit["arm"],
            "seed": fit["seed"],
            "form": fit["best"]["form"],
            "peak (sqrt KL)": place(fit["best"]["peak"]),
            "low": place(fit["low"]),
            "high": place(fit["high"]),
            "largest sqrt KL": fit["d_max"],
            "note": fit["note"],
        }
        for fit in fits
    ]
    return pd.DataFrame(rows)
