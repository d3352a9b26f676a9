"""Behaviours given up for others: one rises and another falls, beyond what any training does.

A judge that is cured of one bias may pay for another, and no audit on fixed texts shows it; the
rollouts do. Ordinary learning moves behaviours apart as well, so every run is compared with the
base arm's run of its seed. `analysis.crossjudge` prints what is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from analysis.drift.estimate import base_arm, feature_values, run_shifts
from analysis.records.runs import Run

LEAST = 0.25
"""SDs of first rollouts beyond the base arm, in every pair of runs, that count as moved."""
ALPHA = 0.05
"""Share of studies without any effect that may show a substitution."""
FEWEST_PAIRS = 3
"""With fewer a bias-free arm shows a substitution too often; see `false_alarm`."""


@dataclass(frozen=True)
class Substitution:
    """Two behaviours of one arm that moved apart beyond the base arm, in SDs of first rollouts.

    ``up`` and ``down`` are the smallest moves over the ``runs`` pairs. ``chance`` is that of any
    pair of behaviours as far apart in any of the ``arms`` compared, if all of them differed from
    the base arm by noise alone.
    """

    arm: str
    risen: str
    fallen: str
    up: float
    down: float
    runs: int
    base: str
    chance: float
    arms: int


def base_of(runs: Sequence[Run]) -> str | None:
    """The arm that others are compared with (`analysis.drift.estimate.base_arm`); None for a single
    arm."""
    undosed = [run.doses is not None and not any(run.doses.values()) for run in runs]
    arms = pd.DataFrame({"arm": [run.arm for run in runs], "undosed": undosed})
    return base_arm(arms) if len(arms) and arms["arm"].nunique() > 1 else None


def why_no_substitution(runs: Sequence[Run], base: str | None = None) -> str:
    """Why substitution cannot be told in these runs, as a sentence; empty where it can. ``base`` is
    as in `substitutions`."""
    base = base or base_of(runs)
    if base is None:
        return (
            "Substitution is not identified: there is one arm, and no baseline arm to compare it"
            " with."
        )
    effects_by_arm = _effects(_shifts(runs), base).values()
    if not any((shifts.count() >= FEWEST_PAIRS).any() for shifts in effects_by_arm):
        return (
            f"Substitution is not identified: no arm has {FEWEST_PAIRS} seeds in common with"
            f" {base} of which both shifts are known, and fewer show one by chance."
        )
    return ""


def substitutions(
    runs: Sequence[Run], min_shift_sd: float = LEAST, base: str | None = None
) -> list[Substitution]:
    """Arms in which one behaviour rose and another fell beyond the base arm, in every pair of runs.
    ``base`` names another arm to compare with.

    Shifts are those of a run minus those of the base arm's run of the same seed, in SDs of the
    feature within the first step. Each of the pairs, at least `FEWEST_PAIRS`, has to show
    ``min_shift_sd`` SDs or more, and by noise alone (`false_alarm`, over all arms) fewer than
    `ALPHA` of studies may show any as far apart. At .25 SD and 11 behaviours whose shifts scatter
    by .3 SD between runs, a bias-free arm shows any in .33 of studies with two pairs, .042 with
    three, .0037 with four and .0003 with five; ten such arms with three pairs in .35.
    `why_no_substitution` says why nothing can be told.
    """
    base = base or base_of(runs)
    if base is None:
        return []
    moved = _shifts(runs)
    within = moved.groupby("arm").var().mul(moved.groupby("arm").count() - 1)
    freedom = (moved.groupby("arm").count() - 1).clip(lower=0).sum()
    scatter = (within.sum() / freedom.where(freedom > 0)) ** 0.5
    compared = {}
    for arm, arm_effects in _effects(moved, base).items():
        effects = arm_effects.loc[:, arm_effects.count() >= FEWEST_PAIRS]
        if effects.shape[1]:
            compared[arm] = effects

    def chance(apart: float) -> float:
        """That any arm shows any pair of behaviours that far apart."""
        none = [
            1
            - false_alarm(
                *(column.to_numpy() for column in (scatter[effects.columns], effects.count())),
                *(apart, freedom[effects.columns].to_numpy()),
            )
            for effects in compared.values()
        ]
        return float(1 - np.prod(none))

    swaps = []
    for arm, effects in compared.items():
        pairs, risen, fallen = effects.count(), effects.min(), effects.max()
        for up in risen[risen >= min_shift_sd].sort_values(ascending=False).index:
            for down in fallen[fallen <= -min_shift_sd].sort_values().index:
                by_noise = chance(min(risen[up], -fallen[down]))
                if by_noise < ALPHA:
                    swaps.append(
                        Substitution(
                            *(arm, str(up), str(down), float(risen[up]), float(fallen[down])),
                            *(int(min(pairs[up], pairs[down])), base, by_noise, len(compared)),
                        )
                    )
    return swaps


def false_alarm(
    scatter_K: np.ndarray,
    pairs: int | np.ndarray,
    min_shift_sd: float = LEAST,
    freedom: float | np.ndarray = np.inf,
) -> float:
    """Chance that an arm without any effect shows a substitution, in closed form; NaN where no
    scatter is known.

    A pair's difference is normal with SD sqrt(2) times the scatter between runs, and behaviours
    are taken as independent: 1 - P(none rose) - P(none fell) + P(neither). A seed that moves both
    runs of a pair alike makes it rarer.

    Args:
        scatter_K: SD between runs of one arm of each behaviour's shift, in SDs of first rollouts;
            behaviours whose scatter is not known are left out.
        pairs: of runs, one number or one of each behaviour.
        freedom: degrees of freedom of the scatter, likewise: few make the tails those of Student.
    """
    scatter = np.asarray(scatter_K, dtype=float)
    finite = np.isfinite(scatter)
    if not finite.any():
        return float("nan")
    with np.errstate(divide="ignore"):
        in_one_pair = stats.t.sf(
            min_shift_sd / (2**0.5 * scatter[finite]),
            np.broadcast_to(freedom, scatter.shape)[finite],
        )
    every = in_one_pair ** np.broadcast_to(pairs, scatter.shape)[finite]
    return float(1 - 2 * np.prod(1 - every) + np.prod(1 - 2 * every))


def _shifts(runs: Sequence[Run]) -> pd.DataFrame:
    """Shift of every behaviour in SDs of first rollouts: rows (arm, seed), columns behaviours.

    The SD is the root mean square over runs, so that both runs of a pair are in one unit; a
    behaviour that no first rollout varies in has no column.
    """
    first = [run.at(run.step_P.min()).features.reshape(-1, len(run.names)) for run in runs]
    tables = [pd.DataFrame(z, columns=run.names) for run, z in zip(runs, first, strict=True)]
    sd = pd.DataFrame([table.var(ddof=0) for table in tables]).mean() ** 0.5
    table = run_shifts(runs, feature_values)
    wide = table.groupby(["arm", "seed", "metric"])["shift"].mean().unstack("metric")
    return wide.reindex(columns=list(sd.index[sd > 0])) / sd[sd > 0]


def _effects(moved: pd.DataFrame, base: str) -> dict[str, pd.DataFrame]:
    """Arm -> shifts less the base arm's of the same seed, rows seeds; NaN where one is missing."""
    arms = moved.index.unique("arm")
    return {str(arm): moved.loc[arm] - moved.loc[base] for arm in arms if arm != base}
