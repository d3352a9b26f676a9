"""Figures of pairwise judges: accuracy by order, agreement of the two orders, stability.

A verdict and a gold are first | second | tie | blank, mapped back to the original order; a blank
verdict could not be parsed, a blank gold is unknown. A tie is right where gold is a tie, and wrong
where gold is not. Two rules make one decision of a pair that was judged in both orders: both
verdicts have to be right, or their votes are added (`added_votes`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from analysis.external import tables
from analysis.statistics.estimate import LEVEL, NAN, Estimate
from analysis.statistics.proportions import clustered_wilson

_WORDS = partial(tables.choices, legal=("first", "second", "tie", ""))
COLUMNS = {
    **dict.fromkeys(("item", "judge"), tables.texts),
    **dict.fromkeys(("order", "repeat"), tables.whole_numbers),
    **dict.fromkeys(("verdict", "gold"), _WORDS),
}
INVALID = {
    "exclude": "an invalid verdict is left out, and so is a pair that holds one",
    "wrong": "an invalid verdict counts as wrong, and a pair that holds one as not agreeing",
    "half": "an invalid verdict counts as half right, and a pair that holds one as half agreeing",
}
MEANING = (
    "A pairwise table has the columns item, judge, order (0 as given, 1 swapped), repeat (a whole "
    "number), verdict and gold (first | second | tie | blank, mapped back to the original order)."
)


def check_pairwise(frame: pd.DataFrame) -> pd.DataFrame:
    """The checked table: item, judge, verdict, gold str, order and repeat int64. Raises UserError:
    a missing column, a bad cell, a repeated row, or an item with two golds."""
    table = tables.checked(frame, COLUMNS, MEANING)
    tables.refuse(frame, "order", ~table["order"].isin([0, 1]), "0 | 1")
    tables.no_duplicates(frame, table, ["item", "judge", "order", "repeat"])
    remedy = "An item has one gold, in the original order, for every judge."
    tables.one_each(frame, table[table["gold"] != ""], "item", "gold", remedy)
    return table


def judge_pairs(table: pd.DataFrame, invalid: str = "exclude") -> dict[str, dict[str, Any]]:
    """Every judge's figures, by name; docs/tables.md says what each field is.

    Rates over one order, ``both_correct`` and ``votes_correct`` are over verdicts and pairs with a
    known gold, ``position_agreement`` over all pairs. In ``first_first`` the answer shown first won
    both times (``first`` in order 0, ``second`` in order 1); pairs with an invalid verdict or a tie
    count neither there nor in ``second_second``.

    Args:
        table: As `check_pairwise` gives it.
        invalid: One of `INVALID`.
    """
    return {
        str(judge): _figures(part, invalid)
        for judge, part in table.groupby("judge", sort=True, observed=True)
    }


def _figures(part: pd.DataFrame, invalid: str) -> dict[str, Any]:
    credit_of_invalid = {"exclude": np.nan, "wrong": 0.0, "half": 0.5}[invalid]
    bad, no_gold = part["verdict"] == "", part["gold"] == ""
    credit = (part["verdict"] == part["gold"]).astype(float).mask(bad, credit_of_invalid)
    part = part.assign(credit=credit.mask(no_gold, np.nan))
    graded = part.dropna(subset=["credit"])
    by_order = [graded[graded["order"] == order] for order in (0, 1)]
    both = _pairs(part)
    broken = (both["verdict_0"] == "") | (both["verdict_1"] == "")
    right = both["credit_0"] * both["credit_1"]  # NaN where either is left out or gold unknown
    agree = (both["verdict_0"] == both["verdict_1"]).astype(float).mask(broken, credit_of_invalid)
    in_both_orders = graded if all(map(len, by_order)) else graded[:0]
    rates = {
        "accuracy_order0": _rate(by_order[0]["credit"], by_order[0]["item"]),
        "accuracy_order1": _rate(by_order[1]["credit"], by_order[1]["item"]),
        "accuracy": _rate(*(in_both_orders[name] for name in ("credit", "item", "order"))),
        "both_correct": _rate(right, both["item"]),
        "votes_correct": _rate(_votes_right(both, credit_of_invalid), both["item"]),
        "position_agreement": _rate(agree, both["item"]),
    }
    first = (both["verdict_0"] == "first") & (both["verdict_1"] == "second")
    second = (both["verdict_0"] == "second") & (both["verdict_1"] == "first")
    lean = np.sign((first.astype(int) - second.astype(int)).groupby(both["item"]).sum())
    stability, cells = _stability(part)
    notes = {
        "no item was judged in both orders: position bias is unknown": both.empty,
        "items repeat: read position_p_items, not position_p": part["repeat"].nunique() > 1,
        f"{int(no_gold.sum())} verdicts have no gold": no_gold.any(),
    }
    return {
        "n": len(part),
        "items": int(part["item"].nunique()),
        "repeats": int(part["repeat"].nunique()),
        "pairs": len(both),
        "invalid": int(bad.sum()),
        "invalid_pairs": int(broken.sum()),
        "ties": int((part["verdict"] == "tie").sum()),
        **{name: rate.value for name, rate in rates.items()},
        "first_first": int(first.sum()),
        "second_second": int(second.sum()),
        "position_p": exact_p(int(first.sum()), int(second.sum()), len(both)),
        "position_p_items": exact_p(int((lean > 0).sum()), int((lean < 0).sum()), len(both)),
        "repeat_stability": stability,
        "repeat_cells": cells,
        "intervals": {name: [rate.low, rate.high] for name, rate in rates.items()},
        "note": "; ".join(note for note, holds in notes.items() if holds),
    }


def added_votes(verdicts_P_2: np.ndarray) -> np.ndarray:
    """What the two votes on each pair come to, shape (P,): first, second, tie, or blank for none.

    A vote for one answer cancels a vote for the other; a tie and a blank add nothing, so that one
    vote decides where the other verdict is a tie or blank. This is how JudgeBench (2410.12784)
    scores a judge; there a decision of tie is always wrong, as its gold is never a tie.

    Args:
        verdicts_P_2: first | second | tie | blank, mapped back to the original order.
    """
    votes = np.asarray(verdicts_P_2, dtype=object).reshape(-1, 2)
    lead = (votes == "first").sum(axis=1) - (votes == "second").sum(axis=1)
    decided = np.where(lead > 0, "first", np.where(lead < 0, "second", "tie"))
    return np.where((votes == "").all(axis=1), "", decided)


def _votes_right(pairs: pd.DataFrame, credit_of_invalid: float) -> pd.Series:
    """Credit of each pair's `added_votes`; NaN where gold is unknown."""
    decided = added_votes(pairs[["verdict_0", "verdict_1"]].to_numpy())
    right = (pairs["gold_0"] == decided).astype(float).mask(decided == "", credit_of_invalid)
    return right.mask((pairs["gold_0"] == "") | (pairs["gold_1"] == ""), np.nan)


