"""A judge against the truth, by domain: counts, rates with intervals, and whether they differ.

Answers to one item (in a study: to one prompt) are not independent. Every interval and the test
are over items; `docs/tables.md` names their sources.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import optimize, stats

from analysis.display.markup import with_interval
from analysis.ledger.transmission import THRESHOLD
from analysis.probes.levels import phi_interval
from analysis.records.frames import NAMELESS, rollouts_frame
from analysis.statistics.bootstrap import FEWEST
from analysis.statistics.estimate import LEVEL, NAN, Estimate, around, ratio_se
from analysis.statistics.proportions import (
    Confusion,
    auc,
    constant,
    normal,
    pooled_share,
    youden_j,
)
from study.errors import UserError
from study.screen import visible

ALL = "all"
"""The name of all domains together."""
ROUNDING = 1e-9
ONE_CLASS = "truth has one class only"


@dataclass(frozen=True)
class Judged(Confusion):
    """A judge's yes and no against the truth over answers of several items.

    ``n`` answers have a truth; ``unscored`` of them have no score of the judge and are in no rate.
    ``without_truth`` is not among the n.
    """

    auc: Estimate
    leniency: Estimate
    """Share of yes of the judge minus that of the truth."""
    n: int
    unscored: int
    without_truth: int
    items: int
    """Items of the answers that have both."""

    def row(self) -> dict[str, object]:
        """For JSON: counts first, then each rate as value, low, high and note."""
        counts = ("n", "unscored", "without_truth", "items", "tp", "fp", "fn", "tn")
        ends = ("value", "low", "high", "note")
        return {name: getattr(self, name) for name in counts} | {
            name: {end: getattr(rate, end) for end in ends}
            for name, rate in vars(self).items()
            if isinstance(rate, Estimate)
        }


@dataclass(frozen=True)
class Differ:
    """A test that a rate is the same in all domains: chi-squared with ``df`` degrees of freedom."""

    statistic: float = NAN
    df: int = 0
    p: float = NAN


@dataclass(frozen=True)
class RatesDiffer(Differ):
    """TPR and FPR together, and each alone; ``items`` are the units."""

    tpr: Differ = Differ()
    fpr: Differ = Differ()
    items: int = 0
    note: str = ""


def judged(answers: pd.DataFrame, threshold: float = THRESHOLD, level: float = LEVEL) -> Judged:
    """Counts, TPR, FPR, J, phi, AUC and leniency of a judge.

    TPR and FPR have Wilson's interval at the effective number of answers
    (`analysis.statistics.proportions.pooled_share`), J Newcombe's of the two with their
    correlation, phi a bootstrap over items, AUC Obuchowski's clustered form of DeLong's, leniency
    the t interval of a ratio of sums over items. A rate that the data cannot give is NaN.

    Args:
        answers: columns item (any kind), judge and truth (numbers, NaN is missing). A truth is a
            yes from .5 on, a score from ``threshold`` on.
        threshold: see above.
        level: of the intervals.
    """
    with_truth = answers[answers["truth"].notna()]
    scored = with_truth[with_truth["judge"].notna()]
    score = scored["judge"].to_numpy(dtype=float)
    good, passed = scored["truth"].to_numpy(dtype=float) >= THRESHOLD, score >= threshold
    codes, names = pd.factorize(scored["item"], use_na_sentinel=False)
    tables_N_4 = np.stack(
        [passed & good, passed & ~good, ~passed & good, ~passed & ~good], axis=1
    ).astype(int)
    tp, fp, fn, tn = (int(count) for count in tables_N_4.sum(axis=0))
    sums = [
        np.stack([np.bincount(codes, part, len(names)) for part in (passed & side, side)], axis=1)
        for side in (good, ~good)
    ]
    tpr, fpr = (pooled_share(each, level) for each in sums)
    j = replace(youden_j(tpr, fpr, _correlation(*sums)), note="")
    if min(tpr.n, fpr.n) == 0:
        j = Estimate(NAN, n=len(scored), note=ONE_CLASS, level=level)
    phi = phi_interval(tables_N_4, codes, level)
    if np.isnan(phi.value):
        phi = replace(phi, note="judge or truth has one value only")
    elif np.isnan(phi.low):
        few = len(names) < FEWEST
        why = f"fewer than {FEWEST} items" if few else "no spread between items"
        phi = replace(phi, note=f"{why}: no interval")
    return Judged(
        tp=tp,
        fp=fp,
        fn=fn,
        tn=tn,
        tpr=tpr,
        fpr=fpr,
        youden_j=j,
        phi=phi,
        auc=_auc(score, good, codes, level),
        leniency=_leniency(passed.astype(float) - good, codes, level),
        n=len(with_truth),
        unscored=len(with_truth) - len(scored),
        without_truth=len(answers) - len(with_truth),
        items=len(names),
    )


def rates_differ(answers: pd.DataFrame, threshold: float = THRESHOLD) -> RatesDiffer:
    """Tests that TPR and FPR are the same in all domains, over items.

    A score test (Rao's) of both rates at once, its variance that of sums over items, each rate
    centred at its pooled value: cluster-robust as in Liang and Zeger (1986, Biometrika 73, 13-22)
    and Boos (1992, The American Statistician 46, 327-333). A domain without answers of a class has
    no say on that class's rate. NaN for fewer than two domains or ten items, and where the judge
    says the same to all.

    Args:
        answers: as in `judged`, with domain, in which "" is none: such a row is left out.
        threshold: as in `judged`.
    """
    scored = answers[answers["truth"].notna() & answers["judge"].notna() & answers["domain"].ne("")]
    codes, items = pd.factorize(scored["item"], use_na_sentinel=False)
    domain, domains = pd.factorize(scored["domain"])
    if len(domains) < 2:
        return RatesDiffer(items=len(items), note="needs answers of two domains")
    if len(items) < FEWEST:
        return RatesDiffer(items=len(items), note=f"fewer than {FEWEST} items: no test")
    good = scored["truth"].to_numpy(dtype=float) >= THRESHOLD
    passed = (scored["judge"].to_numpy(dtype=float) >= threshold).astype(float)
    moves, few = [], False
    for side in (good, ~good):
        counts = np.bincount(domain[side], minlength=len(domains))
        # without a spread the mean's rounding must not look like one
        one_value = constant(passed[side])
        residual = np.where(
            side & (not one_value), passed - passed[side].sum() / max(side.sum(), 1), 0
        )
        by_item = np.zeros((len(items), len(domains)))
        np.add.at(by_item, (codes, domain), residual)
        by_item -= by_item.sum(axis=1, keepdims=True) * counts / max(counts.sum(), 1)
        by_item = by_item[:, counts > 0]
        moves.append(by_item[:, :-1])
        few |= bool((counts < FEWEST).any())
    tests = [_score_test(each) for each in (np.concatenate(moves, axis=1), *moves)]
    notes = [f"a domain has fewer than {FEWEST} answers of a class: p is rough"] if few else []
    joint, tpr, fpr = tests
    if joint.df == 0:
        notes = ["the judge gives the same score to all informative answers"]
    return RatesDiffer(
        statistic=joint.statistic,
        df=joint.df,
        p=joint.p,
        tpr=tpr,
        fpr=fpr,
        items=len(items),
        note="; ".join(notes),
    )


def by_domain(
    answers: pd.DataFrame, threshold: float = THRESHOLD, level: float = LEVEL
) -> tuple[dict[str, Judged], RatesDiffer]:
    """`judged` of each domain in order of the names, then of `ALL`, and `rates_differ`.

    Answers with the domain "" are in `ALL` only. Raises UserError: a domain that is named `ALL`.
    """
    named = answers[answers["domain"].ne("")]
    parts = dict(list(named.groupby("domain", sort=True)))
    if ALL in parts:
        raise UserError(
            f"A domain is named {ALL!r}, the name of all domains together. Give it another name."
        )
    rates = {str(name): judged(part, threshold, level) for name, part in parts.items()}
    return rates | {ALL: judged(answers, threshold, level)}, rates_differ(answers, threshold)


def recorded(study_dir: Path) -> pd.DataFrame:
    """Every rollout of a study as an answer, in the columns that `by_domain` takes, and by_judge,
    the name of the judge that scored it. Items are prompts, whichever cells drew them.

    ``frame.attrs["problems"]`` says what could not be read. Raises UserError: no rollouts.
    """
    columns = ["prompt_id", "domain", "judge_score", "truth"]
    rollouts = rollouts_frame(study_dir, columns)
    rollouts = rollouts[rollouts["judge"].ne(NAMELESS)]
    if rollouts.empty:
        raise UserError(
            f"{study_dir} has no recorded rollouts of a judge yet. Run the study first, or type"
            " table=FILE."
        )
    frame = pd.DataFrame(
        {
            "item": rollouts["prompt_id"],
            "domain": rollouts["domain"].astype(object).fillna("").astype("str"),
            "judge": rollouts["judge_score"],
            "truth": rollouts["truth"],
            "by_judge": rollouts["judge"].astype("str"),
        }
    )
    frame.attrs["problems"] = rollouts.attrs["problems"]
    return frame


def report(
    answers: pd.DataFrame, threshold: float = THRESHOLD, level: float = LEVEL
) -> tuple[dict[str, object], list[str]]:
    """What `by_domain` says, for JSON and as lines of text; where by_judge names several judges,
    of all together and then, as ``judges``, of each. Raises UserError: as `by_domain`."""
    pooled = by_domain(answers, threshold, level)
    result, lines = _numbers(*pooled), _render(*pooled)
    if "by_judge" in answers and answers["by_judge"].nunique() > 1:
        of_judges = {
            str(name): by_domain(part, threshold, level)
            for name, part in answers.groupby("by_judge", sort=True)
        }
        result["judges"] = {name: _numbers(*rates) for name, rates in of_judges.items()}
        for name, rates in of_judges.items():
            lines += [f"\n{visible(name)}", *_render(*rates)]
    return result, [*lines, f"\nIntervals at {level:.3g}; the unit is the item."]


def _numbers(rates: dict[str, Judged], differ: RatesDiffer) -> dict[str, object]:
    """What `by_domain` found, for JSON."""
    return {
        "domains": {name: each.row() for name, each in rates.items()},
        "rates_differ": {
            name: vars(value) if isinstance(value, Differ) else value
            for name, value in vars(differ).items()
        },
    }


def _render(rates: dict[str, Judged], differ: RatesDiffer) -> list[str]:
    """The table, a line a domain, then the test and what is missing."""
    names = ("n", "unscored", "tp", "fp", "fn", "tn")
    lines = {}
    for domain, each in rates.items():
        measures = {"TPR": each.tpr, "FPR": each.fpr, "J": each.youden_j}
        measures |= {"phi": each.phi, "AUC": each.auc}
        lines[visible(domain)] = {name: getattr(each, name) for name in names} | {
            name: with_interval(rate) for name, rate in measures.items()
        }
    text = [pd.DataFrame(lines).T.rename_axis(index="domain").reset_index().to_string(index=False)]
    if np.isfinite(differ.p):
        parts = [
            f"{name} p = {part.p:.3g} (chi2 {part.statistic:.2f}, df {part.df})"
            for name, part in (("both", differ), ("TPR", differ.tpr), ("FPR", differ.fpr))
            if np.isfinite(part.p)
        ]
        text.append(f"Rates differ between domains, over {differ.items} items: {'; '.join(parts)}.")
    if differ.note:
        text.append(f"Test of the domains: {differ.note}.")
    if missing := rates[ALL].without_truth:
        total = missing + rates[ALL].n
        text.append(f"Without a truth, and so not in n: {missing} of {total}.")
    return text


def _correlation(true_C_2: np.ndarray, false_C_2: np.ndarray) -> float:
    """Of the estimates of two rates whose credits lie in the same clusters; 0 where they do not."""
    a, b = (
        sums[:, 0] - sums[:, 1] * (sums[:, 0].sum() / max(sums[:, 1].sum(), 1))
        for sums in (true_C_2, false_C_2)
    )
    size = float((a @ a) * (b @ b)) ** 0.5
    return float(a @ b) / size if size > 0 else 0.0


def _leniency(gap: np.ndarray, codes: np.ndarray, level: float) -> Estimate:
    """Mean gap, its interval over items cut at -1 and 1."""
    if not len(gap):
        return Estimate(NAN, note="no answers", level=level)
    sums = np.stack([np.bincount(codes, gap), np.bincount(codes)], axis=1)
    se, items = ratio_se(sums), len(sums)
    if not se > ROUNDING:
        why = "one item" if items == 1 else "no spread between items"
        return Estimate(gap.mean(), n=len(gap), note=f"{why}: no interval", level=level)
    half = float(stats.t.ppf((1 + level) / 2, items - 1)) * se
    return replace(around(gap.mean(), half, len(gap), "", ends=(-1.0, 1.0)), level=level)


def _auc(score: np.ndarray, good: np.ndarray, codes: np.ndarray, level: float) -> Estimate:
    """AUC over items. Where no item differs from another its interval is Newcombe's, for as many
    answers of each class as there are items of it."""
    if len(score) and constant(score) and 0 < good.sum() < len(good):
        area = Estimate(0.5, 0.5, 0.5, len(score), "item", "every score is the same", level=level)
    else:
        area = auc(score, good.astype(float), codes, level)
    width = area.high - area.low
    if np.isnan(width) or width > ROUNDING:
        return area
    items = (len(np.unique(codes[side])) for side in (good, ~good))
    return replace(area, **_newcombe(area.value, *items, level))


def _newcombe(area: float, positives: int, negatives: int, level: float) -> dict[str, float]:
    """Ends of the interval that inverts (area - a)^2 = z^2 V(a), V of Hanley and McNeil with both
    sizes at their mean (Newcombe 2006, Statistics in Medicine 25, 559-573, method 5)."""
    z, mean = normal(level), (positives + negatives) / 2

    def excess(a: float) -> float:
        inner = 1 + (mean - 1) * ((1 - a) / (2 - a) + a / (1 + a))
        return (a - area) ** 2 - z**2 * a * (1 - a) * inner / (positives * negatives)

    # at an area of 0 or 1 V is 0, and a = area a root that is no end
    low = optimize.brentq(excess, 0.0, area - ROUNDING) if area > ROUNDING else area
    high = optimize.brentq(excess, area + ROUNDING, 1.0) if area < 1 - ROUNDING else area
    return {"low": float(low), "high": float(high)}


def _score_test(moves_C_K: np.ndarray) -> Differ:
    """That the sums of K columns over C clusters are all 0 but for chance."""
    clusters = len(moves_C_K)
    variance = moves_C_K.T @ moves_C_K * clusters / (clusters - 1)
    df = int(np.linalg.matrix_rank(variance, hermitian=True)) if variance.size else 0
    if df == 0:
        return Differ()
    total = moves_C_K.sum(axis=0)
    statistic = float(total @ np.linalg.pinv(variance, hermitian=True) @ total)
    return Differ(statistic, df, float(stats.chi2.sf(statistic, df)))
