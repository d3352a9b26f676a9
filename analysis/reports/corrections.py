"""Tables of knock-outs and interventions, for the report and for their commands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.arm.interventions import Interventions
from analysis.arm.knockout import Knockout
from analysis.arm.substitution import Substitution
from analysis.records.behaviour import unit
from analysis.reports import markup
from analysis.reports.markup import signed, with_interval
from analysis.statistics.estimate import Estimate


def knockout_table(told: Sequence[Knockout]) -> pd.DataFrame:
    """One row for each behaviour that was taken out of a judge."""
    return pd.DataFrame(
        {"behaviour": f"{row.feature} ({row.unit})", "arm": row.out}
        | {"taken out": _taken(row), "shift": with_interval(row.shift)}
        | {"with it out": with_interval(row.shift_out)}
        | {"without the bias": with_interval(row.shift_absent)}
        | {"lost": with_interval(row.lost), "ledger's of the bias": with_interval(row.of_bias)}
        | {"gone": _percent(row.gone), "gone without the bias": _percent(row.gone_absent)}
        | {"bias in the push": _percent(row.pushed), "at an end": _percent(Estimate(row.cut))}
        for row in told
    )


def bought_table(told: Interventions) -> pd.DataFrame:
    """What each arm bought, the plain one first."""
    return pd.DataFrame(
        {"arm": row.arm, "setting": row.settings or "none", "runs": row.runs}
        | {f"bias left on {told.feature}": with_interval(row.residual)}
        | {"in truth": with_interval(row.worth)}
        | {f"{told.feature} ({unit(told.feature)})": signed(row.behaviour)}
        | {"truth": signed(row.truth), "grew instead": _grew(row.grew)}
        | {"verdicts": round(row.calls), "rule labels": round(row.labels)}
        | {"steps": markup.number(row.steps), "calibrated - truth": with_interval(row.calibrated)}
        for row in told.arms
    )


def _taken(row: Knockout) -> str:
    error = f" (se {markup.number(row.error)})" if row.error else ""
    return f"{markup.number(row.b)}{error} for {markup.number(row.sd)} {row.unit}, {row.source}"


def _percent(estimate: Estimate) -> str:
    if not np.isfinite(estimate.value):
        return markup.MISSING
    ends = f" [{estimate.low:.0%}, {estimate.high:.0%}]" if np.isfinite(estimate.low) else ""
    return f"{estimate.value:.0%}{ends}"


def _grew(swaps: Sequence[Substitution]) -> str:
    risen: dict[str, float] = {}
    for swap in swaps:
        risen[swap.risen] = max(swap.up, risen.get(swap.risen, 0.0))
    return ", ".join(f"{name} +{up:.2f} SD" for name, up in risen.items()) or "nothing seen"
