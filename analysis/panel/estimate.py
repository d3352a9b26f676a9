"""What several judges' scores are worth as one: how many independent votes they amount to, and how
much of the acting judge's bias they leave.

Judges that looked on (``shadow=[...]``) or scored the rollouts again (`judges.replay`) say what a
panel of them would have said, so nobody trains to find out. docs/interventions.md has what these
predictions came to in arms that were trained by a panel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from analysis.crossjudge.estimate import within_groups
from analysis.drift.base import settings_of
from analysis.ledger.estimate import advantage_parts, shares
from analysis.ledger.judge_error import Parts, half_of_prompts, taken_apart
from analysis.ledger.transmission import centred
from analysis.records.runs import Run, on_each_core
from analysis.statistics.estimate import FLAT, NAN, NO_ESTIMATE, Estimate, known_mean
from analysis.statistics.intervals import mean_interval
from study.config.marks import under
from study.rewards.corrections.panel import together

ALONE, WEIGHTED = "alone", "weighted"
HOWS = ("mean", "median", "worst", WEIGHTED)
"""Ways to make one score of several. All but `WEIGHTED` can train: ``correction.panel=mean``."""
PANEL, SHADOWS, NO_PANEL = "correction.panel", "shadow_judges", "none"
"""Settings that make a panel."""
Judges = tuple[str, ...]


@dataclass(frozen=True)
class Panel:
    """What some judges' scores would be as one, over an arm's runs; intervals are Student's t.

    Attributes:
        judges: their names, the judge that trained the arm first.
        how: one of `HOWS`, or `ALONE` for that judge as it is.
        votes: independent judges of the same error that would err as little in the mean: J over
            1 + (J - 1) x the mean correlation of their errors within groups, given truth and row.
        with_truth: correlation of that score with the truth within groups.
        bias_share: the ledger's bias share of advantages made of that score. It is of all squares,
            so it also grows where noise falls: read it beside ``with_truth``.
        fall: of the bias share, from the acting judge alone, paired by run.
        observed: the bias share in another arm, whose reward was made so of the same judges.
        runs: that have a bias share.
    """

    arm: str
    judges: Judges
    how: str
    votes: Estimate
    with_truth: Estimate
    bias_share: Estimate
    fall: Estimate
    observed: Estimate
    runs: int


class Numbers(NamedTuple):
    """What one run says of a panel; see `Panel`."""

    votes: float
    with_truth: float
    bias_share: float


OfRun = dict[tuple[Judges, str], Numbers]


def worth(runs: Sequence[Run]) -> list[Panel]:
    """Panels of each arm that more judges than its own scored: its judge alone, with each other
    one, with all, and with all but one; arms that one judge trained come first. Nothing is said of
    an arm without a truth.

    Args:
        runs: with their replays as shadows (`analysis.records.replays.with_replays`).
    """
    known = [run for run in runs if np.isfinite(run.truth).any()]
    if not any(run.shadows for run in known):
        return []
    size = sum(run.features.nbytes for run in known)
    measured = list(zip(known, on_each_core(of_run, known, size), strict=True))
    trained: dict[_Trained, dict[str, list[float]]] = {}
    by_arm: dict[str, list[OfRun]] = {}
    for run, (panels, share) in measured:
        trained.setdefault(_Trained.of(run), {}).setdefault(run.arm, []).append(share)
        by_arm.setdefault(run.arm, []).append(panels)
    trained_by = {run.arm: _Trained.of(run) for run in known}
    rows = []
    for arm in sorted(by_arm, key=lambda arm: trained_by[arm].how != ALONE):
        of_runs = by_arm[arm]
        for key in (key for key in of_runs[0] if all(key in each for each in of_runs)):
            judges, how = key
            numbers = [each[key] for each in of_runs]
            alone = [each[judges[:1], ALONE].bias_share for each in of_runs]
            shares_left = [each.bias_share for each in numbers]
            same = trained.get(_Trained(frozenset(judges), how, trained_by[arm].rest), {})
            observed = [share for other, of_arm in same.items() if other != arm for share in of_arm]
            falls = [a - left for a, left in zip(alone, shares_left, strict=True)]
            rows.append(
                Panel(
                    arm=arm,
                    judges=judges,
                    how=how,
                    votes=mean_interval([each.votes for each in numbers]),
                    with_truth=mean_interval([each.with_truth for each in numbers]),
                    bias_share=mean_interval(shares_left),
                    fall=NO_ESTIMATE if how == ALONE else mean_interval(falls),
                    observed=mean_interval(observed) if observed else NO_ESTIMATE,
                    runs=int(np.isfinite(shares_left).sum()),
                )
            )
    return rows


def of_run(run: Run, hows: Sequence[str] = HOWS) -> tuple[OfRun, float]:
    """One run's panels by judges and ``hows``, and the bias share of the score that made its
    rewards. No panels where no other judge scored it; the median of two is their mean."""
    scores = {run.acting: run.judge, **run.shadows}
    corrected = None if run.corrected is None else bias_share(run, run.corrected)
    if len(scores) < 2:
        return {}, bias_share(run, run.judge) if corrected is None else corrected
    parts = {judge: taken_apart(run, each) for judge, each in scores.items()}
    errors = {judge: part.of["bias"] + part.of["noise"] for judge, part in parts.items()}
    alone = bias_share(run, run.judge, parts[run.acting])
    panels = {((run.acting,), ALONE): Numbers(1.0, within_groups(run.judge, run.truth), alone)}
    for judges in memberships(list(scores)):
        votes = effective_votes([errors[judge] for judge in judges])
        stacked = np.stack([scores[judge] for judge in judges])
        for how in hows:
            if how == "median" and len(judges) == 2:
                continue
            as_one = weighted(run, stacked) if how == WEIGHTED else together(stacked, how)
            with_truth = within_groups(as_one, run.truth)
            panels[judges, how] = Numbers(votes, with_truth, bias_share(run, as_one))
    return panels, alone if corrected is None else corrected


def memberships(judges: Sequence[str]) -> Iterator[Judges]:
    """The first judge with each other one, with all, and with all but one, each set once."""
    first, *others = judges
    sets = [[other] for other in others] + [others]
    sets += [[each for each in others if each != left_out] for left_out in others]
    yield from dict.fromkeys((first, *members) for members in sets if members)


def bias_share(run: Run, scores_P_G: np.ndarray, error: Parts | None = None) -> float:
    """Mean over steps of the ledger's bias share, were the reward these scores; NaN without a
    calibration. ``error`` is `taken_apart` of the scores, where it is at hand."""
    rewarded = replace(run, reward=scores_P_G, under={})
    parts = error or taken_apart(rewarded, scores_P_G)
    by_step = []
    for step in np.unique(run.step_P):
        here = run.step_P == step
        of_step = parts.where(here)
        in_advantages = advantage_parts(rewarded.where(here), of_step, run.scale)
        by_step.append(shares(of_step, in_advantages)["bias_share"])
    return known_mean(np.array(by_step))


def effective_votes(errors_J_P_G: Sequence[np.ndarray]) -> float:
    """J^2 over the sum of the J x J correlations within groups: J where errors have nothing in
    common, 1 where they are the same. NaN where one never errs, or where they cancel."""
    count = len(errors_J_P_G)
    total = count + 2 * sum(within_groups(*pair) for pair in combinations(errors_J_P_G, 2))
    return count**2 / total if total > FLAT else NAN


def weighted(run: Run, scores_J_P_G: np.ndarray) -> np.ndarray:
    """The weighted mean of scores that says most of the truth, (P, G): weights inverse to the
    covariance of errors, none below 0.

    They are least squares of the truth on the scores within groups: Cov(scores) = s s' Var(truth) +
    Cov(errors) makes those proportional to Cov(errors)^-1 s, s the scores' slopes on the truth.
    Either half of the prompts has the weights of the other, so no answer decides how it is scored.
    Where a judge gave no score the mean is that of the others. NaN where none gave one, and where
    none goes with the truth.
    """
    even = half_of_prompts(run)
    level = np.array([known_mean(scores) for scores in scores_J_P_G])[:, None, None]
    has_score = np.isfinite(scores_J_P_G)
    around = np.where(has_score, scores_J_P_G - level, 0.0)
    complete = has_score.all(axis=0) & np.isfinite(run.truth)
    out = np.full(run.truth.shape, np.nan)
    for half in (even, ~even):
        used = complete & ~half[:, None]
        scores_N_J = np.stack([centred(scores, used)[used] for scores in around], axis=1)
        weights = nnls(scores_N_J, centred(run.truth, used)[used])[0]
        total, present = (np.tensordot(weights, each, axes=1) for each in (around, has_score))
        mean = np.divide(total, present, out=np.full(total.shape, np.nan), where=present > 0)
        out[half] = mean[half]
    return out


@dataclass(frozen=True)
class _Trained:
    """What made a run's rewards: which judges' scores, how, and all that its cell is besides."""

    judges: frozenset[str]
    how: str
    rest: str

    @classmethod
    def of(cls, run: Run) -> _Trained:
        """Of one run; replays of it count for nothing."""
        how = str(run.identity.get(PANEL, NO_PANEL))
        looking_on = (
            str(value)
            for key, value in run.config.items()
            if key.startswith(f"{SHADOWS}.") and key.endswith(".name") and key.count(".") == 2
        )
        others = looking_on if how != NO_PANEL else ()
        rest = {
            key: value
            for key, value in settings_of(run.identity).items()
            if not under(key, (PANEL, SHADOWS))
        }
        # what a panel says is not what was paid where it was corrected besides
        corrected = any(under(key, ["correction"]) for key in rest)
        return cls(
            judges=frozenset({run.acting, *others}),
            how=ALONE if how == NO_PANEL else how,
            rest=f"{run.cell} alone" if corrected else repr(sorted(rest.items())),
        )
