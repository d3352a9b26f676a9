"""What training in one domain does to the others: held-out accuracy by arm and domain.

The run is the unit, the seeds are replicates. Two arms that differ only in one domain, which the
judge rewards in one of them and the rule in the other, identify what that domain's judge does:
every domain's change is compared, paired by seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import fmean

import numpy as np
import pandas as pd

from analysis.records.runs import Run
from analysis.statistics.estimate import Estimate
from analysis.statistics.intervals import Paired, mean_interval, paired_difference

RULE = "rule"
_FREE = ("study", "seed", "arm")
"""Keys of a config in which runs of one comparison may differ."""
_REWARDED_BY = ("reward.name", "reward.truth_weight", "reward.domains")


@dataclass(frozen=True)
class Transfer:
    """Change of the held-out accuracy in ``tested`` of an arm, over seeds."""

    arm: str
    trained: dict[str, str]
    """Domain -> `RULE`, or the name of its judge."""
    tested: str
    change: Estimate


@dataclass(frozen=True)
class Swap:
    """Two arms alike but in ``swapped``, where ``judged`` has the judge and ``ruled`` the rule.

    ``change`` is that of the held-out accuracy in ``tested`` under the rule minus that under the
    judge, paired by seed.
    """

    swapped: str
    judged: str
    ruled: str
    tested: str
    change: Paired


def changes(runs: Sequence[Run]) -> dict[tuple[str, str], pd.Series]:
    """(arm, domain) -> last minus first held-out accuracy by seed; runs of one seed are averaged.

    A run that was evaluated once in a domain has no change there.
    """
    values: dict[tuple[str, str], dict[int, list[float]]] = {}
    for run in runs:
        for domain, by_step in run.held_out.items():
            if len(by_step) > 1:
                change = by_step[max(by_step)] - by_step[min(by_step)]
                of_arm = values.setdefault((run.arm, domain), {})
                of_arm.setdefault(run.seed, []).append(change)
    return {
        key: pd.Series({seed: fmean(of_seed) for seed, of_seed in sorted(values[key].items())})
        for key in sorted(values)
    }


def taught_by(run: Run) -> dict[str, str]:
    """Domain that the run trained -> `RULE`, or the name of its judge."""
    assert run.domain_P is not None
    name, judge = str(run.config.get("reward.name")), run.acting
    by_truth = name == "rule" or (
        name == "judge" and float(run.config.get("reward.truth_weight") or 0.0) == 1
    )
    of_all = RULE if by_truth else judge
    return {
        domain: of_all
        if name != "by-domain" or run.config.get(f"reward.domains.{domain}") == "judge"
        else RULE
        for domain in sorted(set(run.domain_P.tolist()) - {""})
    }


def transfers(runs: Sequence[Run]) -> list[Transfer]:
    """The matrix of what was trained (rows: arms) and what was tested, t intervals over seeds."""
    trained = {run.arm: taught_by(run) for run in runs if run.domain_P is not None}
    return [
        Transfer(arm, trained[arm], tested, mean_interval(by_seed.tolist(), "seed"))
        for (arm, tested), by_seed in changes(runs).items()
        if arm in trained
    ]


def swaps(runs: Sequence[Run]) -> list[Swap]:
    """Every pair of arms that differ only in that one domain's judge is the rule."""
    arms = {run.arm: run for run in runs if run.domain_P is not None}
    by_arm = changes(runs)
    result = []
    for judged, ruled in permutations(sorted(arms), 2):
        if (swapped := _swapped(arms[judged], arms[ruled])) is None:
            continue
        for tested in sorted({domain for _, domain in by_arm}):
            both = by_arm.get((judged, tested)), by_arm.get((ruled, tested))
            if both[0] is not None and both[1] is not None:
                difference = paired_difference(both[1], both[0])
                result.append(Swap(swapped, judged, ruled, tested, difference))
    return result


def _swapped(judged: Run, ruled: Run) -> str | None:
    """The one domain that the judge rewards in the first run and the rule in the second."""
    before, after = taught_by(judged), taught_by(ruled)
    if list(before) != list(after) or _rest(judged) != _rest(ruled):
        return None
    differing = [domain for domain in before if before[domain] != after[domain]]
    if len(differing) != 1 or after[differing[0]] != RULE:
        return None
    still_judged = any(teacher != RULE for teacher in after.values())
    if still_judged and _of_judge(judged) != _of_judge(ruled):
        return None
    return differing[0]


def _rest(run: Run) -> dict[str, object]:
    """What a run is beside its seed, its judge and who rewards what."""
    return {
        key: value
        for key, value in run.identity.items()
        if key not in _FREE and not key.startswith(("judge.", *_REWARDED_BY))
    }


def _of_judge(run: Run) -> dict[str, object]:
    return {key: value for key, value in run.identity.items() if key.startswith("judge.")}


def best_moved(rows: Sequence[Swap]) -> Mapping[tuple[str, str, str], str]:
    """(swapped, judged, ruled) -> the tested domain that moved most, of those with a change."""
    most: dict[tuple[str, str, str], Swap] = {}
    for row in rows:
        key = row.swapped, row.judged, row.ruled
        size = abs(row.change.value)
        if np.isfinite(size) and (key not in most or size > abs(most[key].change.value)):
            most[key] = row
    return {key: row.tested for key, row in most.items()}
