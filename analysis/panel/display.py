"""Table, figure and sentences of what a panel is worth, for the report and for its command."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING

import pandas as pd

from analysis.crossjudge.estimate import heat_map
from analysis.display.markup import (
    TEXTS,
    listed,
    number,
    paragraph,
    picture,
    sentences,
    sheet,
    signed,
    title,
    with_interval,
)
from analysis.display.printed import as_text, with_problems
from analysis.panel.estimate import ALONE, HOWS, WEIGHTED, Panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def panels_table(panels: Sequence[Panel]) -> pd.DataFrame:
    """A row for each panel of each arm, the acting judge alone first."""
    return pd.DataFrame(
        {"arm": panel.arm, "judges": " + ".join(panel.judges), "as one": panel.how}
        | {"votes": with_interval(panel.votes), "with truth": with_interval(panel.with_truth)}
        | {"bias share": with_interval(panel.bias_share)}
        | {"fall": "" if panel.how == ALONE else signed(panel.fall)}
        | {"in an arm so trained": with_interval(panel.observed), "runs": panel.runs}
        for panel in panels
    )


def advice(panels: Sequence[Panel]) -> list[str]:
    """For each arm which panel that can train has the least bias share, how to train by it, and
    which judge it could do without."""
    lines = []
    for arm in dict.fromkeys(panel.arm for panel in panels):
        alone, *others = [panel for panel in panels if panel.arm == arm]
        known = [panel for panel in others if panel.how != WEIGHTED and not isnan(panel.fall.value)]
        if not known:
            continue
        best = max(known, key=lambda panel: panel.fall.value)
        doubt = "" if best.fall.low > 0 else ", which is not told from none"
        lines.append(
            f"{arm}: the bias share of {alone.judges[0]} alone is {number(alone.bias_share.value)}."
            f" Of {len(known)} panels that can train the {best.how} of {listed(best.judges)} has"
            f" the least, {number(best.bias_share.value)}: a fall of {signed(best.fall)}{doubt}."
            f" Type correction.panel={best.how} shadow=[{','.join(best.judges[1:])}]."
        )
        smaller = [
            panel
            for panel in known
            if panel.how == best.how and set(panel.judges) < set(best.judges)
        ]
        if smaller:
            nearest = max(smaller, key=lambda panel: panel.fall.value)
            spared = listed(judge for judge in best.judges if judge not in nearest.judges)
            lines[-1] += (
                f" Without {spared} it would be {number(nearest.bias_share.value)}"
                f" of {listed(nearest.judges)}."
            )
    return lines


def bias_shares(panels: Sequence[Panel]) -> Figure:
    """Heat map of the bias share that panels leave in the first arm: judges by `HOWS`."""
    arm = panels[0].arm
    alone, *others = [panel for panel in panels if panel.arm == arm]
    rows = {" + ".join(panel.judges): {} for panel in others}
    first = {alone.judges[0]: dict.fromkeys(HOWS, alone.bias_share.value)}
    for panel in others:
        rows[" + ".join(panel.judges)][panel.how] = panel.bias_share.value
    table = pd.DataFrame.from_dict(first | rows, orient="index", columns=list(HOWS))
    table["median"] = table["median"].fillna(table["mean"])  # that of two
    return heat_map(table, ("as one", arm, "bias share"), float(table.abs().max().max()))


def panels_text(panels: Sequence[Panel], problems: list[str]) -> str:
    """The sentences and the table."""
    legend = TEXTS["paragraphs"]["panels"].strip()
    lines = []
    for arm, table in panels_table(panels).groupby("arm", sort=False):
        lines += [f"\n{arm}:", as_text(table.drop(columns=["arm"]))]
    return with_problems([*advice(panels), *lines, "", legend], problems)


def section(panels: Sequence[Panel]) -> list[str]:
    """What a panel is worth, for the report."""
    return [
        title("panels"),
        sentences(advice(panels)),
        picture("panels", bias_shares, panels, arm=panels[0].arm),
        sheet("panels", panels_table(panels)),
        paragraph(TEXTS["paragraphs"]["panels"]),
    ]
