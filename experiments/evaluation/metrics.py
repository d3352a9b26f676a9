"""What graded answers to a set come to: accuracy and what stands beside it, with intervals.

Every metric is a mean over rows, of a row's mean over its samples where it has several. An answer
that is missing, or that no rule could grade, is left out and counted; it is never a wrong one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np

from analysis.statistics.estimate import Estimate
from analysis.statistics.proportions import clustered_share, pooled_share, wilson, youden_j
from study.tasks.mixture import DOMAINS
from study.truth import Score
from study.truth.item import Item
from study.truth.score import columns
from study.truth.votes import ballot

PASS_AT = (5, 10, 50, 100)
PASSED = ("code", "math")
"""Domains whose answers are right or wrong by execution or by value, so that one of k can pass."""
MAJORITY_AT = (8, 16, 32, 64)
THRESHOLD = 0.5
"""Score of a judge from which it calls an answer right."""


Line = dict[str, bool | float | str | None]
"""A line of a file of items."""


@dataclass(frozen=True)
class Answer:
    """One answer to one row."""

    item: Item
    sample: int
    score: Score | None
    """None where the rule could not be run."""
    text: str | None = ""
    """Without its thinking; None where it was cut off before it began."""
    tokens: int | None = None
    verdict: float | None = None
    """The judge's score; None without a judge, and where it gave none."""

    @property
    def record(self) -> Line:
        """A line of the file of items."""
        line: Line = {"id": self.item.id, "sample": self.sample}
        if self.score is None:
            reason = "the rule could not be run"
            return line | missing("unscored", reason)
        return line | columns(self.score)


def missing(outcome: str, detail: str) -> Line:
    """The columns of an answer without a score."""
    empty = dict.fromkeys(("correct", "score", "extracted"))
    return {**empty, "outcome": outcome, "detail": detail}


@dataclass(frozen=True)
class Vote:
    """What a vote needs of one answer."""

    ballot: str | None
    """As `study.truth.votes.ballot` has it."""
    correct: bool


@dataclass
class Measured:
    """The metrics of one set."""

    estimates: dict[str, Estimate] = field(default_factory=dict)
    rows: int = 0
    """Rows with an answer that was graded."""

    @property
    def metrics(self) -> dict[str, float]:
        """Name of each metric -> its value."""
        return {name: estimate.value for name, estimate in self.estimates.items()}

    @property
    def intervals(self) -> dict[str, list[float]]:
        """Name of each metric -> the two ends of its 95 % interval."""
        return {name: [each.low, each.high] for name, each in self.estimates.items()}


def measure(graded: Sequence[Answer], dataset: str, domain: str, method: str | None) -> Measured:
    """The metrics of the answers to one set; accuracy is NaN where none was graded.

    ``pass@k`` is there for code and mathematics where each row has k graded samples, ``maj@k`` for
    all but code where each has k; of the method sc also the vote of all samples that every row has.
    """
    rows = by_row(graded)
    least = min((len(answers) for answers in rows), default=0)

    def means(name: str, answerable: Sequence[bool] = (True, False)) -> Estimate:
        selected = [answers for answers in rows if answers[0].item.answerable in answerable]
        scores = [[each.score for each in answers if each.score] for answers in selected]
        values = [[{**each.values, "correct": each.correct} for each in row] for row in scores]
        return rate([[float(each.get(name, 0.0)) for each in row] for row in values])

    estimates = {"accuracy": means("correct")}
    if any("f1" in each.score.values for answers in rows for each in answers if each.score):
        estimates["f1"] = means("f1")
    if dataset == "squad2":
        for name, of in (("HasAns", True), ("NoAns", False)):
            if any(answers[0].item.answerable is of for answers in rows):
                exact, f1 = means("correct", [of]), means("f1", [of])
                estimates |= {f"{name}_exact": exact, f"{name}_f1": f1}
    if domain in PASSED:
        for k in (k for k in PASS_AT if k <= least):
            estimates[f"pass@{k}"] = rate([[pass_at(k, votes_of(answers))] for answers in rows])
    if domain != "code":  # programs do not vote
        sizes = {k for k in MAJORITY_AT if k <= least}
        sizes |= {least} if method == "sc" and least > 1 else set()
        for k in sorted(sizes):
            estimates[f"maj@{k}"] = majority(list(map(votes_of, rows)), k)
    return Measured(estimates, len(rows))


def by_row(graded: Sequence[Answer]) -> list[list[Answer]]:
    """The answers with a score, row by row, in the order of their samples."""
    rows: dict[str, list[Answer]] = {}
    for answer in graded:
        if answer.score is not None:
            rows.setdefault(answer.item.id, []).append(answer)
    return [sorted(answers, key=lambda answer: answer.sample) for answers in rows.values()]


def votes_of(answers: Sequence[Answer]) -> list[Vote]:
    """The answers as votes; none of them is without a score."""
    return [
        Vote(ballot(each.item.dataset, each.item.domain, each.score.extracted), each.score.correct)
        for each in answers
        if each.score
    ]


def rate(credits: Sequence[Sequence[float]]) -> Estimate:
    """Mean over R rows of the mean of each row's credits in [0, 1], with its 95 % interval.

    Wilson's where every row has one credit, else clustered by row
    (`analysis.statistics.proportions.clustered_share`). NaN for no rows.
    """
    means = [sum(row) / len(row) for row in credits]
    count = sum(map(len, credits))
    if count == len(means):
        return wilson(sum(means), count)
    return clustered_share(np.array([(mean, 1.0) for mean in means]), count)


