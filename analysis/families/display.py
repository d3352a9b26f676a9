"""Tables and figure of a study's judges by family, size and prompt, for the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis.display.figures import plane
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
)
from analysis.families.estimate import Families, Natural

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def judges_table(families: Families) -> pd.DataFrame:
    """A row for each judge: how its score and the truth moved, and how far behaviour followed."""
    return pd.DataFrame(
        _key(judge)
        | {"runs": judge.runs}
        | {"shift of its score": score(judge.score), "shift of the truth": score(judge.truth)}
        | {"behaviour follows bias (rank correlation)": signed(judge.followed)}
        for judge in families.judges
    )


def behaviours_table(families: Families) -> pd.DataFrame:
    """A row for each judge and behaviour: measured bias beside the shift of its runs."""
    rows = pd.DataFrame(
        _key(judge)
        | {"behaviour": each.name, "bias, score per SD [95 %]": signed(each.bias)}
        | {"bias by probe": "" if each.probed is None else signed(each.probed)}
        | {"shift in SDs [95 %]": signed(each.shift)}
        for judge in families.judges
        for each in judge.behaviours
    )
    probed = len(rows) and rows["bias by probe"].any()
    return rows if probed else rows.drop(columns="bias by probe", errors="ignore")


def slopes_table(families: Families) -> pd.DataFrame:
    """A row for each behaviour: what a unit of bias did, over judges; none where none is told."""
    return pd.DataFrame(
        {"behaviour": name, "SDs of shift per score of bias [95 %]": signed(slope)}
        | {"judges": slope.n}
        for name, slope in families.slopes.items()
        if slope.value == slope.value
    )


def followed(families: Families) -> Figure | None:
    """Did behaviour go where the judge's bias points? A mark for each judge and behaviour; None
    where no behaviour has both."""
    return plane(
        [
            (judge.arm, ", ".join(_key(judge).values()), each.bias, each.shift)
            for judge in families.judges
            for each in judge.behaviours
        ],
        xlabel=f"bias, {families.measured} (score per SD of a behaviour)",
        ylabel="shift of the behaviour (SDs)",
    )


def _key(judge: Natural) -> dict[str, str]:
    return {"family": judge.family, "size": judge.size, "prompt": judge.prompt}


def section(families: Families) -> list[str]:
    """What each natural judge paid for and where its runs went, for the report."""
    slopes = slopes_table(families)
    fragments = [sheet("families-behaviours", behaviours_table(families))]
    fragments += [sheet("families-slopes", slopes)] if len(slopes) else []
    return [
        title("families"),
        picture("followed", followed, families),
        sheet("families-judges", judges_table(families)),
        *folded(TEXTS["folded"]["families"], fragments),
        paragraph(
            render_text("paragraphs", "families", measured=families.measured, where=families.where)
        ),
    ]
