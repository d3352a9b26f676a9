"""Agreement of raters, and each judge against the mean of the humans' scores of an item.

Where all scores are 0 or 1, a judge is compared with the humans' majority.
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from analysis.external import tables
from analysis.statistics.agreement import (
    KINDS,
    SCALES,
    cohen_kappa,
    correlation,
    fleiss_kappa,
    icc_family,
    krippendorff_alpha,
    within_groups,
)
from analysis.statistics.intervals import mean_interval
from analysis.statistics.proportions import (
    LEVEL,
    NAN,
    Confusion,
    Estimate,
    auc,
    confusion,
    rogan_gladen,
)

COLUMNS = {
    **dict.fromkeys(("item", "rater"), tables.texts),
    "role": partial(tables.choices, legal=("judge", "human")),
    "score": tables.numbers,
}
MEANING = (
    "A rating table has the columns item, rater, role (judge | human), score (a number, blank "
    "where missing) and optionally group."
)


def check_ratings(frame: pd.DataFrame) -> pd.DataFrame:
    """The checked table: item, rater, role, group str ("" if none), score float64. Raises
    UserError: a missing column, a bad cell, a repeated (item, rater), a rater of two roles or an
    item of two groups."""
    table = tables.checked(frame, COLUMNS, MEANING)
    table["group"] = tables.texts(frame, "group", blank=True) if "group" in frame else ""
    tables.no_duplicates(frame, table, ["item", "rater"])
    tables.one_each(frame, table, "rater", "role")
    tables.one_each(frame, table, "item", "group")
    return table


def agreement_report(table: pd.DataFrame) -> dict[str, Any]:
    """Everything that a rating table can say, with NaN and a note where it cannot.

    Returns ``items``, ``raters``; ``fleiss``, ``krippendorff`` (by level), ``icc`` (by name) over
    all raters; the same over ``humans`` and ``judges_among`` themselves; ``pairs`` of raters with
    kappas; ``judges`` by name, see `_judge`.
    """
    roles = table.drop_duplicates("rater").set_index("rater")["role"].sort_index()
    wide = table.pivot(index="item", columns="rater", values="score").reindex(columns=roles.index)
    # a table without a group column has no groups, not one group
    groups = table.drop_duplicates("item").set_index("item")["group"].reindex(wide.index)
    humans, judges = (list(roles.index[roles == role]) for role in ("human", "judge"))
    truth = (wide[humans].mean(axis=1) if humans else pd.Series(NAN, wide.index)).to_numpy()
    binary = _binary(wide[humans].to_numpy())
    return {
        "items": len(wide),
        "groups": int((groups[groups != ""]).nunique()),
        "raters": {
            str(name): {
                "role": role,
                "scored": int(wide[name].count()),
                "missing": int(wide[name].isna().sum()),
            }
            for name, role in roles.items()
        },
        **_family(wide.to_numpy()),
        "humans": _family(wide[humans].to_numpy()),
        "judges_among": _family(wide[judges].to_numpy()),
        "pairs": [_pair(wide, a, b) for a, b in combinations(wide.columns, 2)],
        "judges": {
            str(name): _judge(wide[name].to_numpy(), truth, groups.to_numpy(), binary)
            for name in judges
        },
    }


def _family(ratings: np.ndarray) -> dict[str, Any]:
    return {
        "fleiss": fleiss_kappa(ratings).row(),
        "krippendorff": {scale: krippendorff_alpha(ratings, scale).row() for scale in SCALES},
        "icc": {name: icc.row() for name, icc in icc_family(ratings).items()},
    }


def _pair(wide: pd.DataFrame, a: str, b: str) -> dict[str, Any]:
    x, y = wide[a].to_numpy(), wide[b].to_numpy()
    weighted = {f"kappa_{w}": cohen_kappa(x, y, w).row() for w in ("linear", "quadratic")}
    return {"a": a, "b": b, "kappa": cohen_kappa(x, y).row(), **weighted}


def _judge(
    score: np.ndarray, truth: np.ndarray, groups: np.ndarray, binary: bool
) -> dict[str, Any]:
    """A judge (N,) against the human mean (N,): correlations, MAE, and rates if binary."""
    both = ~(np.isnan(score) | np.isnan(truth))
    grouped = groups != ""
    within = {
        kind: within_groups(score[grouped], truth[grouped], groups[grouped], kind) for kind in KINDS
    }
    label = np.where(np.isnan(truth) | (truth == 0.5), np.nan, (truth > 0.5).astype(float))
    return {
        "n": int(both.sum()),
        "overall": {kind: correlation(score, truth, kind).row() for kind in KINDS},
        "within_group": {
            kind: inside.estimate.row()
            | {"groups_constant": inside.constant, "groups_small": inside.small}
            for kind, inside in within.items()
        },
        "mae": mean_interval(np.abs(score - truth)[both].tolist(), "item").row(),
        "auc": auc(score, label).row() if binary else None,
        "binary": _rates(score, label, truth, groups) if binary and _binary(score) else None,
    }


def _rates(
    score: np.ndarray, label: np.ndarray, truth: np.ndarray, groups: np.ndarray
) -> dict[str, Any]:
    """A binary judge against the humans' majority, and the true share that its pass rate means.

    Rogan-Gladen tests the items that no human labelled; where every item is labelled the test is
    on the calibration items themselves, which returns the humans' own share and is noted.
    """
    rates = confusion(score, label)
    counts = {field.name: getattr(rates, field.name) for field in fields(rates)}
    halved = truth == 0.5  # the humans are split: no majority, left out
    scored, labelled = ~np.isnan(score), ~np.isnan(label)
    unlabelled = scored & ~labelled & ~halved
    labelled &= scored
    tested = unlabelled if unlabelled.any() else labelled
    prevalence = _prevalence(rates, score[tested])
    row = prevalence.row() | {
        "test": "items without a human label" if unlabelled.any() else "the calibration items",
        "judge_rate": float(score[tested].mean()) if tested.any() else NAN,
        "human_rate": float(label[labelled].mean()) if labelled.any() else NAN,
    }
    if not unlabelled.any() and labelled.any():
        circular = "every item has a human label, so this is their own share"
        row["note"] = "; ".join(filter(None, [prevalence.note, circular]))
    return {
        **{
            name: rate.row() if isinstance(rate, Estimate) else rate
            for name, rate in counts.items()
        },
        "halved": int(halved.sum()),
        "rogan_gladen": row,
        "leave_one_group_out": _left_out(score, label, groups),
    }


def _left_out(score: np.ndarray, label: np.ndarray, groups: np.ndarray) -> dict[str, Any]:
    """Each group's true share from its judge rate and the *other* groups' TPR and FPR.

    ``covered`` is the share of groups whose interval holds the humans' share, which has a sampling
    error of its own; ``mean_error`` is the mean of estimate minus human share.
    """
    usable = ~(np.isnan(score) | np.isnan(label)) & (groups != "")
    names = sorted(set(groups[usable]))
    if len(names) < 2:
        return {"groups": {}, "covered": NAN, "mean_error": NAN, "note": "needs two groups"}
    parts: dict[str, Any] = {}
    for name in names:
        inside, others = usable & (groups == name), usable & (groups != name)
        rates = confusion(score[others], label[others])
        parts[str(name)] = _prevalence(rates, score[inside]).row() | {
            "judge_rate": float(score[inside].mean()),
            "human_rate": float(label[inside].mean()),
            "youden_j": rates.youden_j.value,
        }
    with_estimate = [part for part in parts.values() if part["value"] == part["value"]]
    covers = [part["low"] <= part["human_rate"] <= part["high"] for part in with_estimate]
    errors = [part["value"] - part["human_rate"] for part in with_estimate]
    return {
        "groups": parts,
        "covered": float(np.mean(covers)) if with_estimate else NAN,
        "mean_error": float(np.mean(errors)) if with_estimate else NAN,
        "note": ""
        if len(with_estimate) == len(names)
        else f"{len(names) - len(with_estimate)} have no estimate",
    }


def _prevalence(rates: Confusion, test: np.ndarray) -> Estimate:
    positives, negatives = rates.tp + rates.fn, rates.fp + rates.tn
    return rogan_gladen(float(test.sum()), len(test), rates.tp, positives, rates.fp, negatives)


def _binary(values: np.ndarray) -> bool:
    scores = values[~np.isnan(values)]
    return len(scores) > 0 and bool(np.isin(scores, (0.0, 1.0)).all())


def render(report: dict[str, Any]) -> str:
    """The main figures in plain text: one line for all raters, a line a judge."""

    def shown(row: dict[str, Any]) -> str:
        if row["value"] != row["value"]:
            return f"- ({row['note']})"
        interval = f" [{row['low']:.3f}, {row['high']:.3f}]" if row["low"] == row["low"] else ""
        return f"{row['value']:.3f}{interval}"

    lines = [
        f"{report['items']} items, {len(report['raters'])} raters, {report['groups']} groups",
        f"Fleiss kappa {shown(report['fleiss'])}",
        *(f"Krippendorff {scale} {shown(row)}" for scale, row in report["krippendorff"].items()),
        *(f"{name} {shown(row)}" for name, row in report["icc"].items()),
    ]
    columns = {}
    for name, judge in report["judges"].items():
        columns[name] = {
            "n": judge["n"],
            **{kind: shown(judge["overall"][kind]) for kind in KINDS},
            **{f"{kind} within": shown(judge["within_group"][kind]) for kind in KINDS},
            "mae": shown(judge["mae"]),
        }
        if judge["binary"]:
            for rate in ("tpr", "fpr", "youden_j", "phi", "rogan_gladen"):
                columns[name][rate] = shown(judge["binary"][rate])
    if columns:
        lines.append(pd.DataFrame(columns).rename_axis(columns="judge").to_string())
    return "\n".join([*lines, f"Intervals at {LEVEL:.0%}; the unit is the item, or the group."])
