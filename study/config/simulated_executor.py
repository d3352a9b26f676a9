"""Settings of a simulated executor: how often each operator is right, and how its replies look.

They are part of the schema, where they stand under ``executor.simulated``. A pair of rates is for
easy and for hard problems, and pairs are by the domain of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from study.config import bounds
from study.config.simulated import DOMAINS
from study.errors import UserError

SHARES: dict[str, bounds.Legal] = {"legal": bounds.Number(low=0, high=1)}


@dataclass(frozen=True)
class Operating:
    """Results of one operator's calls; a domain that is not named has rates of 0."""

    right: dict[str, list[float]] = field(default_factory=dict, metadata=SHARES)
    """P(right) of an operator that solves the problem."""
    repair: dict[str, list[float]] = field(default_factory=dict, metadata=SHARES)
    """Of one that works on a solution: P(right | the solution is wrong)."""
    keep: dict[str, list[float]] = field(default_factory=dict, metadata=SHARES)
    """Of one that works on a solution: P(right | the solution is right)."""
    detection: dict[str, list[float]] = field(default_factory=dict, metadata=SHARES)
    """Of one that checks: P(it says no | the solution is wrong)."""
    false_alarm: dict[str, list[float]] = field(default_factory=dict, metadata=SHARES)
    """Of one that checks: P(it says no | the solution is right)."""
    choice: dict[str, list[float]] = field(default_factory=dict, metadata=SHARES)
    """Of one that chooses: P(a right solution | right and wrong ones are shown)."""
    words: int = bounds.number(0, low=0, high=1000, unit="words")
    """Number of filler words around the answer."""
    sure: int = bounds.number(0, low=0, high=100, unit="phrases")
    """Number of confident phrases around the answer."""
    bullets: int = bounds.number(0, low=0, high=100, unit="lines")
    """List lines that those words fill; 0 is a plain line."""
    tokens: int = bounds.number(0, low=0, high=1_000_000, unit="tokens")
    """Reply tokens spent before the answer."""


@dataclass(frozen=True)
class SimulatedExecutor:
    """A planted world of operators."""

    correlation: float = bounds.share(0.0)
    """Share of calls that use the draw that their problem shares with all such calls."""
    favourite: float = bounds.share(0.5)
    """Share of wrong answers that are the favourite one of their problem."""
    anchored: float = bounds.share(0.0)
    """Share of solving calls that repeat the solution in their prompt."""
    empty: float = bounds.share(0.0)
    """Probability of an empty reply."""
    empty_per_1000: float = bounds.number(
        0.0, low=0, high=1, unit="probability per 1,000 characters"
    )
    """Added probability per 1,000 characters of the prompt."""
    seed: int = bounds.seed(0)
    """Seed of its draws."""
    operators: dict[str, Operating] = field(default_factory=dict, metadata=bounds.NAMES)
    """Settings of each operator, by its name."""


RATES = ("right", "repair", "keep", "detection", "false_alarm", "choice")
DIFFICULTIES = ("easy", "hard")


def check(settings: SimulatedExecutor, operators: tuple[str, ...]) -> None:
    """Refuse rates that no call has. ``operators`` are the names that there are.
    Raises UserError: an unknown operator or domain, or rates that are no pair."""
    for name, operating in settings.operators.items():
        where = "executor.simulated.operators"
        bounds.check(f"a key of {where}", name, bounds.Choice(operators))
        for key in RATES:
            for domain, pair in getattr(operating, key).items():
                bounds.check(f"a key of {where}.{name}.{key}", domain, bounds.Choice(DOMAINS))
                if len(pair) != len(DIFFICULTIES):
                    raise UserError(
                        f"{where}.{name}.{key}.{domain}={pair} is not a pair of rates, for easy"
                        " and for hard problems. Type for example"
                        f" {where}.{name}.{key}.{domain}=[.6,.3]"
                    )


def rate(operating: Operating, key: str, domain: str, difficulty: str) -> float:
    """One of the rates; 0 where the settings have none."""
    pair = getattr(operating, key).get(domain)
    return 0.0 if pair is None else pair[DIFFICULTIES.index(difficulty)]
