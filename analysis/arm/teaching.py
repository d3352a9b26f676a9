"""What a judge of a mixture will teach, predicted from its first steps and compared over arms.

In a domain where verdicts are yes or no and a prompt's answers are right with the chance p, they
are rewarded with the chance q = FPR + J p, by the rates of the judge. A group of G is dead with the
chance q^G + (1 - q)^G; where advantages are divided by the group's sd, the sum of |A| is about
2 G sqrt(q (1 - q)), and what the group teaches of the truth, Cov(A, truth), about
J p (1 - p) / sqrt(q (1 - q)). All three are wanted as means over prompts, and p is not known: the
share of right answers among eight is a noisy p, and a function of it is biased. So it is not put in
their place. Given that k of the G rollouts are right, the number of yes is Binomial(k, TPR) +
Binomial(G - k, FPR), hence each expectation given k is a finite sum (`tables`). As k is itself
Binomial(G, p), the mean of these over groups is unbiased for the mean over prompts, whatever the
distribution of p and however small G.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special

from analysis.arm.transfer import RULE, changes, taught_by
from analysis.records.runs import Run
from analysis.statistics.agreement import correlation
from analysis.statistics.bootstrap import ratio
from analysis.statistics.estimate import ENDS, NAN, NO_ESTIMATE, Estimate, around
from analysis.statistics.intervals import line, mean_interval, paired_difference, student
from analysis.step.mixture import between, mix, nominal
from study.rewards.advantages import EPS

NO_SPREAD = 1e-18
"""A variance below this is 0 but for rounding."""
STEP = 1e-4
"""Of the rates, for derivatives."""
FEWEST_POINTS = 3
CAUTION = (
    "The points of a study share its seeds and the rule's runs, and claims about accuracy want more"
    " than three seeds."
)


@dataclass(frozen=True)
class Expected:
    """What is expected of one domain; intervals are over prompts.

    ``effective`` is its share of the sum of |A|, ``dead`` the share of its groups that push
    nothing, ``relative`` what a group teaches of the truth, in units of what it would under the
    rule: 1 is as much, 0 nothing, below 0 the opposite.
    """

    tpr: float
    fpr: float
    effective: Estimate
    dead: Estimate
    relative: Estimate


@dataclass(frozen=True)
class Point:
    """Held-out accuracy of a domain in an arm: the change predicted beside the one observed.

    ``predicted`` is ``relative`` times the rule's change, ``difference`` observed minus predicted,
    paired by seed.
    """

    arm: str
    domain: str
    relative: float
    predicted: float
    observed: Estimate
    difference: Estimate


@dataclass(frozen=True)
class MixPoint:
    """A domain's effective share and dead groups in an arm: expected from the first steps, beside
    what came in the steps after them."""

    arm: str
    domain: str
    first_steps: tuple[int, int]
    expected: Expected
    effective: Estimate
    dead: float


@dataclass(frozen=True)
class Agreement:
    """How points predicted and observed agree; ``slope`` is of observed on predicted, 1 where the
    prediction has the right size, ``rank`` Spearman's correlation."""

    points: int
    slope: float
    rank: float
    note: str


@dataclass(frozen=True)
class Comparison:
    """Predictions of a study's arms beside what was observed."""

    mixes: list[MixPoint]
    points: list[Point]
    of_mix: Agreement
    of_accuracy: Agreement
    rule_arm: str | None
    note: str
    """Why no accuracy is predicted; empty where it is."""


def tables(group: int, tpr: float, fpr: float, scale: float | None = None) -> np.ndarray:
    """Expectations given that k of G rollouts are right, shape (3, G + 1), k = 0..G.

    The rows are the sum of |A|, sum A t / G, and the chance that all verdicts are alike. Advantages
    are those of `study.rewards.advantages.advantages`: divided by the group's sd, or by ``scale``.
    """
    passed = np.arange(group + 1)
    hits, alarms = _binomial(group, tpr), _binomial(group, fpr)
    # chance of so many yes given so many right, and the sum of right ones among them times that
    chance, right_passed = (
        np.stack(
            [np.convolve(table[k, : k + 1], alarms[group - k, : group - k + 1]) for k in passed]
        )
        for table in (hits, hits * passed)
    )
    spread = passed * (group - passed) / group
    sd = np.sqrt(spread / (group - 1)) + EPS if scale is None else scale
    beyond = right_passed - chance * np.outer(passed, passed) / group
    dead = chance[:, 0] + chance[:, -1]
    return np.stack([(chance * 2 * spread / sd).sum(1), (beyond / sd).sum(1) / group, dead])


def _binomial(most: int, p: float) -> np.ndarray:
    """Probability of k successes of n, both 0..most, shape (n, k); 0 for k above n."""
    n, k = np.ogrid[: most + 1, : most + 1]
    left = np.maximum(n - k, 0)
    ways = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(left + 1)
    return np.where(k <= n, np.exp(ways + special.xlogy(k, p) + special.xlog1py(left, -p)), 0.0)


