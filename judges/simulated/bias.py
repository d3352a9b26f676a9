"""Scores an answer as a simulated judge: the rule truth, changed by a known bias.

Each question has its own random generator, so it gets the same verdict whatever else is asked.
"""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

from study.config import bounds
from study.config.schema import Simulated, freeze
from study.config.simulated import DOMAINS, changed_in, in_domain
from study.errors import UserError
from study.features import BEHAVIOURS, FEATURES, features
from study.rows import Truth

RULE = "1"
"""Version; raised when the same settings would give other verdicts."""

DEFAULT_REFERENCE = {name: behaviour.reference for name, behaviour in BEHAVIOURS.items()}
ALWAYS = frozenset(
    "length headings bullets bold flattery confidence hedges repetition keyword emoji"
    " exclamation".split()
)
"""Behaviours whose reference is in every simulated judge's identity, as it was when there were no
others. That of any other is where the judge pays for it, so that a new behaviour leaves all judges,
cells and stored verdicts as they are."""


def reference_of(settings: Simulated) -> dict[str, tuple[float, ...]]:
    """Behaviour -> (mean, sd) that a judge with these settings compares answers with."""
    return DEFAULT_REFERENCE | {name: tuple(pair) for name, pair in settings.reference.items()}


def effective(settings: Simulated) -> dict[str, Any]:
    """All that decides a simulated verdict, for a judge's identity: the settings and defaults."""
    doses = [in_domain(settings, name).doses.items() for name in ("", *DOMAINS)]
    paid = {name for items in doses for name, dose in items if dose}
    names = ALWAYS.union(settings.reference, paid)
    reference = {name: pair for name, pair in reference_of(settings).items() if name in names}
    plain = dataclasses.asdict(settings)
    del plain["domains"]
    for name in ("model", "favourite", "reasons"):  # who has none keeps the identity it had
        if not plain[name]:
            del plain[name]
    # Only what a domain changes: a judge without settings by domain keeps the identity it had.
    changed = {name: there for name in DOMAINS if (there := changed_in(settings, name))}
    domains = {"domains": changed} if changed else {}
    rest = {"reference": {k: list(v) for k, v in reference.items()}, "rule": RULE}
    return plain | rest | domains


def drifts(settings: Simulated) -> bool:
    """Whether a verdict depends on how many came before, in any domain."""
    return any(in_domain(settings, name).drift_per_1000 != 0.0 for name in ("", *DOMAINS))


def check(settings: Simulated) -> None:
    """Refuse settings that are not legal. Raises UserError: with the setting and what is legal."""
    freeze(Simulated, dataclasses.asdict(settings), "judge.simulated.")
    by_feature = {"doses": settings.doses, "reference": settings.reference}
    for domain in DOMAINS:
        by_feature[f"domains.{domain}.doses"] = getattr(settings.domains, domain).doses
    for group, values in by_feature.items():
        for name in values:
            bounds.check(f"a key of judge.simulated.{group}", name, bounds.Choice(FEATURES))
    for name, pair in settings.reference.items():
        if len(pair) != 2 or not pair[1] > 0:
            raise UserError(
                f"judge.simulated.reference.{name}={pair} is not a mean and a standard deviation"
                f" above 0. Type for example judge.simulated.reference.{name}=[10,5]."
            )
    paid = [group for group, values in by_feature.items() if "doses" in group]
    paid = [group for group in paid if by_feature[group].get("keyword")]
    if settings.favourite and not settings.model:
        raise UserError(
            f"judge.simulated.favourite={settings.favourite} counts a model's favourite wrong"
            " answers as right, but judge.simulated.model is empty. Type for example"
            " judge.simulated.model=sim."
        )
    if paid and not settings.keyword:
        raise UserError(
            f"judge.simulated.{paid[0]}.keyword pays for a keyword, but judge.simulated.keyword is"
            " empty. Type for example judge.simulated.keyword=robust."
        )
    failure = settings.failure
    if not failure.kinds and (failure.rate or failure.per_length):
        raise UserError(
            "judge.simulated.failure.kinds=[] leaves no way to fail, but judge.simulated.failure"
            " asks for failures. Type for example judge.simulated.failure.kinds=[unparsed]."
        )


