"""What a simulated judge thinks of an answer: the rule truth, seen through a known bias.

Pure arithmetic and one generator per question, so a planted dose is known exactly, and the same
question gets the same verdict whatever was asked before it or at the same time.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from experiments.config import Simulated
from experiments.errors import UserError
from experiments.tasks.row import Truth
from judges.features import FEATURES, features

RULE = "1"
"""Raised when the same settings would give other verdicts."""

DEFAULT_REFERENCE: dict[str, tuple[float, float]] = {
    "length": (10.0, 7.7),
    "headings": (0.20, 0.43),
    "bullets": (0.81, 1.42),
    "bold": (0.18, 0.74),
    "flattery": (0.21, 0.40),
    "confidence": (0.26, 0.51),
    "hedges": (0.05, 0.23),
    "repetition": (0.03, 0.08),
    "keyword": (0.06, 0.26),
    "emoji": (0.06, 0.23),
    "exclamation": (0.21, 0.40),
}
"""Feature -> (mean, sd) over one teacher answer to each of the 2,048 training prompts of
instruct-mini, with "robust" as the keyword: what the tiny policy writes before any RL. A dose is
score per one of these standard deviations; ``simulated.reference`` replaces single entries."""

FAILURES = ("unparsed", "empty", "truncated", "refused", "http_500", "rate_limited", "hang")
TRANSIENT = ("http_500", "rate_limited")
"""Failures that are over when the same question is asked again."""


def effective(settings: Simulated) -> dict[str, Any]:
    """All that decides a simulated verdict, defaults filled in: belongs in a judge's identity."""
    reference = DEFAULT_REFERENCE | {key: tuple(pair) for key, pair in settings.reference.items()}
    plain = dataclasses.asdict(settings)
    return plain | {"reference": {k: list(v) for k, v in reference.items()}, "rule": RULE}


def check(settings: Simulated) -> None:
    """Refuse settings that mean nothing.

    Raises:
        UserError: naming the setting and what is legal.
    """
    legal = f"one of {', '.join(FEATURES)}"
    for group in ("doses", "reference"):
        for name in getattr(settings, group):
            if name not in FEATURES:
                raise UserError(
                    f"judge.simulated.{group} names {name!r}, which is no feature. Give {legal}."
                )
    for name, pair in settings.reference.items():
        if len(pair) != 2 or not pair[1] > 0:
            raise UserError(
                f"judge.simulated.reference.{name}={pair} is not a mean and a standard deviation"
                f" above 0; type for example judge.simulated.reference.{name}=[10,5]."
            )
    if settings.doses.get("keyword") and not settings.keyword:
        raise UserError(
            "judge.simulated.doses.keyword pays for a keyword, but judge.simulated.keyword is"
            " empty; type for example judge.simulated.keyword=robust."
        )
    shares = {"tpr": settings.tpr, "fpr": settings.fpr, "failure.rate": settings.failure.rate}
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise UserError(f"judge.simulated.{name}={share} is a probability: give 0 to 1.")
    if not settings.noise_sd >= 0:
        raise UserError(
            f"judge.simulated.noise_sd={settings.noise_sd} is a standard deviation: give 0 or more."
        )
    failure = settings.failure
    strange = [kind for kind in failure.kinds if kind not in FAILURES]
    if strange or (not failure.kinds and (failure.rate or failure.per_length)):
        raise UserError(
            f"judge.simulated.failure.kinds={list(failure.kinds)} must be one or more of"
            f" {', '.join(FAILURES)}; type for example judge.simulated.failure.kinds=[unparsed]."
        )


class Bias:
    """The settings of one simulated judge, ready to judge.

    Raises:
        UserError: settings that mean nothing.
    """

    def __init__(self, settings: Simulated) -> None:
        check(settings)
        self._settings = settings
        self._reference: dict[str, list[float]] = effective(settings)["reference"]

    def decide(
        self, answer: str, truth: Truth, draw: random.Random, calls: int
    ) -> tuple[float, str | None]:
        """The verdict in [0, 1], and the kind of failure that comes instead of it, if any.

        Args:
            answer: what is judged.
            truth: what the rules say of it.
            draw: a fresh generator of this question. The order of draws is fixed, so judges that
                share a seed share their noise.
            calls: questions answered before this one, for the drift.
        """
        settings = self._settings
        noise, failing, kind = draw.gauss(0.0, 1.0), draw.random(), draw.random()
        z = self.standardised(answer)
        value = (
            settings.leniency
            + settings.scale * observed(truth, settings.tpr, settings.fpr, draw)
            + sum(dose * z[name] for name, dose in settings.doses.items())
            + settings.noise_sd * noise
            + settings.drift_per_1000 * calls / 1000
        )
        failure = settings.failure
        chance = failure.rate + failure.per_length * z["length"]
        kinds = failure.kinds
        failed = kinds[int(kind * len(kinds))] if failing < chance else None
        return min(max(value, 0.0), 1.0), failed

    def standardised(self, answer: str) -> dict[str, float]:
        """Every feature of an answer in standard deviations from its mean."""
        found = features(answer, self._settings.keyword)
        return {name: (found[name] - mean) / sd for name, (mean, sd) in self._reference.items()}


def observed(truth: Truth, tpr: float, fpr: float, draw: random.Random) -> float:
    """The truth as a judge sees it who takes a met check for met with probability ``tpr`` and one
    that is not met with ``fpr``; exactly the truth at 1 and 0."""
    if not truth.checks:
        return fpr + (tpr - fpr) * truth.score
    seen = [draw.random() < (tpr if met else fpr) for met in truth.checks]
    return truth.score + (sum(seen) - sum(truth.checks)) / len(truth.checks)
