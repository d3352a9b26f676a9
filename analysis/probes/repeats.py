"""Does a judge agree with itself: asked again, and with the order of two answers swapped?"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy import stats

from analysis.probes.effects import clustered_mean
from analysis.probes.levels import THRESHOLD, wilson

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