def pass_at(k: int, votes: Sequence[Vote]) -> float:
    """The probability that one of k samples is right, drawn from n of which c are.

    1 - C(n - c, k) / C(n, k), unbiased (Chen et al. 2021, "Evaluating large language models trained
    on code", equation 1). Raises ValueError: fewer than k samples.
    """
    if len(votes) < k:
        raise ValueError(f"pass@{k} of {len(votes)} samples")
    wrong = sum(not vote.correct for vote in votes)
    return 1 - math.comb(wrong, k) / math.comb(len(votes), k)


def elected(votes: Sequence[Vote]) -> bool:
    """Whether the answer that occurs most often is right; of several, the one given first. A text
    without an answer has no vote, and a row without votes is wrong."""
    counts = Counter(vote.ballot for vote in votes if vote.ballot is not None)
    if not counts:
        return False
    ((winner, _),) = counts.most_common(1)
    return next(vote.correct for vote in votes if vote.ballot == winner)


def majority(rows: Sequence[Sequence[Vote]], k: int) -> Estimate:
    """Accuracy of the vote of the first k samples of each row."""
    return rate([[float(elected(votes[:k]))] for votes in rows])


def best_of(rows: Sequence[Sequence[Vote]]) -> Estimate:
    """Accuracy of one who picks a right sample of each row where there is any."""
    return rate([[float(any(vote.correct for vote in votes))] for votes in rows])


class Confusion(TypedDict):
    """The judge against the rule; see `judged`."""

    tp: int
    fp: int
    fn: int
    tn: int
    unscored: int
    cut_off: int
    tpr: float
    fpr: float
    youden_j: float
    accuracy: float
    ci95: dict[str, list[float]]


def judged(graded: Sequence[Answer]) -> Confusion:
    """The judge against the rule over the answers that the rule could grade.

    Counts, TPR and FPR over all of them (intervals as in `rate`), Youden's J of the two, and
    ``accuracy``: the share that the judge calls right, which is what would be reported without a
    rule. ``unscored`` has no verdict and enters none of them; neither does ``cut_off``, of which
    there was nothing to show to the judge.
    """
    table: Counter[tuple[bool, bool]] = Counter()
    calls: dict[str, dict[bool, list[float]]] = {}
    scored = [each for each in graded if each.score is not None and each.text is not None]
    for answer in scored:
        if answer.score is not None and answer.verdict is not None:
            passed, right = answer.verdict >= THRESHOLD, answer.score.correct
            table[passed, right] += 1
            calls.setdefault(answer.item.id, {True: [], False: []})[right].append(float(passed))
    tpr, fpr = (_pooled([row[right] for row in calls.values()]) for right in (True, False))
    accuracy = _pooled([row[True] + row[False] for row in calls.values()])
    rates = {"tpr": tpr, "fpr": fpr, "youden_j": youden_j(tpr, fpr), "accuracy": accuracy}
    return {
        "tp": table[True, True],
        "fp": table[True, False],
        "fn": table[False, True],
        "tn": table[False, False],
        "unscored": sum(each.verdict is None for each in scored),
        "cut_off": sum(each.score is not None and each.text is None for each in graded),
        "tpr": tpr.value,
        "fpr": fpr.value,
        "youden_j": rates["youden_j"].value,
        "accuracy": accuracy.value,
        "ci95": {name: [each.low, each.high] for name, each in rates.items()},
    }


def _pooled(credits: Sequence[Sequence[float]]) -> Estimate:
    """The share of all credits, with the interval of `rate`."""
    sums = [(sum(row), len(row)) for row in credits]
    return pooled_share(np.array(sums, dtype=float).reshape(-1, 2))


def domain_means(sets: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Domain -> mean of the accuracies of its sets; a set without one is left out."""
    domains: dict[str, list[float]] = {}
    for (domain, _), accuracy in _accuracies(sets).items():
        domains.setdefault(domain, []).append(accuracy)
    return {name: sum(accuracies) / len(accuracies) for name, accuracies in domains.items()}


def averages(sets: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Means of the accuracies of sets: over sets, over domains, and over domains by the weights of
    the mixture, `DOMAINS`. A set without an accuracy is left out, and the weights of the others are
    scaled up."""
    means, every = domain_means(sets), list(_accuracies(sets).values())
    if not means:
        return dict.fromkeys(("by_dataset", "by_domain", "weighted"))
    total = sum(DOMAINS[name] for name in means)
    return {
        "by_dataset": sum(every) / len(every),
        "by_domain": sum(means.values()) / len(means),
        "weighted": sum(DOMAINS[name] * mean for name, mean in means.items()) / total,
    }


def _accuracies(sets: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """(domain, set) -> its accuracy, over the rows of all of its splits."""
    sums: dict[tuple[str, str], list[float]] = {}
    for entry in sets:
        if entry["n"]:
            right = sums.setdefault((entry["domain"], entry["dataset"]), [0.0, 0.0])
            right[0] += entry["metrics"]["accuracy"] * entry["n"]
            right[1] += entry["n"]
    return {place: right / rows for place, (right, rows) in sums.items()}