def expected(
    groups: pd.DataFrame, weights: Mapping[str, float], scale: str = "group"
) -> dict[str, Expected]:
    """What the groups of some first steps let expect, by domain.

    The rates are those of the rewards (yes from .5 on) against the truth over these groups. The
    variance is that of a mean over prompts and of the rates' own error in it (delta method,
    prompts as clusters, factor C / (C - 1)), with t quantiles. Under ``batch`` scaling the sd is
    that of the pooled verdicts.

    Args:
        groups: rows of `analysis.step.mixture.pulls`; groups with fewer than two rollouts that
            have reward and truth are left out.
        weights: each domain's share of the rows to come; those that are not known are as in
            ``groups``.
        scale: ``trainer.scale_rewards``.
    """
    told = groups[groups["domain"].ne("") & (groups["told"] > 1)]
    parts = {domain: told[told["domain"] == domain] for domain in sorted(set(told["domain"]))}
    drawn = {domain: len(part) / len(told) for domain, part in parts.items()}
    known = all(weights.get(domain, NAN) > 0 for domain in parts)
    share = {domain: weights[domain] if known else drawn[domain] for domain in parts}
    divided_by = {"group": None, "none": 1.0, "batch": _pooled_sd(told)}[scale]
    by_rule = told.assign(yes_right=told["right"], yes_wrong=0)
    rule_divided_by = _pooled_sd(by_rule) if scale == "batch" else divided_by
    means = {domain: _Means.of(part, divided_by, rule_divided_by) for domain, part in parts.items()}
    total = sum(share[domain] * each.mean[0] for domain, each in means.items())
    result = {}
    for domain, each in means.items():
        effective = share[domain] * each.mean[0] / total if total > 0 else NAN
        variance = sum(
            ((float(other == domain) - effective) * share[other] / total) ** 2
            * means[other].variance(np.array([1.0, 0.0, 0.0, 0.0]))
            for other in means
            if total > 0
        )
        units = min(len(other.moves_C) for other in means.values())
        by_rule_mean = each.mean[3]
        relative = float(ratio(each.mean[[1, 3]]))
        slope = np.array([0.0, 1.0, 0.0, -relative]) / by_rule_mean if by_rule_mean else None
        result[domain] = Expected(
            *(each.tpr, each.fpr),
            effective=_interval(effective, variance, units, (0.0, 1.0)),
            dead=_interval(
                *(each.mean[2], each.variance(np.array([0.0, 0.0, 1.0, 0.0]))),
                *(len(each.moves_C), (0.0, 1.0)),
            ),
            relative=NO_ESTIMATE
            if slope is None
            else _interval(relative, each.variance(slope), len(each.moves_C), exact=True),
        )
    return result


@dataclass(frozen=True)
class _Means:
    """Means over a domain's groups of pull, teaching, dead, and teaching under the rule: (4,), and
    by how much each prompt moves them, (C, 4)."""

    tpr: float
    fpr: float
    mean: np.ndarray
    moves_C: np.ndarray

    @classmethod
    def of(cls, part: pd.DataFrame, scale: float | None, rule_scale: float | None) -> _Means:
        told, right = part["told"].to_numpy(), part["right"].to_numpy()
        yes = part["yes_right"].to_numpy(), part["yes_wrong"].to_numpy()
        shown = right, told - right
        rates = [
            float(y.sum() / n.sum()) if n.sum() else NAN for y, n in zip(yes, shown, strict=True)
        ]
        tpr, fpr = np.nan_to_num(rates)  # a rate of answers that do not occur is not asked for
        ends = [(tpr, fpr), _aside(tpr, fpr, 0), _aside(tpr, fpr, 1)]
        values = np.zeros((len(part), 4))
        slopes = np.zeros((2, len(part), 4))
        for size in np.unique(told):
            rows = told == size
            here, *beside = (tables(int(size), *end, scale)[:, right[rows]].T for end in ends)
            values[rows, :3] = here
            values[rows, 3] = tables(int(size), 1.0, 0.0, rule_scale)[1, right[rows]]
            for slope, moved, end, at in zip(slopes, beside, ends[1:], (0, 1), strict=True):
                slope[rows, :3] = (moved - here) / (end[at] - ends[0][at])
        mean = values.mean(axis=0)
        moves = values - mean
        for slope, rate, y, n in zip(slopes, (tpr, fpr), yes, shown, strict=True):
            if n.sum():
                moves += slope.mean(axis=0) * ((y - rate * n) / n.mean())[:, None]
        codes, prompts = pd.factorize(part["prompt"])
        by_prompt = np.zeros((len(prompts), 4))
        np.add.at(by_prompt, codes, moves / len(part))
        return cls(*rates, mean, by_prompt)

    def variance(self, direction: np.ndarray) -> float:
        """Of the means along a direction; NaN for one prompt."""
        units = len(self.moves_C)
        moves = self.moves_C @ direction
        return units / (units - 1) * float(moves @ moves) if units > 1 else NAN


