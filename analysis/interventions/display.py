"""Tables and figures of knock-outs and interventions, for the report and for their commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from analysis.display import markup
from analysis.display.figures import plane
from analysis.display.markup import (
    TEXTS,
    paragraph,
    picture,
    score,
    sheet,
    signed,
    title,
    with_interval,
)
from analysis.display.printed import turned, with_problems
from analysis.drift.substitution import Substitution
from analysis.interventions.estimate import Interventions
from study.features import unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def bought_table(interventions: Interventions) -> pd.DataFrame:
    """What each arm bought, the plain one first."""
    return pd.DataFrame(
        {"arm": row.arm, "setting": row.settings or "none", "runs": row.runs}
        | {f"bias left on {interventions.feature}": with_interval(row.residual)}
        | {"in truth": with_interval(row.worth)}
        | {f"{interventions.feature} ({unit(interventions.feature)})": signed(row.behaviour)}
        | {"truth": score(row.truth), "grew instead": _grew(row.grew)}
        | {"verdicts": round(row.calls), "rule labels": round(row.labels)}
        | {"steps": markup.number(row.steps), "calibrated - truth": with_interval(row.calibrated)}
        for row in interventions.arms
    )


def bought(interventions: Interventions) -> Figure | None:
    """What did each intervention buy? Its arm beyond the plain one, which is where the lines cross:
    the behaviour that the judge pays for across, the truth upwards. None where no arm has both."""
    return plane(
        [
            (row.arm, row.arm, row.behaviour, row.truth)
            for row in interventions.arms
            if row.settings
        ],
        xlabel=f"{interventions.feature} beyond {interventions.plain}"
        f" ({unit(interventions.feature)})",
        ylabel=f"truth beyond {interventions.plain}",
    )


def _grew(swaps: Sequence[Substitution]) -> str:
    risen: dict[str, float] = {}
    for swap in swaps:
        risen[swap.risen] = max(swap.up, risen.get(swap.risen, 0.0))
    return ", ".join(f"{name} +{up:.2f} SD" for name, up in risen.items()) or "nothing seen"


def interventions_text(interventions: Interventions, problems: list[str]) -> str:
    """A column for each arm."""
    legend = TEXTS["paragraphs"]["interventions"].strip()
    shifts = f"Shifts are {interventions.where}."
    return with_problems([turned(bought_table(interventions)), "", shifts, legend], problems)


def section(interventions: Interventions) -> list[str]:
    """What each intervention bought, for the report."""
    return [
        title("interventions"),
        picture("bought", bought, interventions, plain=interventions.plain),
        sheet("interventions", bought_table(interventions), where=interventions.where),
        paragraph(TEXTS["paragraphs"]["interventions"]),
    ]
