"""Tables of the ledger: metrics by arm, and how well advantages give each behaviour."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.display import markup
from analysis.display.markup import DECIMALS, TEXTS
from study.screen import plural


def ledger_table(table: pd.DataFrame, labels: str = "ledger") -> pd.DataFrame:
    """Metrics of ``texts.yaml`` by arm, intervals over runs; those that no arm has are left out."""
    runs = table.groupby("arm", sort=False)["n"].max().astype(int)
    rows = []
    head = TEXTS["heads"][labels]
    for metric, label in TEXTS[labels].items():
        by_arm = table[table["metric"] == metric].set_index("arm").reindex(runs.index)
        if by_arm["mean"].notna().any():
            line = {head: label}
            for arm, row in by_arm.iterrows():
                name = f"{arm} ({plural(runs[arm], 'run')})"
                ends = np.round(row[["mean", "low", "high"]].astype(float), DECIMALS)
                line[name] = markup.estimate(*ends, sign=labels != "ledger")
            rows.append(line)
    return pd.DataFrame(rows)


def calibration_table(table: pd.DataFrame) -> pd.DataFrame:
    """How well the advantages give each behaviour, the slope with its interval; what no behaviour
    has is left out."""
    slopes = [markup.estimate(*ends, sign=False) for ends in zip(
        table["slope"], table["low"], table["high"], strict=True)]  # fmt: skip
    shown = table.drop(columns=["low", "high"]).assign(slope=slopes)
    return shown.dropna(axis="columns", how="all").rename(columns=TEXTS["calibration"])
