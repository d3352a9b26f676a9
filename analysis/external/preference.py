"""Does a judge score its own family's answers higher than their quality earns?

    python -m analysis.preference FILE out=JSON

A raw preference for one's own proves nothing: own answers may be better. So the score is regressed,
within items, on authorship *and* on a quality that the judge had no part in (human scores, gold, or
rule truth), and the raw effect stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from analysis.external import tables
from analysis.statistics.estimate import Estimate
from analysis.statistics.fixed_effects import fixed_effects

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

COLUMNS = ("item", "judge", "judge_family", "author", "author_family", "score", "quality")
MEANING = (
    f"A table of judged answers has the columns {', '.join(COLUMNS)}: one row per answer and judge,"
    " score by the judge, quality by somebody else; a blank score is missing."
)


@dataclass(frozen=True)
class Preference:
    """One judge and one kind of own: ``self`` (its very own answers) or ``family``.

    ``effect`` is score units for being own at equal quality, within items, with a t interval over
    items (cluster-robust); ``raw`` is the same without quality. ``in_sds`` is in SDs of the score.
    """

    judge: str
    kind: str
    effect: Estimate
    p: float
    in_sds: float
    raw: Estimate
    quality_slope: float
    rows: int
    items: int
    own_rows: int
    missing: int
    note: str = ""


def within(
    y: np.ndarray, x_N_K: np.ndarray, items: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
    """Slopes within items, their cluster-robust standard errors, and the number of items.

    Items with one row say nothing and are left out; see `analysis.statistics.fixed_effects` for
    the correction.

    Raises:
        ValueError: fewer than three items, or columns without variation of their own within items.
    """
    found = fixed_effects(y, x_N_K, items)
    if found.groups < 3:
        raise ValueError(f"{found.groups} items with two answers or more are too few")
    if len(found.kept) < x_N_K.shape[1]:
        raise ValueError("authorship and quality do not vary apart from each other within items")
    return found.coef_K, found.se_K, found.groups


def preferences(frame: pd.DataFrame) -> list[Preference]:
    """Self and family preference of every judge in a table.

    Args:
        frame: columns as in `COLUMNS`; score and quality are numbers, NaN where missing.
    """
    rows = []
    for judge, own in frame.groupby("judge", sort=True):
        for kind, mark in (
            ("self", own["author"] == own["judge"]),
            ("family", own["author_family"] == own["judge_family"]),
        ):
            rows.append(_one(str(judge), kind, own, mark.to_numpy(dtype=float)))
    return rows


def _one(judge: str, kind: str, frame: pd.DataFrame, own: np.ndarray) -> Preference:
    score, quality = (frame[key].to_numpy(dtype=float) for key in ("score", "quality"))
    known = np.isfinite(score) & np.isfinite(quality)
    items = frame["item"].to_numpy()[known]
    score, quality, own = score[known], quality[known], own[known]
    nan, missing = float("nan"), int((~known).sum())
    try:
        slopes, errors, groups = within(score, np.stack([own, quality], axis=1), items)
        raw, raw_errors, _ = within(score, own[:, None], items)
    except ValueError as error:
        few = "no answer is its own" if not own.any() else str(error)
        none = Estimate(nan, unit="item", note=few)
        return Preference(
            *(judge, kind, none, nan, nan, none, nan, len(score), 0, int(own.sum()), missing, few)
        )
    t = float(stats.t.ppf(0.975, groups - 1))
    effect, error = float(slopes[0]), float(errors[0])

    def around(slope: float, half: float) -> Estimate:
        return Estimate(slope, slope - half, slope + half, groups, "item")

    p = float(2 * stats.t.sf(abs(effect) / error, groups - 1)) if error > 0 else nan
    spread = float(score.std(ddof=1))
    return Preference(
        judge,
        kind,
        around(effect, t * error),
        p,
        effect / spread if spread > 0 else nan,
        around(float(raw[0]), t * float(raw_errors[0])),
        float(slopes[1]),
        len(score),
        groups,
        int(own.sum()),
        missing,
    )


def read(path: Path) -> pd.DataFrame:
    """The table in a file, checked.

    Raises:
        UserError: a column is missing, a cell is blank that may not be, or a number is none.
    """
    raw = tables.read_table(path)
    tables.require(raw, COLUMNS, MEANING)
    words = {name: tables.texts(raw, name) for name in COLUMNS[:5]}
    return pd.DataFrame(words | {name: tables.numbers(raw, name) for name in COLUMNS[5:]})


def render(found: Sequence[Preference]) -> str:
    """One line per judge and kind of own."""
    return "\n".join(
        f"{one.judge:<24}{one.kind:<8}"
        + (
            one.note
            if one.note
            else f"{one.effect.value:+.4f} [{one.effect.low:+.4f}, {one.effect.high:+.4f}]"
            " at equal quality,"
            f" {one.raw.value:+.4f} without; {one.items} items, {one.own_rows} own"
        )
        for one in found
    )
