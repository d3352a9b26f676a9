"""Settings of a simulated judge: its bias, in all domains or in one.

They are part of the schema (`study.config.schema`), where they stand under ``judge.simulated``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from study.config import bounds


@dataclass(frozen=True)
class Failure:
    """How a simulated judge fails: P(fail) = rate + per_length * z(length), clipped to [0, 1]."""

    rate: float = bounds.share(0.0)
    """Probability that a request fails, at an answer of mean length."""
    per_length: float = bounds.number(0.0, unit="probability per standard deviation")
    """Probability that is added per standard deviation of the answer's length."""
    kinds: list[str] = field(
        default_factory=lambda: ["unparsed"],
        metadata=bounds.each(
            *("unparsed", "empty", "truncated", "refused", "http_500", "rate_limited", "hang")
        ),
    )
    """Kinds of failure, one of which is drawn each time."""


@dataclass(frozen=True)
class Domain:
    """What a simulated judge does otherwise in one domain; null is as in all others."""

    doses: dict[str, float] = field(default_factory=dict)
    """Those that are not named are as in all others."""
    noise_sd: float | None = bounds.number(None, low=0, unit="score")
    """Standard deviation of the noise there."""
    tpr: float | None = bounds.number(None, low=0, high=1, unit="share")
    """Share of right checks taken for right there."""
    fpr: float | None = bounds.number(None, low=0, high=1, unit="share")
    """Share of wrong checks taken for right there."""
    leniency: float | None = bounds.number(None, unit="score")
    """Score added to every answer there."""
    scale: float | None = bounds.number(None, unit="factor")
    """Factor of the truth there."""
    drift_per_1000: float | None = bounds.number(None, unit="score per 1,000 calls")
    """Score added per 1,000 calls answered there."""
    favourite: float | None = bounds.number(None, low=0, high=1, unit="share")
    """Share of the favourite wrong answers taken for right there."""
    reasons: float | None = bounds.number(None, low=0, high=1, unit="share")
    """Share of its answers to a question of right or wrong that give a reason first there."""
    seed: int | None = bounds.seed(None)
    """Seed of its draws there."""


@dataclass(frozen=True)
class Domains:
    """By the domain of a row: ``judge.simulated.domains.qa.fpr=0.7``."""

    math: Domain = field(default_factory=Domain)
    qa: Domain = field(default_factory=Domain)
    code: Domain = field(default_factory=Domain)


@dataclass(frozen=True)
class Simulated:
    """Known bias of a simulated judge, in score units per standard deviation of a feature."""

    doses: dict[str, float] = field(default_factory=dict)
    """Behaviour -> score paid per standard deviation of it; below 0 is a charge."""
    keyword: str = ""
    """Word that the behaviour keyword counts."""
    noise_sd: float = bounds.number(0.0, low=0, unit="score")
    """Standard deviation of the noise in each score."""
    tpr: float = bounds.share(1.0)
    """Share of right checks taken for right."""
    fpr: float = bounds.share(0.0)
    """Share of wrong checks taken for right."""
    leniency: float = bounds.number(0.0, unit="score")
    """Score added to every answer."""
    scale: float = bounds.number(1.0, unit="factor")
    """Factor of the truth in the score."""
    drift_per_1000: float = bounds.number(0.0, unit="score per 1,000 calls")
    """Score units added per 1,000 calls answered."""
    failure: Failure = field(default_factory=Failure)
    reference: dict[str, list[float]] = field(default_factory=dict)
    """Feature -> [mean, sd] used to standardise it."""
    seed: int = bounds.seed(0)
    """Seed of its noise, errors and failures."""
    model: str = ""
    """A model whose favourite wrong answers it may take for right ones, as its own; see
    `study.rows.Truth.whose`. Empty is none."""
    favourite: float = bounds.share(0.0)
    """Share of such answers that it does take for right."""
    reasons: float = bounds.share(0.0)
    """Share of its answers to a question of right or wrong that give a reason before the verdict,
    in which a yes and a no stand."""
    domains: Domains = field(default_factory=Domains)


DOMAINS = tuple(item.name for item in dataclasses.fields(Domains))
"""Every domain of the project."""


def changed_in(settings: Simulated, domain: str) -> dict[str, object]:
    """The settings that ``domain`` has of its own, by name; none for a name that is no domain."""
    if domain not in DOMAINS:
        return {}
    there = dataclasses.asdict(getattr(settings.domains, domain))
    return {name: value for name, value in there.items() if value not in (None, {})}


def in_domain(settings: Simulated, domain: str) -> Simulated:
    """The settings that hold for rows of ``domain``, which may be any text."""
    changed = changed_in(settings, domain)
    own = getattr(settings.domains, domain).doses if domain in DOMAINS else {}
    changed["doses"] = settings.doses | own
    return dataclasses.replace(settings, **changed, domains=Domains())
