"""Does a judge score its own family's answers higher than their quality earns?

A raw preference for one's own proves nothing: own answers may be better. So the score is regressed,
within items, on authorship *and* on a quality that the judge had no part in (human scores, gold, or
rule truth), and the raw effect stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis.external import tables
from analysis.statistics.estimate import NAN, Estimate, around
from analysis.statistics.fixed_effects import fixed_effects
from analysis.statistics.intervals import student

_NAMES = ("item", "judge", "judge_family", "author", "author_family")
COLUMNS = {
    **dict.fromkeys(_NAMES, tables.texts),
    **dict.fromkeys(("score", "quality"), tables.numbers),
}
MEANING = (
    f"A table of judged answers has the columns {', '.join(COLUMNS)}: one row per answer and judge,"
    " score by the judge, quality by another rater; a blank score is missing."
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
    """Slopes within items, their cluster-robust standard errors, and the items of two rows or more.
    Raises ValueError: fewer than three items, or columns without variation of their own within
    items."""
    fit = fixed_effects(y, x_N_K, items)
    if fit.groups < 3:
        raise ValueError(f"{fit.groups} items with two answers or more are too few")
    if len(fit.kept) < x_N_K.shape[1]:
        raise ValueError("authorship and quality do not vary separately within items")
    return fit.coef_K, fit.se_K, fit.groups


def preferences(frame: pd.DataFrame, offset: bool = False) -> list[Preference]:
    """Self and family preference of every judge in a table.

    Args:
        frame: columns as in `COLUMNS`; score and quality are numbers, NaN where missing. An author
            or family that is unknown is empty, and nobody's own.
        offset: take score - quality in place of a slope on quality. For a quality that other judges
            scored: their noise flattens a slope, and would pass for preference.
    """
    rows = []
    for judge, judged in frame.groupby("judge", sort=True):
        for kind, author, reader in (
            ("self", "author", "judge"),
            ("family", "author_family", "judge_family"),
        ):
            is_own = (judged[author] == judged[reader]) & (judged[author] != "")
            rows.append(_preference(str(judge), kind, judged, is_own.to_numpy(float), offset))
    return rows


def _preference(
    judge: str, kind: str, frame: pd.DataFrame, is_own: np.ndarray, offset: bool
) -> Preference:
    score, quality = (frame[key].to_numpy(dtype=float) for key in ("score", "quality"))
    complete = np.isfinite(score) & np.isfinite(quality)
    items = frame["item"].to_numpy()[complete]
    score, quality, is_own = score[complete], quality[complete], is_own[complete]
    counts: dict[str, Any] = {
        "rows": len(score),
        "own_rows": int(is_own.sum()),
        "missing": int((~complete).sum()),
    }
    try:
        if offset:
            (slope,), (error,), groups = within(score - quality, is_own[:, None], items)
            quality_slope = 1.0
        else:
            (slope, quality_slope), (error, _), groups = within(
                score, np.stack([is_own, quality], axis=1), items
            )
        (raw,), (raw_error,), _ = within(score, is_own[:, None], items)
    except ValueError as refused:
        note = str(refused) if is_own.any() else "no answer is its own"
        none = Estimate(NAN, unit="item", note=note)
        return Preference(judge, kind, none, NAN, NAN, none, NAN, items=0, note=note, **counts)
    t = student(groups - 1)
    effect, raw_effect = (
        around(mean, t * se, groups, "item") for mean, se in ((slope, error), (raw, raw_error))
    )
    p = float(2 * stats.t.sf(abs(slope) / error, groups - 1)) if error > 0 else NAN
    spread = float(score.std(ddof=1))
    in_sds = float(slope) / spread if spread > 0 else NAN
    return Preference(
        judge, kind, effect, p, in_sds, raw_effect, float(quality_slope), items=groups, **counts
    )


def read(path: Path) -> pd.DataFrame:
    """The table in a file, checked. Raises UserError: a column is missing, a cell is blank that may
    not be, or a number is none."""
    return tables.checked(tables.read_table(path), COLUMNS, MEANING)


def render(rows: Sequence[Preference]) -> str:
    """One line per judge and kind of own."""
    lines = []
    for row in rows:
        effect, raw = row.effect, row.raw
        line = row.note or (
            f"{effect.value:+.4f} [{effect.low:+.4f}, {effect.high:+.4f}] at equal quality,"
            f" {raw.value:+.4f} without; {row.items} items, {row.own_rows} own"
        )
        lines.append(f"{row.judge:<24}{row.kind:<8}{line}")
    return "\n".join(lines)
