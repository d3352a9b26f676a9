"""What a judge does to contents as they are: rates against truth, leniency, scale, repeats, order.

Shares have Wilson intervals on the effective number of texts: texts of one prompt are not
independent, so their number is divided by the design effect of the prompts where that is above 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.probes.effects import NO_SPREAD, clustered_mean, clustered_se
from analysis.statistics import proportions as binary
from analysis.statistics.bootstrap import FEWEST, resampled_sums, widened
from analysis.statistics.estimate import LEVEL

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

THRESHOLD = 0.5
"""Judge and truth call a text good from this score on."""
FEW_APART = 5
"""Fewer prompts whose own share is not the common one do not tell how alike their texts are."""
BINS = 10
LENGTHS = 4
REPLICATES = 4000


def wilson(values_N: np.ndarray, prompts_N: np.ndarray) -> dict[str, float]:
    """Share of rows that are true, with a Wilson interval; missing rows (NaN) are left out.

    The design effect is the clustered variance of the mean over the plain one, at least 1. Where
    fewer than `FEW_APART` prompts differ from the others that variance is not known, and a prompt
    counts as one text; a single prompt has no interval.
    """
    values = np.asarray(values_N, dtype=float)
    kept = np.isfinite(values)
    _, codes = np.unique(np.asarray(prompts_N)[kept], return_inverse=True)
    n, prompts = int(kept.sum()), int(codes.max(initial=-1)) + 1
    share = float(values[kept].mean()) if n else math.nan
    if prompts < 2:
        return {"share": share, "low": math.nan, "high": math.nan, "n": n, "design": math.nan}
    plain = share * (1 - share) / n
    design = max(1.0, clustered_se(values[kept], codes) ** 2 / plain) if plain > 0 else 1.0
    by_prompt = np.bincount(codes, values[kept]) / np.bincount(codes)
    alike = int(np.unique(by_prompt.round(6), return_counts=True)[1].max())
    if prompts - alike < FEW_APART:
        design = max(design, n / prompts)
    ends = binary.wilson(share * n / design, n / design)
    return {"share": share, "low": ends.low, "high": ends.high, "n": n, "design": design}


def rates(scores: pd.DataFrame, threshold: float = THRESHOLD) -> pd.DataFrame:
    """TPR, FPR, Youden's J and phi of each judge against the truth, over all single texts.

    Returns:
        Rows judge, measure, value, low, high, n. J's interval joins the two Wilson intervals
        (Newcombe 1998, method 10); phi's is a bootstrap over prompts,
        and missing where that has no spread.
    """
    rows: list[dict[str, Any]] = []
    for judge, part in _single(scores).groupby("judge", sort=False):
        known = part[part["truth"].notna() & part["score"].notna()]
        if known.empty:
            continue
        good = known["truth"].to_numpy() >= threshold
        said = (known["score"].to_numpy() >= threshold).astype(float)
        prompts = known["prompt_id"].to_numpy()
        tpr, fpr = wilson(said[good], prompts[good]), wilson(said[~good], prompts[~good])
        for name, found in (("TPR", tpr), ("FPR", fpr)):
            rows.append(
                {"judge": judge, "measure": name, "value": found["share"]}
                | {key: found[key] for key in ("low", "high", "n")}
            )
        j = tpr["share"] - fpr["share"]
        rows.append(
            {
                "judge": judge,
                "measure": "Youden J",
                "value": j,
                "low": j - math.hypot(tpr["share"] - tpr["low"], fpr["high"] - fpr["share"]),
                "high": j + math.hypot(tpr["high"] - tpr["share"], fpr["share"] - fpr["low"]),
                "n": len(known),
            }
        )
        cells = np.stack([said * good, said * ~good, (1 - said) * good, (1 - said) * ~good], axis=1)
        rows.append({"judge": judge, "measure": "phi"} | _phi_interval(cells, prompts))
    return pd.DataFrame(rows, columns=["judge", "measure", "value", "low", "high", "n"])


def phi(cells: np.ndarray) -> np.ndarray:
    """Matthews correlation of tables (..., 4): hits, false alarms, misses, rejections."""
    tp, fp, fn, tn = np.moveaxis(np.asarray(cells, dtype=float), -1, 0)
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(product > 0, (tp * tn - fp * fn) / np.sqrt(product), np.nan)


def _phi_interval(cells_N_4: np.ndarray, prompts_N: np.ndarray) -> dict[str, float]:
    _, codes = np.unique(prompts_N, return_inverse=True)
    units = int(codes.max()) + 1
    sums = np.stack([np.bincount(codes, column, units) for column in cells_N_4.T], axis=1)
    found = {"value": float(phi(sums.sum(axis=0))), "low": math.nan, "high": math.nan}
    if units >= FEWEST:
        drawn = phi(resampled_sums(sums, REPLICATES, np.random.default_rng(0)))
        drawn = drawn[np.isfinite(drawn)]
        tail = widened(LEVEL, units)
        # without spread (all right, all wrong) a bootstrap knows nothing of what was not drawn
        if len(drawn) > REPLICATES / 2 and np.ptp(drawn) > NO_SPREAD:
            low, high = np.quantile(drawn, [tail, 1 - tail])
            found |= {"low": float(low), "high": float(high)}
    return found | {"n": len(cells_N_4)}


def scale_use(scores: pd.DataFrame) -> pd.DataFrame:
    """How each judge uses its scale on contents as they are.

    Returns:
        Per judge: ``mean``, ``sd``, ``leniency`` (judge - truth) with interval, ``entropy`` of
        ten equal bins in bits (at most 3.32), ``ceiling`` and ``floor`` (share at 1 and at 0),
        ``values`` (distinct scores), ``ties`` (share of two texts of one prompt with equal score
        where the truth differs), ``n`` and ``unscored``.
    """
    rows = []
    contents = _single(scores)
    for judge, part in contents[contents["bias"] == "content"].groupby("judge", sort=False):
        kept = part[part["score"].notna()]
        values = kept["score"].to_numpy(dtype=float)
        gap = clustered_mean(
            (kept["score"] - kept["truth"]).to_numpy(dtype=float), kept["prompt_id"].to_numpy()
        )
        counts = np.histogram(np.clip(values, 0, 1), BINS, (0.0, 1.0))[0]
        shares = counts[counts > 0] / max(1, len(values))
        empty = len(values) == 0
        rows.append(
            {
                "judge": judge,
                "mean": math.nan if empty else float(values.mean()),
                "sd": float(values.std(ddof=1)) if len(values) > 1 else math.nan,
                "leniency": gap.value,
                "leniency_low": gap.low,
                "leniency_high": gap.high,
                "entropy": math.nan if empty else float(-(shares * np.log2(shares)).sum()),
                "ceiling": math.nan if empty else float((values >= 1 - NO_SPREAD).mean()),
                "floor": math.nan if empty else float((values <= NO_SPREAD).mean()),
                "values": len(np.unique(np.round(values, 9))),
                "ties": _ties(kept),
                "n": len(values),
                "unscored": len(part) - len(values),
            }
        )
    return pd.DataFrame(rows)


def _ties(kept: pd.DataFrame) -> float:
    """Share of equal scores among two texts of one prompt that the truth tells apart."""
    both = _text_pairs(kept)
    apart = both[(both["truth_x"] - both["truth_y"]).abs() > NO_SPREAD]
    equal = (apart["score_x"] - apart["score_y"]).abs() <= NO_SPREAD
    return float(equal.mean()) if len(apart) else math.nan


def _text_pairs(kept: pd.DataFrame) -> pd.DataFrame:
    """Each two texts of one prompt, once, with columns ``_x`` and ``_y``."""
    slim = kept[["prompt_id", "probe_id", "score", "truth", "words"]]
    both = slim.merge(slim, on="prompt_id")
    return both[both["probe_id_x"] < both["probe_id_y"]]


def length_preference(scores: pd.DataFrame, paired: pd.DataFrame) -> pd.DataFrame:
    """How often each judge prefers the longer of two texts, beside how often the truth does.

    Over all pairs of texts of one prompt (but content-free ones) of different length that both
    judge and truth tell apart; for a pairwise judge over the pairs that it was shown. ``excess`` is
    the judge's share minus the truth's on the very same pairs: a judge that likes what is long
    because it is good has none.

    Args:
        scores: `analysis.probes.profile.scores`.
        paired: `analysis.probes.effects.pairs` of them.

    Returns:
        Per judge: ``judge_longer``, ``truth_longer``, ``excess`` with interval and p, ``pairs``.
    """
    rows = []
    for judge, part in scores[scores["base"] != "none"].groupby("judge", sort=False):
        if part["pairwise"].any():
            shown = paired[(paired["judge"] == judge) & (paired["base"] != "none")]
            changes = shown[["words_change", "judge_change", "truth_change", "prompt_id"]]
        else:
            both = _text_pairs(part[part["score"].notna() & part["truth"].notna()])
            changes = pd.DataFrame(
                {
                    f"{name}_change": both[f"{column}_x"] - both[f"{column}_y"]
                    for name, column in (("words", "words"), ("judge", "score"), ("truth", "truth"))
                }
            ).assign(prompt_id=both["prompt_id"])
        rows.append({"judge": judge} | _longer(changes))
    return pd.DataFrame(rows)


def _longer(changes: pd.DataFrame) -> dict[str, float]:
    signs = np.sign(changes[["words_change", "judge_change", "truth_change"]].round(7)).to_numpy()
    told = (np.isfinite(signs) & (signs != 0)).all(axis=1)
    liked, right = (signs[told, 0] == signs[told, place] for place in (1, 2))
    found = clustered_mean(
        liked.astype(float) - right.astype(float), changes["prompt_id"].to_numpy()[told]
    )
    return {
        "judge_longer": float(liked.mean()) if told.any() else math.nan,
        "truth_longer": float(right.mean()) if told.any() else math.nan,
        "excess": found.value,
        "low": found.low,
        "high": found.high,
        "p": found.p,
        "pairs": found.rows,
        "prompts": found.n,
    }


def hacks(scores: pd.DataFrame, threshold: float = THRESHOLD) -> pd.DataFrame:
    """Share of texts without content that each judge calls good, by variant."""
    single = _single(scores)
    rows = []
    free = single[single["base"] == "none"]
    for (judge, variant), part in free.groupby(["judge", "variant"], sort=False):
        score = part["score"]
        said = (score >= threshold).where(score.notna()).astype(float)
        found = wilson(said.to_numpy(dtype=float), part["prompt_id"].to_numpy())
        rows.append(
            {"judge": judge, "variant": variant, "mean_score": float(score.mean())}
            | {"called_good": found["share"]}
            | {key: found[key] for key in ("low", "high", "n")}
            | {"unscored": int(score.isna().sum())}
        )
    return pd.DataFrame(rows)


def failures(verdicts: pd.DataFrame, words: pd.Series) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Verdicts that are missing: by judge and reason, and by quarter of the texts' length.

    Args:
        verdicts: every verdict, repeats too.
        words: words of each probe, by probe_id.

    Returns:
        (judge, outcome, verdicts, share) and (judge, words_low, words_high, share with Wilson
        interval, n).
    """
    verdicts = verdicts.assign(
        words=verdicts["probe_id"].map(words), missing=verdicts["outcome"] != "scored"
    )
    counts = verdicts.groupby(["judge", "outcome"], sort=True).size()
    reasons = counts.to_frame("verdicts").reset_index()
    reasons["share"] = reasons["verdicts"] / reasons.groupby("judge")["verdicts"].transform("sum")
    rows = []
    for judge, part in verdicts.groupby("judge", sort=False):
        quarter = pd.qcut(part["words"].rank(method="first"), min(LENGTHS, len(part)), labels=False)
        for _, own in part.groupby(quarter):
            found = wilson(own["missing"].to_numpy(dtype=float), own["prompt_id"].to_numpy())
            rows.append(
                {"judge": judge, "words_low": own["words"].min(), "words_high": own["words"].max()}
                | {key: found[key] for key in ("share", "low", "high", "n")}
            )
    return reasons, pd.DataFrame(rows)


def _single(scores: pd.DataFrame) -> pd.DataFrame:
    """Texts that were judged by themselves."""
    return scores[~scores["pairwise"]]
