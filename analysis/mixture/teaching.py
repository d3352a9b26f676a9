"""What a judge of a mixture will teach, predicted from its first steps and compared over arms.

In a domain where verdicts are yes or no and a prompt's answers are right with the chance p, they
are rewarded with the chance q = FPR + J p, by the rates of the judge. Were verdicts independent, a
group of G would be dead with the chance q^G + (1 - q)^G; where advantages are divided by the
group's sd, the sum of |A| is about 2 G sqrt(q (1 - q)), and what the group teaches of the truth,
Cov(A, truth), about J p (1 - p) / sqrt(q (1 - q)).

Two things keep that from being computed as it stands. The share of right answers among eight is a
noisy p, and a function of it is biased. And equal answers to a prompt have one verdict, so that a
group that has found the answer stands or falls together. Hence no p is put in: given the answers of
a group, each different one is passed with the chance TPR or FPR, and what the group does is
expected exactly (`outcomes`). Its mean over the groups that were drawn is unbiased for the mean
over prompts, whatever the distribution of p and however small G.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.ledger.transmission import THRESHOLD
from analysis.mixture.step import mix, nominal
from analysis.mixture.transfer import RULE, changes, taught_by
from analysis.records.runs import Run
from analysis.statistics.estimate import ENDS, NAN, NO_ESTIMATE, Estimate, around, ratio
from analysis.statistics.intervals import mean_interval, paired_difference, student
from analysis.statistics.prediction import Prediction, Scores, score
from study.rewards.advantages import EPS
from study.tasks.mix import realised

NO_SPREAD = 1e-18
"""A variance below this is 0 but for rounding."""
ROUNDING = 1e-9
"""What is taught below this is what rounding leaves of nothing, divided by `EPS`."""
STEP = 1e-4
"""Of the rates, for derivatives."""
CAUTION = (
    "The points of a study share its seeds and the rule's runs, and claims about accuracy need"
    " more than three seeds."
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
class AccuracyPrediction(Prediction):
    """Change of the held-out accuracy of a domain in an arm.

    What is predicted is ``relative`` times the rule's change, ``difference`` is observed minus
    predicted, paired by seed.
    """

    relative: float
    difference: Estimate


@dataclass(frozen=True)
class SharePrediction(Prediction):
    """A domain's effective share in an arm: expected from the first steps, observed in the steps
    after them, and so its dead groups."""

    first_steps: tuple[int, int]
    expected: Expected
    dead: float


@dataclass(frozen=True)
class Comparison:
    """Predictions of a study's arms beside what was observed."""

    shares: list[SharePrediction]
    accuracies: list[AccuracyPrediction]
    of_shares: Scores
    of_accuracies: Scores
    rule_arm: str | None
    note: str
    """Why no accuracy is predicted; empty where it is."""


def outcomes(
    count_P_G: np.ndarray, right_P_G: np.ndarray, tpr: float, fpr: float, scale: float | None = None
) -> np.ndarray:
    """What P groups are expected to do: sum of |A|, sum A t / n, chance to be dead, shape (P, 3).

    Exact, over all verdicts of the different answers of a group, each passed on its own. Advantages
    are those of `study.rewards.advantages.advantages`: divided by the group's sd, or by ``scale``.

    Args:
        count_P_G: how many rollouts gave each different answer, 0 for none; two at least a group.
        right_P_G: whether it is right.
        tpr, fpr: chance of a yes for a right and for a wrong answer.
    """
    passed = np.arange(int(count_P_G.sum(axis=1).max(initial=0)) + 1)
    chance = np.zeros((len(count_P_G), len(passed)))
    chance[:, 0] = 1
    right_passed = np.zeros_like(chance)
    # the chance of so many yes, and the right ones among them times it, answer by answer
    for count, right in zip(count_P_G.T[..., None], right_P_G.T[..., None], strict=True):
        rate = np.where(right, tpr, fpr)
        before = np.maximum(passed - count, 0)
        inside = passed >= count
        more = np.where(inside, np.take_along_axis(chance, before, axis=1), 0.0)
        rights = np.where(inside, np.take_along_axis(right_passed, before, axis=1), 0.0)
        right_passed = (1 - rate) * right_passed + rate * (rights + count * right * more)
        chance = (1 - rate) * chance + rate * more
    n = count_P_G.sum(axis=1, keepdims=True)
    right = (count_P_G * right_P_G).sum(axis=1, keepdims=True)
    spread = np.maximum(passed * (n - passed), 0) / n
    sd = np.sqrt(spread / (n - 1)) + EPS if scale is None else scale
    covariance = right_passed - chance * right * passed / n
    dead = chance[:, 0] + np.take_along_axis(chance, n, axis=1)[:, 0]
    return np.stack(
        [(chance * 2 * spread / sd).sum(axis=1), (covariance / sd).sum(axis=1) / n[:, 0], dead],
        axis=1,
    )