def exact_p(a: int, b: int, pairs: int) -> float:
    """Two-sided binomial p that ``a`` and ``b`` are equally likely.

    Without any discordant pair the only outcome there is has probability 1; NaN without pairs.
    """
    if pairs == 0:
        return NAN
    return 1.0 if a + b == 0 else float(binomtest(a, a + b, 0.5).pvalue)


def _pairs(part: pd.DataFrame) -> pd.DataFrame:
    """One row per (item, repeat) seen in both orders: its two verdicts, golds and credits."""
    keys = ["item", "repeat"]
    sides = [part[part["order"] == order] for order in (0, 1)]
    columns = [*keys, "verdict", "gold", "credit"]
    return sides[0][columns].merge(sides[1][columns], on=keys, suffixes=("_0", "_1"))


def _stability(part: pd.DataFrame) -> tuple[float, int]:
    """Mean share of the majority over the (item, order) that have all repeats, and their number."""
    repeats = int(part["repeat"].nunique())
    valid = part[part["verdict"] != ""]
    if repeats < 2 or valid.empty:
        return NAN, 0
    counts = valid.groupby(["item", "order", "verdict"], observed=True).size()
    cells = counts.groupby(level=["item", "order"])
    draws, most = cells.sum(), cells.max()
    full = draws == repeats
    return (float((most[full] / repeats).mean()) if full.any() else NAN), int(full.sum())


def _rate(credit: pd.Series, item: pd.Series, strata: pd.Series | None = None) -> Estimate:
    """Mean of the known credits in [0, 1] with its Wilson interval.

    With ``strata`` (the orders) it is the mean of their means, however many verdicts each kept.
    Verdicts on one item are not independent: the interval is for n = p(1-p) / Var, where Var is
    clustered by item and n at most the number of verdicts. With one verdict an item n is theirs.
    """
    graded = credit.notna()
    if not graded.any():
        return Estimate(NAN)
    values = credit[graded].to_numpy(dtype=float)
    stratum = pd.factorize(strata)[0] if strata is not None else np.zeros(len(values), dtype=int)
    sizes = np.bincount(stratum)
    means = np.bincount(stratum, values) / sizes
    mean = float(means.mean())
    codes = pd.factorize(item[graded])[0]
    pulls = (values - means[stratum]) / (len(sizes) * sizes[stratum])
    variance = float((np.bincount(codes, pulls) ** 2).sum())
    return clustered_wilson(mean, variance, len(values), int(codes.max()) + 1)


def render(judges: dict[str, dict[str, Any]], invalid: str) -> str:
    """The figures as a plain table, a line a judge, and how invalid verdicts were counted."""
    lines = []
    for name, figures in judges.items():
        row = {"judge": name, "n": figures["n"], "invalid": figures["invalid"]}
        for rate, (low, high) in figures["intervals"].items():
            row[rate] = f"{figures[rate]:.3f} [{low:.3f}, {high:.3f}]" if low == low else "-"
        row |= {key: figures[key] for key in ("first_first", "second_second")}
        row["p"] = f"{figures['position_p_items']:.3g}" if figures["pairs"] else "-"
        lines.append(row)
    notes = [f"{name}: {figures['note']}." for name, figures in judges.items() if figures["note"]]
    footnote = f"invalid={invalid}: {INVALID[invalid]}. Intervals: Wilson, {LEVEL:.0%}, by item."
    return "\n".join([pd.DataFrame(lines).to_string(index=False), footnote, *notes])
