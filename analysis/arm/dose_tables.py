"""The table of dose and response."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.display import markup
from analysis.records.behaviour import unit


def dose_table(dose: dict[str, Any]) -> pd.DataFrame:
    """One row on a dose-response study: slope with its unit of inference, tests, theory."""
    slope, measured = dose["slope"], unit(dose["feature"])
    amplified = {
        f"observed / first-order slope, beta {theory['beta']:g}": theory["amplification"]
        for theory in dose["theory"]
    }
    row = {
        "behaviour": dose["feature"],
        f"{measured} per unit of dose [95 %]": markup.estimate(
            slope["slope"], slope["low"], slope["high"]
        ),
        "n": slope["n"],
        "unit": slope["unit"],
        "runs": len(dose["runs"]),
        "trend p": markup.p_value(dose["trend_p"]),
        "lack of fit p": markup.p_value(dose["lack_of_fit_p"]),
        **amplified,
        "unscored (share)": dose["unscored"],
        "note": slope["note"],
    }
    return pd.DataFrame([row])