@dataclass(frozen=True)
class Drawn:
    """Groups as they were drawn: P of at least two rollouts that have reward and truth.

    ``count_P_G`` and ``right_P_G`` as in `outcomes`; ``yes_P_2`` counts the rollouts rewarded with
    .5 or more among the right and the wrong ones.
    """

    domain_P: np.ndarray
    prompt_P: np.ndarray
    count_P_G: np.ndarray
    right_P_G: np.ndarray
    yes_P_2: np.ndarray

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Drawn:
        """The groups of some runs that name their domain."""
        parts = [_drawn(run) for run in runs]
        width = max(part.count_P_G.shape[1] for part in parts)

        def wide(values_P_G: np.ndarray) -> np.ndarray:
            return np.pad(values_P_G, ((0, 0), (0, width - values_P_G.shape[1])))

        return cls(
            np.concatenate([part.domain_P for part in parts]),
            np.concatenate([part.prompt_P for part in parts]),
            np.concatenate([wide(part.count_P_G) for part in parts]),
            np.concatenate([wide(part.right_P_G) for part in parts]),
            np.concatenate([part.yes_P_2 for part in parts]),
        )

    def where(self, here: np.ndarray) -> Drawn:
        """The groups of which ``here``, shape (P,), is true."""
        return Drawn(*(values[here] for values in vars(self).values()))

    def shown_P_2(self) -> np.ndarray:
        """Right and wrong rollouts of each group."""
        right = (self.count_P_G * self.right_P_G).sum(axis=1)
        return np.stack([right, self.count_P_G.sum(axis=1) - right], axis=1)


def _drawn(run: Run) -> Drawn:
    assert run.domain_P is not None and run.prompt_P is not None
    has_both = np.isfinite(run.reward) & np.isfinite(run.truth)
    here = (has_both.sum(axis=1) > 1) & (run.domain_P != "")
    has_both, truth, reward = has_both[here], run.truth[here], run.reward[here]
    places = np.broadcast_to(np.arange(has_both.shape[1]), has_both.shape)
    text = places if run.text is None else run.text[here]
    right, yes = has_both & (truth >= THRESHOLD), has_both & (reward >= THRESHOLD)
    same = text[:, :, None] == text[:, None, :]
    same &= has_both[:, :, None] & has_both[:, None, :] & (right[:, :, None] == right[:, None, :])
    count = same.sum(axis=2) * (same.argmax(axis=2) == places)  # at the first of equal ones
    yes_P_2 = np.stack([(yes & right).sum(axis=1), (yes & ~right).sum(axis=1)], axis=1)
    return Drawn(run.domain_P[here], run.prompt_P[here], count, right, yes_P_2)