def _aside(tpr: float, fpr: float, which: int) -> tuple[float, float]:
    """The rates, one of them a little nearer to the middle."""
    rates = [float(tpr), float(fpr)]
    rates[which] += STEP if rates[which] < 0.5 else -STEP
    return rates[0], rates[1]


def _pooled_sd(groups: pd.DataFrame) -> float:
    passed = (groups["yes_right"] + groups["yes_wrong"]).sum() / groups["told"].sum()
    return float((passed * (1 - passed)) ** 0.5) + EPS


def _interval(
    value: float,
    variance: float,
    units: int,
    ends: tuple[float, float] = ENDS,
    exact: bool = False,
) -> Estimate:
    """``exact`` says that a variance of 0 is one, and not that nothing varied by chance."""
    if units < 2:
        return Estimate(float(value), n=units, unit="prompt", note="one prompt: no interval")
    if not exact and variance < NO_SPREAD:
        return Estimate(float(value), n=units, unit="prompt", note="no spread: no interval")
    half = float(student(units - 1)) * variance**0.5
    return around(float(value), half, units, "prompt", ends=ends)


def compare(runs: Sequence[Run], groups: pd.DataFrame, first: tuple[int, int]) -> Comparison:
    """Predictions from the first steps of each arm, beside what was observed.

    The rule's arm is the one with the most domains, the first by name, of those in which the rule
    rewards all of them. Its change is the unit in which that of an arm with the same domains is
    predicted.

    Args:
        runs: those that have domains.
        groups: `analysis.step.mixture.pulls` of all of them.
        first: the steps that are predicted from, first and last.
    """
    by_arm = {run.arm: run for run in runs}
    teachers = {arm: taught_by(run) for arm, run in by_arm.items()}
    ruled = [arm for arm, by in teachers.items() if {*by.values()} == {RULE}]
    rule_arm = min(ruled, key=lambda arm: (-len(teachers[arm]), arm), default=None)
    mixes = []
    for arm in sorted(by_arm):
        of_arm = groups[groups["arm"] == arm]
        begun = between(of_arm, first)
        weights = nominal(by_arm[arm], sorted(set(of_arm["domain"]) - {""}))
        later = mix(of_arm[of_arm["step"] > first[1]])
        mixes += [
            MixPoint(
                *(arm, domain, first, each),
                later[domain].effective if domain in later else NO_ESTIMATE,
                later[domain].dead if domain in later else NAN,
            )
            for domain, each in expected(begun, weights, by_arm[arm].scale).items()
        ]
    relative = {(row.arm, row.domain): row.expected.relative.value for row in mixes}
    note = ""
    if rule_arm is None:
        note = "no arm has the rule for every domain: add one with reward=rule"
    points = []
    if rule_arm is not None:
        alike = [run for run in runs if list(teachers[run.arm]) == list(teachers[rule_arm])]
        points = _points(changes(alike), relative, rule_arm)
    if not note and not points:
        note = "no other arm has a seed of the rule's with two evaluations: trainer.eval_steps"
    return Comparison(
        *(mixes, points),
        agreement([(row.expected.effective.value, row.effective.value) for row in mixes]),
        agreement([(row.predicted, row.observed.value) for row in points], CAUTION),
        *(rule_arm, note),
    )


def _points(
    by_key: Mapping[tuple[str, str], pd.Series],
    relative: Mapping[tuple[str, str], float],
    rule_arm: str,
) -> list[Point]:
    """One point for each other arm and domain that share a seed with the rule's arm."""
    points = []
    for (arm, domain), change in sorted(by_key.items()):
        by_rule = by_key.get((rule_arm, domain))
        if arm == rule_arm or by_rule is None or (arm, domain) not in relative:
            continue
        shared = change.index.intersection(by_rule.index)
        if len(shared):
            predicted = relative[arm, domain] * by_rule.loc[shared]
            points.append(
                Point(
                    *(arm, domain, relative[arm, domain], float(predicted.mean())),
                    mean_interval(change.loc[shared].tolist(), "seed"),
                    paired_difference(change.loc[shared], predicted),
                )
            )
    return points


def agreement(pairs: Sequence[tuple[float, float]], note: str = "") -> Agreement:
    """Slope and rank correlation of (predicted, observed) points that have both numbers."""
    both = np.array([pair for pair in pairs if np.isfinite(pair).all()]).reshape(-1, 2)
    slope = NAN
    if len(both) >= FEWEST_POINTS and np.ptp(both[:, 0]) > 0:
        slope = line(both[:, 0], both[:, 1]).slope.value
    rank = correlation(both[:, 0], both[:, 1], "spearman").value
    return Agreement(len(both), slope, rank, note)
