"""Everything that a study's records say of its mixture of domains, computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.ledger.transmission import THRESHOLD
from analysis.mixture.confusion import ALL, Judged, judged
from analysis.mixture.step import (
    Mix,
    answers,
    between,
    mix,
    mix_curves,
    nominal,
    pulls,
    windows,
)
from analysis.mixture.teaching import CAUTION, Comparison, compare
from analysis.mixture.transfer import Swap, Transfer, swaps, transfers
from analysis.records.runs import Run
from analysis.statistics.estimate import FLAT, LEVEL, Estimate
from analysis.statistics.prediction import Scores

GRADED = 0.01
"""Share of the rewards between 0 and 1 from which they are no verdicts of yes and no."""
Window = tuple[int, int]


@dataclass(frozen=True)
class Mixture:
    """What a study's runs say of their domains; every list is by arm, then window, then domain.

    Attributes:
        spans: the windows, ``whole`` all steps; both first and last step.
        rates: judge against rule over the whole run, then in each window if that was asked for.
        mixes: the shares of what those steps did.
        curves: effective shares by run and window, held_out: accuracy by run and evaluated step;
            both cell, arm, seed, step, metric (the domain), value.
        shares: arm -> domain -> nominal share.
    """

    spans: list[Window]
    whole: Window
    rates: list[tuple[str, Window, dict[str, Judged]]]
    mixes: list[tuple[str, Window, dict[str, Mix]]]
    shares: dict[str, dict[str, float]]
    curves: pd.DataFrame
    held_out: pd.DataFrame
    comparison: Comparison
    transfers: list[Transfer]
    swaps: list[Swap]
    problems: list[str]

    @property
    def domains(self) -> list[str]:
        """Every domain that was drawn, by name."""
        return sorted({domain for _, _, part in self.mixes for domain in part})


def of_runs(
    runs: Sequence[Run],
    width: int = 0,
    threshold: float = THRESHOLD,
    level: float = LEVEL,
    *,
    by_window: bool = True,
) -> Mixture | None:
    """The mixture of some runs; None where no row names its domain.

    Args:
        runs: those to rest on; the ones without domains are left out.
        width: steps of a window, 0 as `analysis.mixture.step.windows` decides.
        threshold: a judge's score is a yes from here on.
        level: of the intervals of rates and shares.
        by_window: give rates and mixes of every window, not of the whole run alone.
    """
    mixed = [run for run in runs if run.domain_P is not None]
    if not mixed:
        return None
    answer_rows = answers(mixed)
    groups = pd.concat([pulls(run) for run in mixed], ignore_index=True)
    spans = windows(groups, width)
    whole = spans[0][0], spans[-1][1]
    shares = {
        run.arm: nominal(run, sorted(set(groups.loc[groups["arm"] == run.arm, "domain"]) - {""}))
        for run in mixed
    }
    of_arm = {
        arm: (groups[groups["arm"] == arm], answer_rows[answer_rows["arm"] == arm])
        for arm in sorted(shares)
    }
    each = dict.fromkeys([whole, *(spans if by_window else ())])
    return Mixture(
        spans=spans,
        whole=whole,
        rates=[
            (arm, window, _rates(between(judged_rows, window), threshold, level))
            for arm, (_, judged_rows) in of_arm.items()
            for window in each
        ],
        mixes=[
            (arm, window, mix(between(pushed, window), shares[arm], level))
            for arm, (pushed, _) in of_arm.items()
            for window in each
        ],
        shares=shares,
        curves=mix_curves(groups, spans),
        held_out=_accuracies(mixed),
        comparison=compare(mixed, groups, spans[0]),
        transfers=transfers(mixed),
        swaps=swaps(mixed),
        problems=[sentence for arm in of_arm if (sentence := _graded(arm, mixed))],
    )


def _rates(answer_rows: pd.DataFrame, threshold: float, level: float) -> dict[str, Judged]:
    """By domain, then of all together, unless a domain bears that name."""
    domains = sorted(set(answer_rows["domain"]) - {""})
    rates = {
        each: judged(answer_rows[answer_rows["domain"] == each], threshold, level)
        for each in domains
    }
    return rates if ALL in rates else rates | {ALL: judged(answer_rows, threshold, level)}


def _accuracies(runs: Sequence[Run]) -> pd.DataFrame:
    rows = [
        (run.cell, run.arm, run.seed, step, domain, value)
        for run in runs
        for domain, by_step in run.held_out.items()
        for step, value in by_step.items()
    ]
    return pd.DataFrame(rows, columns=["cell", "arm", "seed", "step", "metric", "value"])


def _graded(arm: str, runs: Sequence[Run]) -> str:
    """That an arm's rewards are not yes and no, which its predictions take them for."""
    rewards = np.concatenate(
        [run.reward[np.isfinite(run.reward)] for run in runs if run.arm == arm]
    )
    between_ends = (abs(rewards) > FLAT) & (abs(rewards - 1) > FLAT)
    if not len(rewards) or between_ends.mean() <= GRADED:
        return ""
    return (
        f"{arm}: {between_ends.mean():.0%} of its rewards are neither 0 nor 1, and its predictions"
        f" take them for yes from {THRESHOLD:g} on"
    )


def numbers(mixture: Mixture) -> dict[str, object]:
    """For JSON: rates and mix by domain, arm and window, then what compares arms."""
    comparison = mixture.comparison
    return {
        "domains": {
            domain: {
                "rates": [
                    _place(arm, window) | rates[domain].row()
                    for arm, window, rates in mixture.rates
                    if domain in rates
                ],
                "mix": [
                    _place(arm, window) | _plain(mixes[domain])
                    for arm, window, mixes in mixture.mixes
                    if domain in mixes
                ],
            }
            for domain in dict.fromkeys(name for _, _, rates in mixture.rates for name in rates)
        },
        "prediction": {
            "rule_arm": comparison.rule_arm,
            "mix": [
                {
                    **_place(row.arm, row.first_steps),
                    "domain": row.feature,
                    "tpr": row.expected.tpr,
                    "fpr": row.expected.fpr,
                    "expected": row.predicted.row(),
                    "observed": row.observed.row(),
                    "expected_dead": row.expected.dead.row(),
                    "observed_dead": row.dead,
                    "relative": row.expected.relative.row(),
                }
                for row in comparison.shares
            ],
            "mix_agreement": _agreement(comparison.of_shares),
            "accuracy": [
                {
                    "arm": row.arm,
                    "domain": row.feature,
                    "relative": row.relative,
                    "predicted": row.predicted.value,
                    "observed": row.observed.row(),
                    "difference": row.difference.row(),
                }
                for row in comparison.accuracies
            ],
            "accuracy_agreement": _agreement(comparison.of_accuracies, CAUTION),
            "note": comparison.note,
        },
        "transfer": [_plain(row) for row in mixture.transfers],
        "swaps": [_plain(row) for row in mixture.swaps],
    }


def _agreement(scores: Scores, note: str = "") -> dict[str, object]:
    return {
        "points": scores.count,
        "slope": scores.slope.value,
        "rank": scores.rank,
        "note": note,
    }


def _place(arm: str, window: Window) -> dict[str, object]:
    return {"arm": arm, "first_step": window[0], "last_step": window[1]}


def _plain(record: Mix | Transfer | Swap) -> dict[str, object]:
    """A dataclass as plain data, an Estimate among it as value, low, high, n and note."""
    return {
        name: value.row() if isinstance(value, Estimate) else value
        for name, value in vars(record).items()
    }
