"""Agreement of rated scores: ``python -m analysis.ratings FILE out=JSON``.

FILE is a table (CSV, JSON lines, JSON array, Parquet) with the columns item, rater, role (judge |
human), score (a number, blank where missing) and optionally group. Each judge is compared with the
mean of the humans' scores of an item; where all scores are 0 or 1, with the humans' majority.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from study.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

MEANING = (
    "A rating table has the columns item, rater, role (judge | human), score (a number, blank "
    "where missing) and optionally group."
)


def read_ratings(path: Path) -> pd.DataFrame:
    """The checked table: item, rater, role, group str ("" if none), score float64.

    Raises:
        UserError: a missing column, a bad cell, a repeated (item, rater), a rater of two roles or
            an item of two groups.
    """
    return check_ratings(tables.read_table(path))


def check_ratings(frame: pd.DataFrame) -> pd.DataFrame:
    """The same for a table in memory; see `read_ratings`."""
    tables.require(frame, ("item", "rater", "role", "score"), MEANING)
    table = pd.DataFrame(
        {
            "item": tables.texts(frame, "item"),
            "rater": tables.texts(frame, "rater"),
            "role": tables.choices(frame, "role", ("judge", "human")),
            "score": tables.numbers(frame, "score"),
            "group": tables.texts(frame, "group", default="") if "group" in frame else "",
        }
    )
    tables.no_duplicates(frame, table, ("item", "rater"))
    for key, column in (("rater", "role"), ("item", "group")):
        several = table.groupby(key)[column].nunique()
        if (several > 1).any():
            name = several.index[several.to_numpy() > 1][0]
            given = sorted(set(table.loc[table[key] == name, column]))
            raise UserError(
                f"{frame.attrs.get('path', 'The table')}: {key} {name!r} has more than one "
                f"{column}: {', '.join(one or '(blank)' for one in given)}. Give it one."
            )
    return table


def agreement_report(table: pd.DataFrame) -> dict[str, Any]:
    """Everything that a rating table can say, with NaN and a note where it cannot.

    Returns:
        ``items``, ``raters``; ``fleiss``, ``krippendorff`` (by level), ``icc`` (by name) over all
        raters; the same over ``humans`` and ``judges_among`` themselves; ``pairs`` of raters with
        kappas; ``judges`` by name, see `_judge`.
    """
    roles = table.drop_duplicates("rater").set_index("rater")["role"].sort_index()
    wide = table.pivot(index="item", columns="rater", values="score").reindex(columns=roles.index)
    # a table without a group column has no groups, not one group
    groups = table.drop_duplicates("item").set_index("item")["group"].reindex(wide.index)
    humans, judges = (list(roles.index[roles == role]) for role in ("human", "judge"))
    found: dict[str, Any] = {
        "items": len(wide),
        "groups": int((groups[groups != ""]).nunique()),
        "raters": {
            str(name): {
                "role": str(role),
                "scored": int(wide[name].notna().sum()),
                "missing": int(wide[name].isna().sum()),
            }
            for name, role in roles.items()
        },
        **_family(wide.to_numpy()),
        "humans": _family(wide[humans].to_numpy()),
        "judges_among": _family(wide[judges].to_numpy()),
        "pairs": [_pair(wide, a, b) for a, b in combinations(wide.columns, 2)],
    }
    truth = wide[humans].mean(axis=1) if humans else wide[[]].sum(axis=1).map(lambda _: NAN)
    binary = _binary(wide[humans].to_numpy()) if humans else False
    found["judges"] = {
        str(name): _judge(wide[name].to_numpy(), truth.to_numpy(), groups.to_numpy(), binary)
        for name in judges
    }
    return found


def _family(ratings: np.ndarray) -> dict[str, Any]:
    return {
        "fleiss": fleiss_kappa(ratings).row(),
        "krippendorff": {scale: krippendorff_alpha(ratings, scale).row() for scale in SCALES},
        "icc": {name: one.row() for name, one in icc_family(ratings).items()},
    }


def _pair(wide: pd.DataFrame, a: str, b: str) -> dict[str, Any]:
    x, y = wide[a].to_numpy(), wide[b].to_numpy()
    return {
        "a": a,
        "b": b,
        "kappa": cohen_kappa(x, y).row(),
        "kappa_linear": cohen_kappa(x, y, "linear").row(),
        "kappa_quadratic": cohen_kappa(x, y, "quadratic").row(),
    }


def _judge(
    score: np.ndarray, truth: np.ndarray, groups: np.ndarray, binary: bool
) -> dict[str, Any]:
    """A judge (N,) against the human mean (N,): correlations, MAE, and rates if binary."""
    both = ~(np.isnan(score) | np.isnan(truth))
    labelled = groups != ""
    within: dict[str, Any] = {}
    for kind in KINDS:
        one = within_groups(score[labelled], truth[labelled], groups[labelled], kind)
        within[kind] = one.estimate.row() | {
            "groups_constant": one.constant,
            "groups_small": one.small,
        }
    error = mean_interval(np.abs(score - truth)[both].tolist(), "item")
    found: dict[str, Any] = {
        "n": int(both.sum()),
        "overall": {kind: correlation(score, truth, kind).row() for kind in KINDS},
        "within_group": within,
        "mae": error.row(),
    }
    if not binary:
        return found | {"auc": None, "binary": None}
    label = np.where(np.isnan(truth) | (truth == 0.5), np.nan, (truth > 0.5).astype(float))
    found["auc"] = auc(score, label).row()
    found["binary"] = _rates(score, label, truth, groups) if _binary(score) else None
    return found


def _rates(
    score: np.ndarray, label: np.ndarray, truth: np.ndarray, groups: np.ndarray
) -> dict[str, Any]:
    """A binary judge against the humans' majority, and the true share that its pass rate means.

    Rogan-Gladen tests the items that no human labelled; where every item is labelled the test is
    on the calibration items themselves, which returns the humans' own share and is noted.
    """
    rates = confusion(score, label)
    found = _rates_dict(rates)
    found["halved"] = int((truth == 0.5).sum())  # the humans are split: no majority, left out
    unlabelled = np.isnan(label) & ~np.isnan(score) & ~(truth == 0.5)
    labelled = ~np.isnan(label) & ~np.isnan(score)
    own = unlabelled if unlabelled.any() else labelled
    estimate = _prevalence(rates, score[own])
    share = float(label[labelled].mean()) if labelled.any() else NAN
    found["rogan_gladen"] = estimate.row() | {
        "test": "items without a human label" if unlabelled.any() else "the calibration items",
        "judge_rate": float(score[own].mean()) if own.any() else NAN,
        "human_rate": share,
    }
    if not unlabelled.any() and labelled.any():
        circular = "every item has a human label, so this is their own share"
        found["rogan_gladen"]["note"] = "; ".join(filter(None, [estimate.note, circular]))
    found["leave_one_group_out"] = _left_out(score, label, groups)
    return found


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
        inside = usable & (groups == name)
        rates = confusion(score[usable & ~inside], label[usable & ~inside])
        estimate = _prevalence(rates, score[inside])
        parts[str(name)] = estimate.row() | {
            "judge_rate": float(score[inside].mean()),
            "human_rate": float(label[inside].mean()),
            "youden_j": rates.youden_j.value,
        }
    known = [one for one in parts.values() if one["value"] == one["value"]]
    held = [one["low"] <= one["human_rate"] <= one["high"] for one in known]
    errors = [one["value"] - one["human_rate"] for one in known]
    return {
        "groups": parts,
        "covered": float(np.mean(held)) if held else NAN,
        "mean_error": float(np.mean(errors)) if errors else NAN,
        "note": "" if len(known) == len(names) else f"{len(names) - len(known)} have no estimate",
    }


def _prevalence(rates: Confusion, test: np.ndarray) -> Estimate:
    return rogan_gladen(
        float(test.sum()),
        len(test),
        rates.tp,
        rates.tp + rates.fn,
        rates.fp,
        rates.fp + rates.tn,
    )


def _rates_dict(rates: Confusion) -> dict[str, Any]:
    return {
        "tp": rates.tp,
        "fp": rates.fp,
        "fn": rates.fn,
        "tn": rates.tn,
        "tpr": rates.tpr.row(),
        "fpr": rates.fpr.row(),
        "youden_j": rates.youden_j.row(),
        "phi": rates.phi.row(),
    }


def _binary(values: np.ndarray) -> bool:
    given = values[~np.isnan(values)]
    return len(given) > 0 and bool(np.isin(given, (0.0, 1.0)).all())


def render(found: dict[str, Any]) -> str:
    """The main figures in plain text: one line for all raters, a line a judge."""

    def shown(one: dict[str, Any]) -> str:
        if one["value"] != one["value"]:
            return f"- ({one['note']})"
        interval = f" [{one['low']:.3f}, {one['high']:.3f}]" if one["low"] == one["low"] else ""
        return f"{one['value']:.3f}{interval}"

    lines = [
        f"{found['items']} items, {len(found['raters'])} raters, {found['groups']} groups",
        f"Fleiss kappa {shown(found['fleiss'])}",
        *(f"Krippendorff {scale} {shown(one)}" for scale, one in found["krippendorff"].items()),
        *(f"{name} {shown(one)}" for name, one in found["icc"].items()),
    ]
    rows = []
    for name, one in found["judges"].items():
        row: dict[str, Any] = {"judge": name, "n": one["n"]}
        row |= {kind: shown(one["overall"][kind]) for kind in KINDS}
        row |= {f"{kind} within": shown(one["within_group"][kind]) for kind in KINDS}
        row["mae"] = shown(one["mae"])
        if one["binary"]:
            names = ("tpr", "fpr", "youden_j", "phi", "rogan_gladen")
            row |= {key: shown(one["binary"][key]) for key in names}
        rows.append(row)
    if rows:
        lines.append(pd.DataFrame(rows).set_index("judge").T.to_string())
    return "\n".join([*lines, f"Intervals at {LEVEL:.0%}; the unit is the item, or the group."])