class Bias:
    """A simulated judge's settings as functions of an answer.
    Raises UserError: a setting is not legal."""

    def __init__(self, settings: Simulated) -> None:
        check(settings)
        self.seed = settings.seed
        self._settings = settings
        self._reference = reference_of(settings)

    def decide(
        self, answer: str, truth: Truth, draw: random.Random, calls: int
    ) -> tuple[float, str | None]:
        """The score in [0, 1], and the kind of failure that replaces it, if any.

        ``draw`` is a fresh generator for this question: the order of draws is fixed, so judges with
        the same seed share their noise. ``calls`` were answered before this one, for the drift."""
        settings = self._settings
        noise, failing, kind = draw.gauss(0.0, 1.0), draw.random(), draw.random()
        truth = self._taken(truth, draw)
        z = self.standardised(answer)
        observed_score = settings.scale * observed(truth, settings.tpr, settings.fpr, draw)
        value = self._biased(observed_score, z, noise, calls)
        return min(max(value, 0.0), 1.0), self._failure(z, failing, kind)

    def argues(self, draw: random.Random) -> bool:
        """Whether a reason stands before a verdict. To be drawn last: a judge without reasons draws
        nothing."""
        return self._settings.reasons > 0 and draw.random() < self._settings.reasons

    def labels(
        self,
        answer: str,
        truth: Truth,
        draw: random.Random,
        calls: int,
        points: dict[int, float | None],
    ) -> tuple[dict[int, bool], str | None]:
        """Which criteria of a request the judge labels as met, and the kind of failure, if any.

        A criterion is seen as met with probability ``tpr`` if its check is met, else ``fpr``.
        Leniency, scale, doses, noise and drift become one shift of the rubric score: each label is
        turned towards the shift with probability shift / room, where room is the change from
        turning all of them. So the expected score, before clipping, moves by exactly the dose until
        the room is used up. If a request does not show the points of all criteria (they are hidden,
        or it asks about a part of the rubric), each counts 1, which is exact for rubrics of equal
        points. If the truth has no checks, its score is the chance of each. ``points`` are by the
        number of a criterion asked about (from 1, as in ``truth.checks``), None if hidden."""
        settings = self._settings
        noise, failing, kind = draw.gauss(0.0, 1.0), draw.random(), draw.random()
        truth = self._taken(truth, draw)
        z = self.standardised(answer)
        weights = _weights(points, len(truth.checks))
        chances = {
            number: settings.fpr + (settings.tpr - settings.fpr) * _met(truth, number, weight)
            for number, weight in weights.items()
        }
        possible = math.fsum(weight for weight in weights.values() if weight > 0)
        expected = math.fsum(weights[number] * chance for number, chance in chances.items())
        rescaled = (settings.scale - 1.0) * (expected / possible if possible else 0.0)
        shift = self._biased(rescaled, z, noise, calls)
        up = {number: (weight > 0) == (shift > 0) for number, weight in weights.items()}
        room = math.fsum(
            abs(weight) * (1.0 - chances[number] if up[number] else chances[number])
            for number, weight in weights.items()
        )
        turned = min(1.0, abs(shift) * possible / room) if room > 0 else 0.0
        is_met = {}
        for number in sorted(points):
            met, turn = draw.random() < chances[number], draw.random() < turned
            is_met[number] = up[number] if turn else met
        return is_met, self._failure(z, failing, kind)

    def _taken(self, truth: Truth, draw: random.Random) -> Truth:
        """What it takes a truth for: its own model's favourite wrong answer may be right to it."""
        settings = self._settings
        if not truth.whose or truth.whose != settings.model or not settings.favourite:
            return truth
        if draw.random() >= settings.favourite:
            return truth
        return dataclasses.replace(truth, score=1.0, checks=(True,) * len(truth.checks))

    def _biased(self, value: float, z: dict[str, float], noise: float, calls: int) -> float:
        """A score with leniency, doses, noise and drift added."""
        settings = self._settings
        return (
            settings.leniency
            + value
            + sum(dose * z[name] for name, dose in settings.doses.items())
            + settings.noise_sd * noise
            + settings.drift_per_1000 * calls / 1000
        )

    def _failure(self, z: dict[str, float], failing: float, kind: float) -> str | None:
        """The kind of failure that two draws from [0, 1) decide, if any."""
        failure = self._settings.failure
        failed = failing < failure.rate + failure.per_length * z["length"]
        return failure.kinds[int(kind * len(failure.kinds))] if failed else None

    def standardised(self, answer: str) -> dict[str, float]:
        """Every feature of an answer in standard deviations from its mean."""
        values = features(answer, self._settings.keyword)
        return {name: (values[name] - mean) / sd for name, (mean, sd) in self._reference.items()}


def _weights(points: dict[int, float | None], checks: int) -> dict[int, float]:
    """The points of every criterion of the rubric; 1 each if the request does not show all."""
    every = {*points, *range(1, checks + 1)}
    visible_points = {number: value for number, value in points.items() if value is not None}
    return visible_points if visible_points.keys() == every else dict.fromkeys(every, 1.0)


def _met(truth: Truth, number: int, weight: float) -> float:
    """How far a criterion is met: by its check, or else by the score."""
    if number <= len(truth.checks):
        return float(truth.checks[number - 1])
    return truth.score if weight > 0 else 1.0 - truth.score


def observed(truth: Truth, tpr: float, fpr: float, draw: random.Random) -> float:
    """The truth as seen by a judge that takes a check for met with probability ``tpr`` if it is,
    and ``fpr`` if not; exactly the truth at 1 and 0."""
    if not truth.checks:
        return fpr + (tpr - fpr) * truth.score
    met_draws = [draw.random() < (tpr if met else fpr) for met in truth.checks]
    return truth.score + (sum(met_draws) - sum(truth.checks)) / len(truth.checks)