def expected(
    drawn: Drawn, weights: Mapping[str, float], scale: str = "group"
) -> dict[str, Expected]:
    """What the groups of some first steps let expect, by domain.

    The rates are those of the rewards (yes from .5 on) against the truth over these groups. The
    variance is that of a mean over prompts and of the rates' own error in it (delta method,
    prompts as clusters, factor C / (C - 1)), with t quantiles. Under ``batch`` scaling the sd is
    that of the pooled verdicts.

    Args:
        drawn: groups of runs of one arm.
        weights: each domain's share of the rows to come; those that are not known are as in
            ``drawn``.
        scale: ``trainer.scale_rewards``.
    """
    domains = sorted(set(drawn.domain_P.tolist()))
    shares = realised(drawn.domain_P.tolist())
    if all(weights.get(domain, NAN) > 0 for domain in domains):
        shares = {domain: weights[domain] for domain in domains}
    divided_by, by_rule = (
        {"group": None, "none": 1.0, "batch": _pooled_sd(passed, drawn.count_P_G)}[scale]
        for passed in (drawn.yes_P_2, drawn.shown_P_2()[:, 0])
    )
    means = {
        domain: _Means.of(drawn.where(drawn.domain_P == domain), divided_by, by_rule)
        for domain in domains
    }
    total = sum(shares[domain] * each.mean[0] for domain, each in means.items())
    pull, taught, dead, ruled = np.eye(4)
    result = {}
    for domain, each in means.items():
        effective, variance = NAN, NAN
        if total > 0:
            effective = shares[domain] * each.mean[0] / total
            variance = sum(
                ((float(other == domain) - effective) * shares[other] / total) ** 2
                * means[other].variance(pull)
                for other in means
            )
        units = len(each.moves_C)
        relative = NO_ESTIMATE
        if each.mean[3] > ROUNDING:
            value = float(each.mean[1] / each.mean[3])
            slope = (taught - value * ruled) / each.mean[3]
            relative = _interval(value, each.variance(slope), units, exact=True)
        fewest = min(len(other.moves_C) for other in means.values())
        result[domain] = Expected(
            tpr=each.tpr,
            fpr=each.fpr,
            effective=_interval(effective, variance, fewest, (0.0, 1.0)),
            dead=_interval(each.mean[2], each.variance(dead), units, (0.0, 1.0)),
            relative=relative,
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
    def of(cls, drawn: Drawn, scale: float | None, rule_scale: float | None) -> _Means:
        """The rates and means of a domain's groups, and how far each prompt moves the means."""
        yes, shown = drawn.yes_P_2.T, drawn.shown_P_2().T
        rates = [
            float(ratio(np.array([y.sum(), n.sum()]))) for y, n in zip(yes, shown, strict=True)
        ]
        at = np.nan_to_num(rates)  # a rate of answers that do not occur is not asked for
        groups = drawn.count_P_G, drawn.right_P_G
        here = outcomes(*groups, *at, scale)
        under_rule = outcomes(*groups, 1.0, 0.0, rule_scale)[:, 1:2]
        values = np.concatenate([here, under_rule], axis=1)
        moves = values - values.mean(axis=0)
        for which, (y, n) in enumerate(zip(yes, shown, strict=True)):
            if n.sum():
                at_step = at.copy()
                at_step[which] += STEP if at[which] < 0.5 else -STEP
                slope = (outcomes(*groups, *at_step, scale) - here) / (at_step - at)[which]
                moves[:, :3] += slope.mean(axis=0) * ((y - at[which] * n) / n.mean())[:, None]
        codes, prompts = pd.factorize(drawn.prompt_P)
        by_prompt = np.zeros((len(prompts), 4))
        np.add.at(by_prompt, codes, moves / len(moves))
        return cls(*rates, values.mean(axis=0), by_prompt)

    def variance(self, direction: np.ndarray) -> float:
        """Of the means along a direction; NaN for one prompt."""
        units = len(self.moves_C)
        moves = self.moves_C @ direction
        return units / (units - 1) * float(moves @ moves) if units > 1 else NAN


def _pooled_sd(passed: np.ndarray, has_both: np.ndarray) -> float:
    share = passed.sum() / max(has_both.sum(), 1)
    return float((share * (1 - share)) ** 0.5) + EPS


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
        groups: `analysis.mixture.step.pulls` of all of them.
        first: the steps that are predicted from, first and last.
    """
    by_arm = {run.arm: run for run in runs}
    teachers = {arm: taught_by(run) for arm, run in by_arm.items()}
    ruled = [arm for arm, by in teachers.items() if {*by.values()} == {RULE}]
    rule_arm = min(ruled, key=lambda arm: (-len(teachers[arm]), arm), default=None)
    shares = []
    for arm in sorted(by_arm):
        of_arm = groups[groups["arm"] == arm]
        begun = [
            run.where((first[0] <= run.step_P) & (run.step_P <= first[1]))
            for run in runs
            if run.arm == arm
        ]
        weights = nominal(by_arm[arm], sorted(set(of_arm["domain"]) - {""}))
        later = mix(of_arm[of_arm["step"] > first[1]])
        shares += [
            SharePrediction(
                cell="",
                arm=arm,
                feature=domain,
                observed=later[domain].effective if domain in later else NO_ESTIMATE,
                predicted=each.effective,
                first_steps=first,
                expected=each,
                dead=later[domain].dead if domain in later else NAN,
            )
            for domain, each in expected(Drawn.of(begun), weights, by_arm[arm].scale).items()
        ]
    note, accuracies = "", []
    if rule_arm is None:
        note = "no arm has the rule for every domain: add one with reward=rule"
    else:
        alike = [run for run in runs if list(teachers[run.arm]) == list(teachers[rule_arm])]
        accuracies = _accuracies(
            changes(alike),
            {(row.arm, row.feature): row.expected.relative.value for row in shares},
            rule_arm,
        )
        if not accuracies:
            note = "no other arm has a seed of the rule's with two evaluations: trainer.eval_steps"
    return Comparison(
        shares=shares,
        accuracies=accuracies,
        of_shares=score(shares),
        of_accuracies=score(accuracies),
        rule_arm=rule_arm,
        note=note,
    )


def _accuracies(
    by_key: Mapping[tuple[str, str], pd.Series],
    relative: Mapping[tuple[str, str], float],
    rule_arm: str,
) -> list[AccuracyPrediction]:
    """One for each other arm and domain that share a seed with the rule's arm."""
    rows = []
    for (arm, domain), change in sorted(by_key.items()):
        by_rule = by_key.get((rule_arm, domain))
        if arm == rule_arm or by_rule is None or (arm, domain) not in relative:
            continue
        shared = change.index.intersection(by_rule.index)
        if len(shared):
            predicted = relative[arm, domain] * by_rule.loc[shared]
            rows.append(
                AccuracyPrediction(
                    cell="",
                    arm=arm,
                    feature=domain,
                    observed=mean_interval(change.loc[shared].tolist(), "seed"),
                    predicted=Estimate(float(predicted.mean())),
                    relative=relative[arm, domain],
                    difference=paired_difference(change.loc[shared], predicted),
                )
            )
    return rows
