"""What a judge does to contents as they are: rates against truth, scale, length, failures.

Shares have Wilson intervals on the effective number of texts: texts of one prompt are not
independent, so their number is divided by the design effect of the prompts where that is above 1.

`repeats` and `positions` say whether a judge agrees with itself: asked again, and with the order of
two answers swapped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import stats

from analysis.probes.effects import NO_SPREAD, clustered_mean, prompt_sums
from analysis.statistics import proportions
from analysis.statistics.bootstrap import FEWEST, resampled_sums, widened
from analysis.statistics.estimate import LEVEL, NAN, Estimate, ratio, ratio_se

THRESHOLD = 0.5
"""Judge and truth call a text good from this score on."""
FEW_APART = 5
"""Fewer prompts whose own share is not the common one do not tell how alike their texts are."""
BINS = 10
LENGTHS = 4
REPLICATES = 4000
ENDS = ["low", "high", "n"]


@dataclass(frozen=True, kw_only=True)
class Share(Estimate):
    """A share of ``n`` texts; ``design`` is the effect that their prompts have on its variance."""

    design: float = NAN


def wilson(values_N: np.ndarray, prompts_N: np.ndarray) -> Share:
    """Share of rows that are true, with a Wilson interval; missing rows (NaN) are left out.

    The design effect is the clustered variance of the mean over the plain one, at least 1. Where
    fewer than `FEW_APART` prompts differ from the others that variance is not known, and a prompt
    counts as one text; a single prompt has no interval.
    """
    sums = prompt_sums(values_N, prompts_N)
    prompts, n = len(sums), int(sums[:, 1].sum())
    share = float(ratio(sums.sum(axis=0)))
    if prompts < 2:
        return Share(share, n=n)
    plain = share * (1 - share) / n
    design = max(1.0, ratio_se(sums) ** 2 / plain) if plain > 0 else 1.0
    alike = int(np.unique(ratio(sums).round(6), return_counts=True)[1].max())
    if prompts - alike < FEW_APART:
        design = max(design, n / prompts)
    interval = proportions.wilson(share * n / design, n / design)
    return Share(share, interval.low, interval.high, n, design=design)


def rates(scores: pd.DataFrame, threshold: float = THRESHOLD) -> pd.DataFrame:
    """TPR, FPR, Youden's J and phi of each judge against the truth, over all single texts.

    Returns rows judge, measure, value, low, high, n. J's interval joins the two Wilson intervals;
    phi's is a bootstrap over prompts, and missing where that has no spread.
    """
    rows = []
    for judge, part in _single(scores).groupby("judge", sort=False):
        scored = part.dropna(subset=["truth", "score"])
        if scored.empty:
            continue
        prompts = scored["prompt_id"].to_numpy()
        good, passed = ((scored[of] >= threshold).to_numpy() for of in ("truth", "score"))
        tpr, fpr = (wilson(passed[side], prompts[side]) for side in (good, ~good))
        cells = np.stack([passed & good, passed & ~good, ~passed & good, ~passed & ~good], axis=1)
        measures = {
            "TPR": tpr,
            "FPR": fpr,
            "Youden J": proportions.youden_j(tpr, fpr),
            "phi": phi_interval(cells, prompts),
        }
        rows += [{"judge": judge, "measure": name} | rate.row() for name, rate in measures.items()]
    return pd.DataFrame(rows, columns=["judge", "measure", "value", *ENDS])


def phi(cells: np.ndarray) -> np.ndarray:
    """Matthews correlation of tables (..., 4): hits, false alarms, misses, rejections."""
    tp, fp, fn, tn = np.moveaxis(np.asarray(cells, dtype=float), -1, 0)
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(product > 0, (tp * tn - fp * fn) / np.sqrt(product), np.nan)


def phi_interval(cells_N_4: np.ndarray, prompts_N: np.ndarray, level: float = LEVEL) -> Estimate:
    """`phi` of the summed tables of N texts with a bootstrap interval over prompts; none for fewer
    than `FEWEST` prompts, nor where the resampled values have no spread."""
    _, codes = np.unique(prompts_N, return_inverse=True)
    units = int(codes.max(initial=-1)) + 1
    sums = np.stack([np.bincount(codes, column, units) for column in cells_N_4.T], axis=1)
    whole = Estimate(float(phi(sums.sum(axis=0))), n=len(cells_N_4), level=level)
    if units < FEWEST:
        return whole
    rng = np.random.default_rng(0)
    kinds, counts = np.unique(sums, axis=0, return_counts=True)
    if len(kinds) * 10 < units:
        # many prompts with the same table are drawn as one kind: the same law, far fewer draws
        drawn = phi(rng.multinomial(units, counts / units, REPLICATES) @ kinds)
    else:
        drawn = phi(resampled_sums(sums, REPLICATES, rng))
    drawn = drawn[np.isfinite(drawn)]
    # without spread (all right, all wrong) a bootstrap knows nothing of what was not drawn
    if len(drawn) <= REPLICATES / 2 or np.ptp(drawn) <= NO_SPREAD:
        return whole
    tail = widened(units, level)
    low, high = map(float, np.quantile(drawn, [tail, 1 - tail]))
    return replace(whole, low=low, high=high)


def scale_use(scores: pd.DataFrame) -> pd.DataFrame:
    """How each judge uses its scale on contents as they are.

    Returns per judge: ``mean``, ``sd``, ``leniency`` (judge - truth) with interval, ``entropy`` of
    ten equal bins in bits (at most 3.32), ``ceiling`` and ``floor`` (share at 1 and at 0),
    ``values`` (distinct scores), ``ties`` (share of two texts of one prompt with equal score where
    the truth differs), ``n`` and ``unscored``.
    """
    rows = []
    contents = _single(scores)
    for judge, part in contents[contents["bias"] == "content"].groupby("judge", sort=False):
        scored = part[part["score"].notna()]
        values = scored["score"].astype(float)
        gap = (values - scored["truth"]).to_numpy(dtype=float)
        leniency = clustered_mean(gap, scored["prompt_id"].to_numpy())
        counts = np.histogram(values.clip(0, 1), BINS, (0.0, 1.0))[0]
        rows.append(
            {
                "judge": judge,
                "mean": values.mean(),
                "sd": values.std(),
                "leniency": leniency.value,
                "leniency_low": leniency.low,
                "leniency_high": leniency.high,
                "entropy": float(stats.entropy(counts, base=2)) if len(values) else NAN,
                "ceiling": (values >= 1 - NO_SPREAD).mean(),
                "floor": (values <= NO_SPREAD).mean(),
                "values": values.round(9).nunique(),
                "ties": _ties(scored),
                "n": len(values),
                "unscored": len(part) - len(values),
            }
        )
    return pd.DataFrame(rows)


def _ties(scored: pd.DataFrame) -> float:
    """Share of equal scores among two texts of one prompt that the truth tells apart."""
    apart = _text_pairs(scored).query("abs(truth_x - truth_y) > @NO_SPREAD")
    return ((apart["score_x"] - apart["score_y"]).abs() <= NO_SPREAD).mean()


def _text_pairs(scored: pd.DataFrame) -> pd.DataFrame:
    """Each two texts of one prompt, once, with columns ``_x`` and ``_y``."""
    slim = scored[["prompt_id", "probe_id", "score", "truth", "words"]]
    return slim.merge(slim, on="prompt_id").query("probe_id_x < probe_id_y")


def length_preference(scores: pd.DataFrame, paired: pd.DataFrame) -> pd.DataFrame:
    """How often each judge prefers the longer of two texts, beside how often the truth does.

    Over all pairs of texts of one prompt (but content-free ones) of different length that both
    judge and truth tell apart; for a pairwise judge over the pairs that it was shown. ``excess`` is
    the judge's share minus the truth's on the very same pairs: a judge that likes what is long
    because it is good has none. Returns per judge: ``judge_longer``, ``truth_longer``, ``excess``
    with interval and p, ``pairs``.

    Args:
        scores: `analysis.probes.profile.scores`.
        paired: `analysis.probes.effects.pairs` of them.
    """
    rows = []
    moved = ["words_change", "judge_change", "truth_change"]
    for judge, part in scores[scores["base"] != "none"].groupby("judge", sort=False):
        if part["pairwise"].any():
            shown = paired[(paired["judge"] == judge) & (paired["base"] != "none")]
            prompts, changes = shown["prompt_id"], shown[moved]
        else:
            both = _text_pairs(part.dropna(subset=["score", "truth"]))
            of = ("words", "score", "truth")
            prompts = both["prompt_id"]
            changes = pd.concat([both[f"{name}_x"] - both[f"{name}_y"] for name in of], axis=1)
        signs = np.sign(changes.round(7)).to_numpy()
        is_decided = (np.isfinite(signs) & (signs != 0)).all(axis=1)
        longer, liked, right = signs[is_decided].T
        in_judge, in_truth = pd.Series(liked == longer), pd.Series(right == longer)
        excess = clustered_mean(
            (in_judge.astype(float) - in_truth).to_numpy(), prompts.to_numpy()[is_decided]
        )
        shares = {"judge_longer": in_judge.mean(), "truth_longer": in_truth.mean()}
        row = excess.row("excess", "prompts") | {"pairs": excess.rows}
        rows.append({"judge": judge} | shares | row)
    columns = ["judge", "judge_longer", "truth_longer", "excess", "low", "high", "p", "pairs"]
    return pd.DataFrame(rows, columns=[*columns, "prompts"])


def hacks(scores: pd.DataFrame, threshold: float = THRESHOLD) -> pd.DataFrame:
    """Share of texts without content that each judge calls good, by variant."""
    columns = ["judge", "variant", "mean_score", "called_good", *ENDS, "unscored"]
    single = _single(scores)
    rows = []
    groups = single[single["base"] == "none"].groupby(["judge", "variant"], sort=False)
    for (judge, variant), part in groups:
        score = part["score"]
        passed = (score >= threshold).where(score.notna()).astype(float)
        share = wilson(passed.to_numpy(), part["prompt_id"].to_numpy()).row("called_good")
        head = {"judge": judge, "variant": variant, "mean_score": score.mean()}
        rows.append(head | share | {"unscored": score.isna().sum()})
    return pd.DataFrame(rows, columns=columns)


def failures(verdicts: pd.DataFrame, words: pd.Series) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Verdicts that are missing: by judge and reason, and by quarter of the texts' length.

    Returns (judge, outcome, verdicts, share) and (judge, words_low, words_high, share with Wilson
    interval, n).

    Args:
        verdicts: every verdict, repeats too.
        words: words of each probe, by probe_id.
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
        for _, texts in part.groupby(quarter):
            head = {"judge": judge, "words_low": texts["words"].min()}
            share = wilson(texts["missing"].to_numpy(), texts["prompt_id"].to_numpy())
            rows.append(head | {"words_high": texts["words"].max()} | share.row("share"))
    return reasons, pd.DataFrame(rows, columns=["judge", "words_low", "words_high", "share", *ENDS])


def _single(scores: pd.DataFrame) -> pd.DataFrame:
    """Texts that were judged by themselves."""
    return scores[~scores["pairwise"]]


REPEAT = "repeat "
"""How the settings of repeated verdicts begin."""
SINGLE = -1.0
"""Stands for the order of a text that was judged by itself."""


def repeats(verdicts: pd.DataFrame, threshold: float = THRESHOLD) -> pd.DataFrame:
    """Self-consistency of each judge at each temperature, over contents asked again and again.

    ``flips`` is the chance that two repeats say different things: of one text, that they fall on
    different sides of the threshold; of a pair in one order, that they name different winners or a
    tie. That is 1 - sum n (n - 1) / (K (K - 1)) over the n of K repeats that say each thing,
    averaged, with interval clustered by prompt; ``sd`` is the root of the mean variance within a
    text or ordered pair. Those with fewer than two scored repeats have neither and are counted.
    Returns per judge and temperature: ``flips``, ``low``, ``high``, ``sd``, ``texts`` (or ordered
    pairs), ``repeats`` (fewest and most scored ones of a text), ``too_few``, ``unscored``.
    """
    rows = []
    repeat_verdicts = verdicts[verdicts["setting"].str.startswith(REPEAT)]
    for (judge, temperature), part in repeat_verdicts.groupby(["judge", "temperature"], sort=True):
        good = (part["score"] >= threshold).where(part["score"].notna()).astype(float)
        answer = part["score"].where(part["order"].notna(), good)
        keys = [part["prompt_id"], part["probe_id"], part["order"].fillna(SINGLE)]
        texts = part["score"].groupby(keys)
        alike = answer.groupby([*keys, answer]).size().groupby(level=[0, 1, 2])
        table = pd.DataFrame(
            {
                "k": texts.count(),
                "alike": alike.agg(lambda n: float((n * (n - 1)).sum())),
                "variance": texts.var(ddof=1),
            }
        ).reset_index()
        twice = table[table["k"] >= 2]
        flips = 1 - twice["alike"] / (twice["k"] * (twice["k"] - 1))
        flipped = clustered_mean(flips.to_numpy(float), twice["prompt_id"], ends=(0.0, 1.0))
        rows.append(
            {
                "judge": judge,
                "temperature": temperature,
                "flips": flipped.value,
                "low": float(np.clip(flipped.low, 0.0, 1.0)),
                "high": float(np.clip(flipped.high, 0.0, 1.0)),
                "sd": twice["variance"].mean() ** 0.5,
                "texts": len(twice),
                "repeats": f"{twice['k'].min()} to {twice['k'].max()}" if len(twice) else "",
                "too_few": len(table) - len(twice),
                "unscored": part["score"].isna().sum(),
            }
        )
    return pd.DataFrame(rows)


def positions(verdicts: pd.DataFrame) -> pd.DataFrame:
    """What the order of two answers does to each pairwise judge.

    A pair is consistent where both orders name the same text, or both a tie. Of the others,
    ``first_first`` chose the text shown first both times and ``second_second`` the one shown
    second; ``p`` is the exact test that prompts are equally likely to lean to either, each by the
    sign of its own first_first - second_second, because pairs of one prompt are not independent. A
    judge's taste for what is better cannot move it, unlike a share of first picks. Pairs that tie
    in one order only are counted apart. Returns per judge: ``consistent`` with Wilson interval,
    ``first_first``, ``second_second``, ``p``, ``half_ties``, ``pairs``, ``unscored`` (pairs that
    lack an order).
    """
    rows = []
    repeated = verdicts["setting"].str.startswith(REPEAT)
    ordered_verdicts = verdicts[verdicts["order"].notna() & ~repeated]
    for judge, part in ordered_verdicts.groupby("judge", sort=False):
        keys = ["prompt_id", "probe_id", "sample_index"]
        wide = part.pivot_table(index=keys, columns="order", values="score", dropna=False,
                                observed=True).reindex(columns=[0, 1]).dropna()  # fmt: skip
        unswapped, swapped = wide[0], wide[1]
        # a score is for the text shown first: 1 in both orders chose the place, not the text
        first, second = ((unswapped == place) & (swapped == place) for place in (1, 0))
        same = unswapped + swapped == 1
        lean = (first.astype(int) - second.astype(int)).groupby(level="prompt_id").sum()
        consistent = wilson(same.to_numpy(), wide.index.get_level_values("prompt_id").to_numpy())
        test = stats.binomtest((lean > 0).sum(), (lean != 0).sum()) if lean.any() else None
        rows.append(
            {
                "judge": judge,
                "consistent": consistent.value,
                "low": consistent.low,
                "high": consistent.high,
                "first_first": first.sum(),
                "second_second": second.sum(),
                "p": test.pvalue if test else math.nan,
                "half_ties": len(wide) - (same | first | second).sum(),
                "pairs": len(wide),
                "unscored": part.groupby(keys).ngroups - len(wide),
            }
        )
    return pd.DataFrame(rows)
