"""Table and figure of knock-outs, for the report and for `analysis.knockout`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.display import figures, markup
from analysis.display.figures import curve, looks, marks_of, style
from analysis.display.markup import (
    TEXTS,
    paragraph,
    picture,
    sentences,
    sheet,
    title,
    with_interval,
)
from analysis.display.printed import turned, with_problems
from analysis.knockout.estimate import Knockout, sentence
from analysis.statistics.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def knockout_table(knockouts: Sequence[Knockout]) -> pd.DataFrame:
    """One row for each behaviour that was taken out of a judge."""
    return pd.DataFrame(
        {"behaviour": f"{row.feature} ({row.unit})", "arm": row.out}
        | {"taken out": _taken(row), "shift": with_interval(row.shift)}
        | {"with it out": with_interval(row.shift_out)}
        | {"without the bias": with_interval(row.shift_absent)}
        | {
            "shift removed": with_interval(row.lost),
            "ledger's of the bias": with_interval(row.of_bias),
        }
        | {
            "share removed": _percent(row.gone),
            "share removed without the bias": _percent(row.gone_absent),
        }
        | {"bias in the push": _percent(row.pushed), "at an end": _percent(Estimate(row.cut))}
        for row in knockouts
    )


@style()
def kept(knockouts: Sequence[Knockout]) -> Figure | None:
    """How much of each shift stays once its cause is taken out? A panel for each behaviour, a row
    for each arm; the diamond is what the ledger's account leaves of the shift. None where no shift
    is known."""
    if not any(np.isfinite(row.shift.value) for row in knockouts):
        return None
    look = looks(
        dict.fromkeys(arm for row in knockouts for arm in (row.biased, row.out, row.absent))
    )
    names, high = figures.row_names(look)
    labels = dict(zip(look, names, strict=True))
    drawn, panels = figures.grid(len(knockouts), height=1.3 + 0.9 * high)
    for row, axes in zip(knockouts, panels, strict=True):
        shifts = {row.biased: row.shift, row.out: row.shift_out, row.absent: row.shift_absent}
        arms = [arm for arm in shifts if arm]
        for place, arm in enumerate(arms):
            shift, marks = shifts[arm], marks_of(look[arm])
            ends = [shift.value], [shift.low], [shift.high]
            curve(axes, [place], *ends, across=True, caps=3, linestyle="", **marks)
        axes.plot(row.shift.value - row.of_bias.value, 1, "d", mfc="white", mec="0.25", zorder=4)
        axes.axvline(0, color="0.3", linewidth=1)
        axes.set_yticks(range(len(arms)), [labels[arm] for arm in arms])
        axes.set_ylim(len(arms) - 0.5, -0.5)
        axes.set_xlabel(f"shift in {row.feature} ({row.unit})")
    return drawn


def _taken(row: Knockout) -> str:
    error = f" (se {markup.number(row.error)})" if row.error else ""
    return f"{markup.number(row.b)}{error} for {markup.number(row.sd)} {row.unit}, {row.source}"


def _percent(estimate: Estimate) -> str:
    if not np.isfinite(estimate.value):
        return markup.MISSING
    ends = f" [{estimate.low:.0%}, {estimate.high:.0%}]" if np.isfinite(estimate.low) else ""
    return f"{estimate.value:.0%}{ends}"


def knockout_text(knockouts: Sequence[Knockout], problems: list[str]) -> str:
    """A column for each behaviour that was taken out, and what that says."""
    shifts = f"Shifts are {knockouts[0].where}."
    lines = [turned(knockout_table(knockouts)), "", shifts, *map(sentence, knockouts)]
    return with_problems([*lines, "", TEXTS["paragraphs"]["knockout"].strip()], problems)


def section(knockouts: Sequence[Knockout]) -> list[str]:
    """Whether a shift goes away with its cause, for the report."""
    return [
        title("knockout"),
        picture("kept", kept, knockouts),
        sheet("knockout", knockout_table(knockouts), where=knockouts[0].where),
        sentences(map(sentence, knockouts)),
        paragraph(TEXTS["paragraphs"]["knockout"]),
    ]
