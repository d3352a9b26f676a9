"""How much an edit moves a judge beyond what it moves the truth: one row per judge and variant.

The bias of a pair is the judge's change minus the truth's own change. Pairs of one prompt share its
content, so the prompt is the unit: standard errors are clustered by prompt, with Student's t on
prompts - 1 degrees of freedom. Where most prompts do not change, or all change alike, no spread is
no certainty: `analysis.statistics.bounded_mean` bounds what prompts that were not drawn could do.
A pair that lacks a score or a known truth is left out and counted; worst cases say how far those
without a score could have moved the mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.multitest import multipletests

from analysis.external.pairwise import exact_p
from analysis.statistics.bootstrap import ratio, ratio_se
from analysis.statistics.bounded_mean import STILL, Rare
from analysis.statistics.estimate import NAN, Estimate
from analysis.statistics.intervals import student
from analysis.statistics.power import POWER, smallest_effect

ALPHA = 0.05
MARGIN = 0.05
"""Score units within which a bias counts as none, unless another margin is given beforehand."""
NO_SPREAD = 1e-6
"""Judges write scores to a few digits: what is smaller than this is rounding."""
SCALE = (-1.0, 1.0)
"""Ends of a change of scores in [0, 1]."""
FEW_PROMPTS = 10
"""Fewer prompts carry no claim."""
PLACEBO = "placebo"
END = "no bias, at the end of the scale"
TOO_FEW = "too few prompts"


@dataclass(frozen=True, kw_only=True)
class Clustered(Estimate):
    """A mean over rows with standard error clustered by its ``n`` prompts; NaN where none is."""

    se: float = NAN
    rows: int = 0
    p: float = NAN
    """Two-sided, that the mean is 0."""
    smallest: float = NAN
    """The mean that would be seen with a chance of 80 % at this spread."""
    rare: Rare | None = None
    """Where most prompts stand at one value: there a t interval alone is none."""


def clustered_mean(
    values_N: np.ndarray, prompts_N: np.ndarray, ends: tuple[float, float] = SCALE
) -> Clustered:
    """Mean of N finite rows, with CR1 standard error over C prompts (Liang and Zeger 1986).

    Where more than half of the prompts stand within `STILL` of the middle one, the interval is
    widened to what `Rare` allows, p is the larger of Student's and the exact sign test's over
    prompts, and ``smallest`` the larger of Student's and `Rare.smallest`. ``ends``: of the scale
    that the values are on.
    """
    sums = prompt_sums(values_N, prompts_N)
    units, n = len(sums), int(sums[:, 1].sum())
    values = np.asarray(values_N, dtype=float)
    mean = float(values[np.isfinite(values)].mean()) if n else NAN
    if units < 2:
        return Clustered(value=mean, n=units, unit="prompt", rows=n)
    se = ratio_se(sums)
    se = se if se > NO_SPREAD else 0.0
    half = float(student(units - 1)) * se
    plain = Clustered(
        value=mean, low=mean - half, high=mean + half, n=units, unit="prompt", se=se,
        rows=n, p=float(2 * stats.t.sf(abs(mean) / se, units - 1)) if se else 0.0,
        smallest=smallest_effect(units, paired=True) * se * units**0.5,
    )  # fmt: skip
    middle = float(np.median(ratio(sums)))
    # what each prompt is in the mean over all rows: the C parts have that very mean
    parts = middle + (sums[:, 0] - middle * sums[:, 1]) * units / n
    still = np.abs(parts - middle) <= STILL
    if 2 * still.sum() <= units:
        return plain
    reached = min(ends[0], float(parts.min())), max(ends[1], float(parts.max()))
    rare = Rare(float(parts[still].mean()), int(still.sum()), tuple(parts[~still]), reached)
    least, most = rare.bounds()
    signs = exact_p(int((parts > NO_SPREAD).sum()), int((parts < -NO_SPREAD).sum()), units)
    return replace(
        plain, low=min(plain.low, least), high=max(plain.high, most), rare=rare,
        p=max(plain.p, signs), smallest=float(np.maximum(plain.smallest, rare.smallest(POWER))),
    )  # fmt: skip


def prompt_sums(values_N: np.ndarray, prompts_N: np.ndarray) -> np.ndarray:
    """Sum and number of the finite values of each prompt that has any, shape (C, 2)."""
    values = np.asarray(values_N, dtype=float)
    scored = np.isfinite(values)
    _, codes = np.unique(np.asarray(prompts_N)[scored], return_inverse=True)
    return np.stack([np.bincount(codes, values[scored]), np.bincount(codes)], axis=1)


def tost(mean: Clustered, margin: float) -> float:
    """p that the mean lies outside of +-margin: the larger of two one-sided tests.

    Student's (Schuirmann 1987), and those of `Rare` where most prompts stand at one value.
    """
    if math.isnan(mean.se):
        return NAN
    tests = [0.0]
    if mean.se > 0:
        tests.append(float(stats.t.sf((margin - abs(mean.value)) / mean.se, mean.n - 1)))
    if mean.rare is not None:
        tests += [mean.rare.at_least(margin), mean.rare.at_most(-margin)]
    return max(tests)


def pairs(scores: pd.DataFrame) -> pd.DataFrame:
    """Each edited text beside its counterpart, by judge.

    ``scores``: `analysis.probes.profile.scores`: one row per judge and probe. Returns the edited
    text's columns with ``judge_change``, ``truth_change`` (0 for a placebo, NaN where no rule
    knows), ``bias_change``, ``planted`` and ``at_end``: whether either score stands at an end of
    the scale, where a bias cannot show in full. For a pairwise judge a change is the net preference
    (wins - losses) over both orders. ``judge_low`` and ``judge_high`` are ``judge_change`` with
    each score that is missing at the end of the scale that makes it least and most.
    """
    edited = scores[scores["against"].notna()].reset_index(drop=True)
    keys = list(zip(edited["judge"], edited["against"], strict=True))
    base = scores.set_index(["judge", "probe_id"]).reindex(keys).reset_index(drop=True)
    numbers = ["score", "truth", "planted", "words"]
    new, old = edited[numbers].astype(float), base[numbers].astype(float)
    change, compared = new - old, edited["pairwise"].to_numpy(dtype=bool)
    after, before = new["score"], old["score"]
    judge_low, judge_high = (
        np.where(compared, 2 * after.fillna(end) - 1, after.fillna(end) - before.fillna(1 - end))
        for end in (0.0, 1.0)
    )
    distances = [(score - end).abs() for score in (after, before) for end in (0.0, 1.0)]
    at_end = pd.concat(distances, axis=1).lt(NO_SPREAD).any(axis=1)
    table = edited.assign(
        judge_change=np.where(compared, 2 * after - 1, change["score"]),
        judge_low=judge_low,
        judge_high=judge_high,
        truth_change=np.where(compared, np.sign(change["truth"]), change["truth"]),
        planted_change=change["planted"],
        words_change=change["words"],
        at_end=at_end & ~compared,
    )
    for name in ("change", "low", "high"):
        # seven digits: beyond is what a judge's rounding leaves of an exact zero
        table[f"bias_{name}"] = (table[f"judge_{name}"] - table["truth_change"]).round(7)
    return table


def effects(paired: pd.DataFrame, spread: dict[str, float], margin: float = MARGIN) -> pd.DataFrame:
    """One row per judge and variant, all bases of a prompt together.

    Returns ``effect`` with ``se``, ``low``, ``high``, ``p``; ``p_holm`` over the variants of a
    judge, ``p_bh`` over the whole grid (both without the placebo, which is the noise floor and no
    question); ``smallest`` effect that could be seen; ``p_equivalent``; ``floor``, the mean
    absolute change under the placebo; and a ``claim`` in words. ``bound_low`` and ``bound_high``
    are the mean effect with each score that is missing at the end of its scale that makes it least
    and most (Manski 1990): the effect itself where none is missing. Where no rule knows the truth
    of any pair, an edit that keeps the content is taken to keep its truth; one that does not has
    ``judge_change`` alone and no effect.

    Args:
        paired: as `pairs` gives them.
        spread: judge -> SD of its scores over the contents as they are, which effects in SDs are
            divided by.
        margin: of equivalence, in score units.
    """
    placebo = paired[paired["variant"] == PLACEBO]
    floors = placebo["judge_change"].abs().groupby(placebo["judge"]).mean().to_dict()
    rows = []
    for _, part in paired.groupby(_COLUMNS[:3], sort=False):
        head = part.iloc[0][_COLUMNS[:3]].to_dict()
        effect = _effect(part, spread.get(head["judge"], NAN), margin)
        rows.append(head | effect | {"floor": floors.get(head["judge"], NAN)})
    table = corrected(pd.DataFrame(rows, columns=_COLUMNS))
    table["claim"] = [_claim(row) for row in table.to_dict("records")]
    return table


_COLUMNS = [
    "judge", "bias", "variant", "effect", "se", "low", "high", "bound_low", "bound_high",
    "effect_sd", "p", "smallest", "p_equivalent", "judge_change", "truth_change", "planted",
    "words_change", "at_end", "pairs", "prompts", "unscored", "truth_by", "floor",
]  # fmt: skip


def _effect(part: pd.DataFrame, sd: float, margin: float) -> dict[str, Any]:
    has_truth = part["truth_change"].notna().any()
    content_kept = not has_truth and bool(part["keeps"].all())
    measured = "judge" if content_kept else "bias"
    value, prompts = part[f"{measured}_change"].to_numpy(dtype=float), part["prompt_id"].to_numpy()
    effect = clustered_mean(value, prompts, ends=_ends(part, measured))
    scored = part[part["judge_change"].notna()]
    return effect.row("effect", "prompts") | {
        "bound_low": part[f"{measured}_low"].dropna().mean(),
        "bound_high": part[f"{measured}_high"].dropna().mean(),
        "effect_sd": effect.value / sd if sd > NO_SPREAD else NAN,
        "p_equivalent": tost(effect, margin),
        "judge_change": scored["judge_change"].mean(),
        "truth_change": scored["truth_change"].mean(),
        "planted": scored["planted_change"].mean(),
        "words_change": part["words_change"].mean(),
        "at_end": scored["at_end"].mean(),
        "pairs": effect.rows,
        "unscored": len(part) - len(scored),
        "truth_by": "rule" if has_truth else "content kept" if content_kept else "unknown",
    }


def _ends(part: pd.DataFrame, measured: str) -> tuple[float, float]:
    """What the bias of a pair can be.

    A single text lies at most a whole scale from where its counterpart and the truth's change would
    put it; a net preference is between -1 and 1, and so is the truth's that is taken from it.
    """
    truth = part["truth_change"]
    if measured == "judge" or not part["pairwise"].any() or not truth.notna().any():
        return SCALE
    return SCALE[0] - float(truth.max()), SCALE[1] - float(truth.min())


def corrected(table: pd.DataFrame) -> pd.DataFrame:
    """The table with ``p_holm`` (within a judge) and ``p_bh`` (over all of it); NaN p has none."""
    table = table.assign(p_holm=np.nan, p_bh=np.nan)
    is_tested = table["p"].notna() & (table["variant"] != PLACEBO)
    for _, places in table[is_tested].groupby("judge").groups.items():
        table.loc[places, "p_holm"] = multipletests(table.loc[places, "p"], method="holm")[1]
    if is_tested.any():
        table.loc[is_tested, "p_bh"] = multipletests(table.loc[is_tested, "p"], method="fdr_bh")[1]
    return table


def _claim(row: dict[str, Any]) -> str:
    """What may be said of one row."""
    if math.isnan(row["p"]):
        return "cannot tell"
    if row["prompts"] < FEW_PROMPTS:
        return TOO_FEW
    p = row["p"] if row["variant"] == PLACEBO else row["p_holm"]
    same = row["p_equivalent"] < ALPHA
    if p < ALPHA and same:
        return "bias, but within the margin"
    if p < ALPHA:
        return "bias for it" if row["effect"] > 0 else "bias against it"
    if same and row["at_end"] > 0.5:
        return END
    return "no bias" if same else "undecided"
