"""How much an edit moves a judge beyond what it moves the truth: one row per judge and variant.

The bias of a pair is the judge's change minus the truth's own change. Pairs of one prompt share its
content, so the prompt is the unit: standard errors are clustered by prompt, with Student's t on
prompts - 1 degrees of freedom. Where most prompts do not change, or all change alike, no spread is
no certainty: `analysis.statistics.bounded_mean` bounds what prompts that were not drawn could do. A
pair that lacks a score or a known truth is left out and counted; worst cases say how far those
without a score could have moved the mean.

`explained` says which biases another behaviour explains: an edit that adds words is paid by a judge
of length, whatever its words say. What a judge pays for a behaviour is fitted on the edits that
probe *other* biases, all behaviours at once, so an edit never explains itself. Where what it moves
of one behaviour, at that price, is about its whole effect, the behaviour explains it. `slots` says
what each slot of a bias set is paid, and how it differs from its base.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.multitest import multipletests

from analysis.external.pairwise import exact_p
from analysis.statistics.bounded_mean import STILL, Rare
from analysis.statistics.corrections import holm
from analysis.statistics.estimate import NAN, Estimate, ratio, ratio_se
from analysis.statistics.intervals import student
from analysis.statistics.power import POWER, smallest_effect
from judges.probes.biasset import TYPES
from study.features import FEATURES

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
        smallest=smallest_effect(units) * se * units**0.5,
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
        table.loc[places, "p_holm"] = holm(table.loc[places, "p"])
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


LEAST = 0.5
"""Share of an effect from which a behaviour is said to explain it."""
MOST = 1.5
"""Share beyond which the price is no explanation of what was seen."""
EXPLAINED_COLUMNS = ["judge", "variant", "behaviour", "change", "price", "effect", "share", "rest"]
EXPLAINED_COLUMNS += ["low", "high"]
CLAIMED = ("bias for it", "bias against it")


def explained(
    scores: pd.DataFrame, paired: pd.DataFrame, effects: pd.DataFrame, margin: float
) -> pd.DataFrame:
    """One row per bias of a judge that another behaviour explains.

    Returns judge, variant, behaviour, ``change`` (of the behaviour by the edit, mean over pairs),
    ``price`` (score for one more of it, by the edits that probe other biases), ``effect``,
    ``share`` (change times price, of the effect), and ``rest`` with ``low`` and ``high``: what is
    left of the effect, clustered by prompt, without the error of the price. A bias is explained
    where the share is between `LEAST` and `MOST` and the rest is within the margin, or its interval
    holds 0. Pairs at an end of the scale are left out: what a judge pays cannot show there.

    Args:
        scores: as `analysis.probes.profile.scores` gives them, with the behaviours of each text.
        paired: as `analysis.probes.effects.pairs` gives them.
        effects: as `analysis.probes.effects.effects` gives them.
        margin: of equivalence, in score units.
    """
    counted = [name for name in FEATURES if _on_record(scores, name)]
    table = _changes(scores, paired, counted)
    rows = []
    for row in effects[effects["claim"].isin(CLAIMED)].to_dict("records"):
        of_judge = table[table["judge"] == row["judge"]]
        other, own = of_judge["bias"] != row["bias"], of_judge["variant"] == row["variant"]
        if not other.any() or not own.any():
            continue
        changes, values = of_judge[counted].to_numpy(), of_judge["value"].to_numpy()
        prices = _prices(changes[other], values[other])
        moved = changes[own].mean(axis=0)
        at = int(np.argmax(prices * moved * np.sign(row["effect"])))
        effect = float(values[own].mean())
        share = float(prices[at] * moved[at] / effect) if effect else np.nan
        left = values[own] - prices[at] * changes[own][:, at]
        rest = clustered_mean(left, of_judge.loc[own, "prompt_id"].to_numpy())
        small = abs(rest.value) < margin or rest.low <= 0 <= rest.high
        if counted[at] != row["bias"] and LEAST <= share <= MOST and small:
            rows.append(
                {name: row[name] for name in ("judge", "variant")}
                | {"behaviour": counted[at], "change": moved[at], "price": prices[at]}
                | {"effect": effect, "share": share, "rest": rest.value}
                | {"low": rest.low, "high": rest.high}
            )
    return pd.DataFrame(rows, columns=EXPLAINED_COLUMNS)


def _column(behaviour: str) -> str:
    """Where a behaviour of the probed texts is on record."""
    return {"length": "words"}.get(behaviour, behaviour)


def _on_record(scores: pd.DataFrame, behaviour: str) -> bool:
    """Whether the texts have a count of a behaviour: a folder may be older than the behaviour."""
    name = _column(behaviour)
    return name in scores and bool(scores[name].notna().any())


def _changes(scores: pd.DataFrame, paired: pd.DataFrame, counted: Sequence[str]) -> pd.DataFrame:
    """Pairs of single texts with both scores, none at an end: what changed of every behaviour that
    is counted, and as ``value`` the judge's change beyond the truth's, where that is known of any
    pair."""
    single = paired[~paired["pairwise"].astype(bool) & ~paired["at_end"].astype(bool)]
    if not counted:
        return single.head(0)
    names = [_column(behaviour) for behaviour in counted]
    by_probe = scores.drop_duplicates("probe_id").set_index("probe_id")[names].astype(float)
    before, after = (by_probe.reindex(single[key]).to_numpy() for key in ("against", "probe_id"))
    has_bias_change = single["bias_change"].notna().groupby([single["judge"], single["variant"]])
    value = single["bias_change"].where(has_bias_change.transform("any"), single["judge_change"])
    changes = pd.DataFrame(after - before, columns=list(counted), index=single.index)
    table = single[["judge", "variant", "bias", "prompt_id"]].join(changes)
    return table.assign(value=value).dropna(subset=[*counted, "value"])


def _prices(changes_N_K: np.ndarray, values_N: np.ndarray) -> np.ndarray:
    """Score for one more of each behaviour, least squares of shape (K,); 0 for one that no edit
    moves, and the least that fits where edits move several alike."""
    scale = np.sqrt((changes_N_K**2).mean(axis=0))
    scaled = np.divide(changes_N_K, scale, out=np.zeros_like(changes_N_K), where=scale > 0)
    fitted = np.linalg.lstsq(scaled, values_N, rcond=1e-8)[0]
    return np.divide(fitted, scale, out=np.zeros_like(fitted), where=scale > 0)


ALL_SOURCES = "all"
SLOT_COLUMNS = [
    *("judge", "source", "slot", "against", "author", "score", "score_low", "score_high"),
    *("change", "low", "high", "texts", "unscored", "pairs", "prompts", "note"),
]


def slots(scores: pd.DataFrame, paired: pd.DataFrame) -> pd.DataFrame:
    """One row per judge, slot and source of prompts, all sources together first.

    ``score`` is the mean score, ``change`` the mean of score - score of the text that it was made
    from (for a pairwise judge the net preference), both with intervals clustered by prompt;
    ``pairs`` have both scores. Truth has no part in it: a change of ``yconfident_wrong`` says how
    far the judge marks wrong content down. From ten prompts on there are intervals.

    Args:
        scores: `analysis.probes.profile.scores`, of a set that names its slots.
        paired: `analysis.probes.effects.pairs` of it.
    """
    change = paired.set_index(["judge", "probe_id"])["judge_change"]
    keys = pd.MultiIndex.from_frame(scores[["judge", "probe_id"]])
    table = scores.assign(change=change.reindex(keys).to_numpy())
    table = table[table["variant"].isin(TYPES)]
    rows = []
    for judge, of_judge in table.groupby("judge", sort=False):
        names = [ALL_SOURCES, *sorted(set(of_judge.get("dataset", [])) - {""})]
        for source in names if len(names) > 2 else names[:1]:
            part = of_judge if source == ALL_SOURCES else of_judge[of_judge["dataset"] == source]
            rows += [
                {"judge": judge, "source": source, "slot": slot}
                | _row(part[part["variant"] == slot])
                for slot in TYPES
                if (part["variant"] == slot).any()
            ]
    return pd.DataFrame(rows, columns=SLOT_COLUMNS)


def _row(part: pd.DataFrame) -> dict[str, object]:
    prompts = part["prompt_id"].to_numpy()
    score = clustered_mean(part["score"].to_numpy(dtype=float), prompts, ends=(0.0, 1.0))
    change = clustered_mean(part["change"].to_numpy(dtype=float), prompts)
    against = part["against"].dropna().str.split("/").str[1].unique()
    row = {
        "against": ", ".join(sorted(against)),
        "author": ", ".join(sorted({*part.get("author", pd.Series(dtype=str))} - {""})),
        "texts": len(part),
        "unscored": int(part["score"].isna().sum()),
        "pairs": change.rows,
        "prompts": score.n,
        "score": score.value,
        "change": change.value,
        "note": "" if score.n >= FEW_PROMPTS else f"fewer than {FEW_PROMPTS} prompts: no interval",
    }
    if score.n >= FEW_PROMPTS:
        row |= {"score_low": max(0.0, score.low), "score_high": min(1.0, score.high)}
    if change.n >= FEW_PROMPTS:
        row |= {"low": change.low, "high": change.high}
    return row
