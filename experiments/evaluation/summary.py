"""What graded answers come to: a mean over prompts, what it rests on, and what it could be.

A sample without a verdict is missing: it is left out, counted with its reason, and the bounds say
what the mean would be were all of them as bad, or as good, as they can be.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from study.errors import UserError
from study.rows import Row
from study.truth.rubric import rubric_score
from study.verdict import Outcome, Verdict, mean_score

RESAMPLES = 1000
FEW = 12
"""A tag with more values than these names single criteria, and no kind of them."""


@dataclass(frozen=True)
class Graded:
    """One answer of one row and the votes on it; ``score`` is their mean, None without any."""

    row: Row
    answer: str | None
    votes: tuple[Verdict, ...]

    @property
    def score(self) -> float | None:
        """The mean score of the votes; None without any."""
        return mean_score(self.votes)


class Summary(TypedDict):
    """What graded answers come to; see `summary`."""

    score: float
    interval: list[float]
    """95 %, by the bootstrap over prompts."""
    bootstrap_sd: float
    bounds: list[float]
    """The score were all that is missing as bad, and as good, as it can be."""
    unit: str
    n_prompts: int
    n_samples: int
    n_unscored: int
    n_unscored_prompts: int
    n_empty: int
    n_truncated_thinking: int
    unscored: dict[str, int]
    """By outcome."""
    always_met: float
    never_met: float
    criteria: dict[str, dict[str, float | None]]


def summary(graded: Sequence[Graded], clip: bool, seed: int, signed: bool) -> Summary:
    """Mean over samples, then over prompts, with its bootstrap, its bounds and two constants.

    Raises UserError where no sample has a score.

    Args:
        graded: every sample of every prompt.
        clip: whether the mean is clipped to [0, 1], as HealthBench does.
        seed: of the bootstrap over prompts.
        signed: whether a sample may score below 0.
    """
    by_row: dict[str, list[Graded]] = defaultdict(list)
    for sample in graded:
        by_row[sample.row.prompt_id].append(sample)
    means = []
    for samples in by_row.values():
        if scores := [sample.score for sample in samples if sample.score is not None]:
            means.append(sum(scores) / len(scores))
    unscored = Counter(
        str(vote.outcome)
        for sample in graded
        for vote in sample.votes
        if vote.outcome is not Outcome.scored
    )
    if not means:
        why = next((vote.reason for sample in graded for vote in sample.votes), "nothing was asked")
        raise UserError(
            "The judge scored no answer, so there is no result. Its verdicts say why:"
            f" {dict(unscored)}; the first one: {why}"
        )
    draw = random.Random(seed)
    boots = sorted(
        _clipped(sum(draw.choices(means, k=len(means))) / len(means), clip)
        for _ in range(RESAMPLES)
    )
    centre = sum(boots) / len(boots)
    rows = [samples[0].row for samples in by_row.values()]
    always_met, never_met = (
        _clipped(
            sum(_score(row, [label] * len(row.criteria), signed) for row in rows) / len(rows), clip
        )
        for label in ("met", "not_met")
    )
    return {
        "score": _clipped(sum(means) / len(means), clip),
        "interval": [boots[int(0.025 * RESAMPLES)], boots[int(0.975 * RESAMPLES) - 1]],
        "bootstrap_sd": (sum((x - centre) ** 2 for x in boots) / len(boots)) ** 0.5,
        "bounds": [_clipped(_bound(by_row, end, signed), clip) for end in ("worst", "best")],
        "unit": "prompt",
        "n_prompts": len(means),
        "n_samples": len(graded),
        "n_unscored": sum(sample.score is None for sample in graded),
        "n_unscored_prompts": len(by_row) - len(means),
        "n_empty": sum(sample.answer == "" for sample in graded),
        "n_truncated_thinking": sum(sample.answer is None for sample in graded),
        "unscored": dict(unscored),
        "always_met": always_met,
        "never_met": never_met,
        "criteria": _shares(graded),
    }


def _clipped(value: float, clip: bool) -> float:
    return min(max(value, 0.0), 1.0) if clip else value


def _score(row: Row, labels: Sequence[str], signed: bool) -> float:
    score = rubric_score(row.criteria, labels) or 0.0
    return score if signed else max(score, 0.0)


def _bound(by_row: Mapping[str, Sequence[Graded]], end: str, signed: bool) -> float:
    """The mean were every unscored sample at this end of what its row allows."""
    bad, means = end == "worst", []
    for samples in by_row.values():
        row = samples[0].row
        labels = ["met" if (item.points < 0) == bad else "not_met" for item in row.criteria]
        extreme = _score(row, labels, signed)
        scores = [extreme if sample.score is None else sample.score for sample in samples]
        means.append(sum(scores) / len(scores))
    return sum(means) / len(means)


def _shares(graded: Sequence[Graded]) -> dict[str, dict[str, float | None]]:
    """Kind of criterion -> n, met share of the known labels, unknown share.

    Kinds are all, positive, negative, and ``tag=value`` of the tags that have few values. A
    grading that labels no criteria gives none.
    """
    labelled = [
        (item, label)
        for sample in graded
        for vote in sample.votes
        if len(vote.labels) == len(sample.row.criteria)
        for item, label in zip(sample.row.criteria, vote.labels, strict=True)
    ]
    values: dict[str, set[str]] = defaultdict(set)
    for item, _ in labelled:
        for tag, value in item.tags.items():
            values[tag].add(str(value))
    kinds = sorted(tag for tag, among in values.items() if len(among) <= FEW)
    labels_of: dict[str, list[str]] = defaultdict(list)
    for item, label in labelled:
        sign = "negative" if item.points < 0 else "positive"
        tagged = [f"{tag}={item.tags[tag]}" for tag in kinds if tag in item.tags]
        for name in ("all", sign, *tagged):
            labels_of[name].append(label)
    shares: dict[str, dict[str, float | None]] = {}
    for name, labels in sorted(labels_of.items()):
        certain = len(labels) - labels.count("unknown")
        shares[name] = {
            "n": len(labels),
            "met": labels.count("met") / certain if certain else None,
            "unknown": 1 - certain / len(labels),
        }
    return shares
