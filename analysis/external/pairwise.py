"""Pairwise judges: ``python -m analysis.pairwise FILE out=JSON [invalid=exclude|wrong|half]``.

FILE is a table (CSV, JSON lines, JSON array, Parquet) with the columns item, judge, order (0 as
given, 1 swapped), repeat, verdict and gold. Verdict and gold are first | second | tie | blank and
already mapped back to the original order; a blank verdict could not be parsed, a blank gold is
unknown. A tie is right where gold is a tie, and wrong where gold is not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from analysis.external import tables
from analysis.statistics.proportions import LEVEL, NAN, wilson
from study.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("item", "judge", "order", "repeat", "verdict", "gold")
WORDS = ("first", "second", "tie", "")
INVALID = {
    "exclude": "an invalid verdict is left out, and so is a pair that holds one",
    "wrong": "an invalid verdict counts as wrong, and a pair that holds one as not agreeing",
    "half": "an invalid verdict counts as half right, and a pair that holds one as half agreeing",
}
MEANING = (
    "A pairwise table has the columns item, judge, order (0 as given, 1 swapped), repeat (a whole "
    "number), verdict and gold (first | second | tie | blank, mapped back to the original order)."
)


def read_pairwise(path: Path) -> pd.DataFrame:
    """The checked table: item, judge, verdict, gold str, order and repeat int64.

    Raises:
        UserError: a missing column, a bad cell, a repeated row, or an item with two golds.
    """
    return check_pairwise(tables.read_table(path))


def check_pairwise(frame: pd.DataFrame) -> pd.DataFrame:
    """The same for a table in memory; see `read_pairwise`."""
    tables.require(frame, COLUMNS, MEANING)
    order = tables.whole_numbers(frame, "order")
    if not order.isin([0, 1]).all():
        tables.choices(frame, "order", ("0", "1"))
    table = pd.DataFrame(
        {
            "item": tables.texts(frame, "item"),
            "judge": tables.texts(frame, "judge"),
            "order": order,
            "repeat": tables.whole_numbers(frame, "repeat"),
            "verdict": tables.choices(frame, "verdict", WORDS),
            "gold": tables.choices(frame, "gold", WORDS),
        }
    )
    tables.no_duplicates(frame, table, ("item", "judge", "order", "repeat"))
    golds = table[table["gold"] != ""].groupby("item")["gold"].nunique()
    if (golds > 1).any():
        item = golds.index[golds.to_numpy() > 1][0]
        given = sorted(set(table.loc[table["item"] == item, "gold"]) - {""})
        raise UserError(
            f"{frame.attrs.get('path', 'The table')}: item {item!r} has the golds "
            f"{' and '.join(given)}. An item has one gold, in the original order, for every judge."
        )
    return table


def judge_pairs(table: pd.DataFrame, invalid: str = "exclude") -> dict[str, dict[str, Any]]:
    """Every judge's figures, by name.

    ``n`` counts verdicts, ``pairs`` the (item, repeat) seen in both orders. Rates over one order
    are over verdicts with a known gold; ``accuracy`` is the mean of the two orders' rates;
    ``both_correct`` is over pairs with a known gold and ``position_agreement`` over all pairs.
    ``first_first`` counts the pairs in which the answer shown first won both times (``first`` in
    order 0, ``second`` in order 1), ``second_second`` the reverse: pairs with an invalid verdict
    or a tie count in neither. ``position_p`` is the exact two-sided binomial (McNemar) p that
    both are equally likely; ``position_p_items`` the same over items, each by the sign of its own
    repeats, which is the one to read when there are repeats. ``repeat_stability`` is the share of
    the most frequent verdict among an (item, order)'s draws, over those that have every repeat.
    ``intervals`` are Wilson's, for the effective number of verdicts when items repeat.

    Args:
        table: As `read_pairwise` gives it.
        invalid: One of `INVALID`.
    """
    return {
        str(judge): _figures(part, invalid)
        for judge, part in table.groupby("judge", sort=True, observed=True)
    }


def _figures(part: pd.DataFrame, invalid: str) -> dict[str, Any]:
    bad = part["verdict"] == ""
    credit = (part["verdict"] == part["gold"]).astype(float)
    credit = credit.mask(bad, {"exclude": np.nan, "wrong": 0.0, "half": 0.5}[invalid])
    part = part.assign(credit=credit.mask(part["gold"] == "", np.nan))
    rates: dict[str, float] = {}
    intervals: dict[str, list[float]] = {}
    graded = part.dropna(subset=["credit"])
    by_order = [graded[graded["order"] == order] for order in (0, 1)]
    for order, rows in enumerate(by_order):
        _rate(rates, intervals, f"accuracy_order{order}", rows["credit"], rows["item"])
    if all(map(len, by_order)):
        _rate(rates, intervals, "accuracy", graded["credit"], graded["item"], graded["order"])
    else:
        rates["accuracy"], intervals["accuracy"] = NAN, [NAN, NAN]

    both = _pairs(part)
    broken = (both["verdict_0"] == "") | (both["verdict_1"] == "")
    right = both["credit_0"] * both["credit_1"]  # NaN where either is left out or gold unknown
    kept = right.notna()
    _rate(rates, intervals, "both_correct", right[kept], both.loc[kept, "item"])
    agree = (both["verdict_0"] == both["verdict_1"]).astype(float)
    agree = agree.mask(broken, {"exclude": np.nan, "wrong": 0.0, "half": 0.5}[invalid])
    kept = agree.notna()
    _rate(rates, intervals, "position_agreement", agree[kept], both.loc[kept, "item"])

    first = (both["verdict_0"] == "first") & (both["verdict_1"] == "second")
    second = (both["verdict_0"] == "second") & (both["verdict_1"] == "first")
    lean = np.sign((first.astype(int) - second.astype(int)).groupby(both["item"]).sum())
    stability, cells = _stability(part)
    notes = []
    if not len(both):
        notes.append("no item was judged in both orders: nothing is known of position")
    if part["repeat"].nunique() > 1:
        notes.append("items repeat: read position_p_items, not position_p")
    if not (part["gold"] != "").all():
        notes.append(f"{int((part['gold'] == '').sum())} verdicts have no gold")
    return {
        "n": len(part),
        "items": int(part["item"].nunique()),
        "repeats": int(part["repeat"].nunique()),
        "pairs": len(both),
        "invalid": int(bad.sum()),
        "invalid_pairs": int(broken.sum()),
        "ties": int((part["verdict"] == "tie").sum()),
        **rates,
        "first_first": int(first.sum()),
        "second_second": int(second.sum()),
        "position_p": exact_p(int(first.sum()), int(second.sum()), len(both)),
        "position_p_items": exact_p(int((lean > 0).sum()), int((lean < 0).sum()), len(both)),
        "repeat_stability": stability,
        "repeat_cells": cells,
        "intervals": intervals,
        "note": "; ".join(notes),
    }


def exact_p(a: int, b: int, pairs: int) -> float:
    """Two-sided binomial p that ``a`` and ``b`` are equally likely.

    Without any discordant pair the only outcome there is has probability 1; NaN without pairs.
    """
    if pairs == 0:
        return NAN
    return 1.0 if a + b == 0 else float(binomtest(a, a + b, 0.5).pvalue)


def _pairs(part: pd.DataFrame) -> pd.DataFrame:
    """One row per (item, repeat) seen in both orders: verdict_0, verdict_1, credit_0, credit_1."""
    keys = ["item", "repeat"]
    sides = [part[part["order"] == order] for order in (0, 1)]
    columns = [*keys, "verdict", "credit"]
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


def _rate(
    rates: dict[str, float],
    intervals: dict[str, list[float]],
    name: str,
    credit: pd.Series,
    item: pd.Series,
    strata: pd.Series | None = None,
) -> None:
    """Put a mean of credits in [0, 1] and its Wilson interval under ``name``.

    With ``strata`` (the orders) it is the mean of their means, however many verdicts each kept.
    Verdicts on one item are not independent: the interval is for n = p(1-p) / Var, where Var is
    clustered by item and n at most the number of verdicts. With one verdict an item n is theirs.
    """
    if len(credit) == 0:
        rates[name], intervals[name] = NAN, [NAN, NAN]
        return
    values = credit.to_numpy(dtype=float)
    stratum = pd.factorize(strata)[0] if strata is not None else np.zeros(len(values), dtype=int)
    sizes = np.bincount(stratum)
    means = np.bincount(stratum, values) / sizes
    mean = float(means.mean())
    codes = pd.factorize(item)[0]
    pulls = (values - means[stratum]) / (len(sizes) * sizes[stratum])
    variance = float((np.bincount(codes, pulls) ** 2).sum())
    effective = float(codes.max() + 1)  # all right or all wrong: every item stands for itself
    if 0 < mean < 1:
        effective = len(values)
        if variance > 0:
            effective = min(mean * (1 - mean) / variance, effective)
    found = wilson(mean * effective, effective)
    rates[name], intervals[name] = mean, [found.low, found.high]


def render(judges: dict[str, dict[str, Any]], invalid: str) -> str:
    """The figures as a plain table, a line a judge, and how invalid verdicts were counted."""
    rates = ("accuracy_order0", "accuracy_order1", "accuracy", "both_correct", "position_agreement")
    lines = []
    for name, one in judges.items():
        row: dict[str, Any] = {"judge": name, "n": one["n"], "invalid": one["invalid"]}
        for rate in rates:
            low, high = one["intervals"][rate]
            row[rate] = f"{one[rate]:.3f} [{low:.3f}, {high:.3f}]" if low == low else "-"
        row |= {key: one[key] for key in ("first_first", "second_second")}
        row["p"] = f"{one['position_p_items']:.3g}" if one["pairs"] else "-"
        lines.append(row)
    table = pd.DataFrame(lines).to_string(index=False)
    notes = [f"{name}: {one['note']}." for name, one in judges.items() if one["note"]]
    counted = f"invalid={invalid}: {INVALID[invalid]}. Intervals: Wilson, {LEVEL:.0%}, by item."
    return "\n".join([table, counted, *notes])
