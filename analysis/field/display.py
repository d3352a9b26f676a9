"""The tables that papers of the field report: for the report and for `analysis.field`."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.display import markup
from analysis.display.figures import curve, looks, outside_legend, plain, single, style
from analysis.display.markup import (
    TEXTS,
    folded,
    paragraph,
    picture,
    render_text,
    score,
    sheet,
    signed,
    title,
    with_interval,
)
from analysis.display.printed import NO_RUN, WIDTH, as_text
from analysis.field.estimate import THRESHOLDS, Aggregate, Field
from analysis.field.shortcut import OnsetTime
from analysis.statistics.estimate import NO_ESTIMATE, Estimate
from study.screen import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def meaning(name: str, field: Field) -> str:
    """What a table of `tables` says, and of what unit its intervals are."""
    return render_text(
        "field_meanings",
        name,
        base=field.base,
        metrics=", ".join(field.metrics),
        where=field.where,
    )


def tables(field: Field) -> dict[str, pd.DataFrame]:
    """Name -> the table with its numbers written out; those without a row are left out."""
    rows_by_table = {
        "aggregates": [_aggregate(row, field.base) for row in field.aggregates],
        "compared": [
            {
                "arm": row.arm,
                "truth - base, by prompt": signed(row.by_prompt),
                "prompts": row.by_prompt.n,
                "SE": markup.number(row.by_prompt.se),
                "SE unpaired": markup.number(row.by_prompt.unpaired_se),
                "visible": markup.number(row.by_prompt.visible),
                "effect over runs": score(row.by_run),
                "seeds": row.by_run.n,
                "visible over runs": markup.number(row.visible),
            }
            for row in field.compared
        ],
        "found": [
            {
                "arm": row.arm,
                "shortcut": "+".join(row.features) or "?",
                "with onset": f"{row.onset.seen} of {row.onset.runs}",
                "median onset": _median(row.onset),
                f"mean steps before, up to {row.onset.horizon:g}": with_interval(
                    row.onset.restricted
                ),
                "by CHERRL": _median(row.grid),
                "odds ratio": with_interval(row.entanglement),
                "judge per step": signed(row.judge_growth),
                "shortcut per step": signed(row.shortcut_growth),
            }
            for row in field.found
        ],
        "exploited": [
            {
                "arm": row.arm,
                "references": ", ".join(row.references) or "none",
                "newly credited": with_interval(row.new),
                "of it rejected by all": with_interval(row.rate),
                "first known": with_interval(
                    next((rate for rate in row.curve if not np.isnan(rate.value)), NO_ESTIMATE)
                ),
                "panel missing": markup.number(row.unknown.value),
                "rate if missing reject none, all": markup.bracket(*row.bounds),
            }
            for row in field.exploited
        ],
        "preferred": [
            {
                "arm": row.arm,
                "judge": row.judge + " (trained)" * row.trained,
                "sees the rubric": "yes" if row.shown else "no",
                "prefers the end": with_interval(row.preference),
                "with rubric - without": signed(row.left_out),
            }
            for row in field.preferred
        ],
        "gaps": [
            {
                "arm": row.arm,
                "first tenth": signed(row.start),
                "last tenth": signed(row.end),
                "largest at step": with_interval(row.peak),
                "correlation with truth": signed(row.tracks),
            }
            for row in field.gaps
        ],
    }
    return {name: pd.DataFrame(rows) for name, rows in rows_by_table.items() if rows}


def _aggregate(row: Aggregate, base: str | None) -> dict[str, object]:
    better = {} if base is None else {f"P(above {base})": with_interval(row.improvement)}
    return {
        "arm": row.arm,
        "runs": row.runs,
        "IQM": with_interval(_of_scores(row.iqm)),
        "rliable's interval": markup.bracket(row.by_metric.low, row.by_metric.high),
        **better,
    }


def _of_scores(each: Estimate) -> Estimate:
    """A mean of scores with its interval cut at the ends of their scale."""
    low, high = min(0.0, each.value), max(1.0, each.value)
    return replace(
        each, low=float(np.clip(each.low, low, high)), high=float(np.clip(each.high, low, high))
    )


def _median(onset: OnsetTime) -> str:
    """The median with its interval, which may have no upper end; where it is not reached, the step
    up to which runs have been followed."""
    median = onset.median
    if np.isnan(median.value):
        return f"not by {onset.followed:g}" if onset.runs else markup.MISSING
    return with_interval(median)


@style()
def profiles(field: Field) -> Figure:
    """Share of final scores above each threshold, a line with its band for each arm."""
    figure, axes = single(6, 4)
    styles = looks([row.arm for row in field.aggregates])
    for row in field.aggregates:
        look = {key: styles[row.arm][key] for key in ("color", "linestyle")}
        shares = [each.value for each in row.profile]
        ends = np.array([(each.low, each.high) for each in row.profile]).T
        curve(axes, THRESHOLDS, shares, *ends, band=True, label=plain(row.arm), **look)
    axes.set(xlabel="truth score", ylabel="share of scores above it", ylim=(-0.02, 1.02))
    outside_legend(figure, [axes])
    return figure


def lines(field: Field) -> list[str]:
    """Every table that has rows, and what it says under it."""
    text: list[str] = []
    for name, table in tables(field).items():
        text_below = fill(visible(meaning(name, field)), WIDTH)
        text += ["", TEXTS["field"][name], as_text(table), text_below]
    return text or [NO_RUN]


def section(field: Field) -> list[str]:
    """What other studies of the field report, for the report."""
    frames = tables(field)
    if not frames:
        return [title("field"), paragraph(TEXTS["empty"]["field"])]
    drawn = len(field.metrics) > 1 and "aggregates" in frames
    first, *others = (
        [sheet(f"field-{name}", table), paragraph(meaning(name, field))]
        for name, table in frames.items()
    )
    rest = folded(TEXTS["folded"]["field"], chain(*others)) if others else []
    return [
        title("field"),
        *([picture("profiles", profiles, field)] if drawn else []),
        *first,
        *rest,
    ]
