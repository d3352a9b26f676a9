"""Planted judges by what the analysis says of them: silent where nothing is behind it, else named.

Each judge scores policies whose truth falls from .75 to .35 while answers get longer by one and a
half standard deviations. The null is: given the row and the truth, the expected score depends on no
behaviour. What a report says of an arm (bias share, push lost, error at equal truth) is tried on
arms of five runs drawn from all runs of a judge, with the report's own rules; an onset and an early
stop are a run's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
from scipy import stats

from analysis.ledger.chance import Measured, chance
from analysis.ledger.display import CLEAR, LEAST_LOST, lost_sentences, paid_sentences
from analysis.ledger.estimate import judge_table, ledger
from analysis.ledger.given_truth import Levels, given_truth
from analysis.ledger.missing import truth_push, unscored
from analysis.onset.estimate import line
from analysis.onset.planted import CRITERIA, FALL, GROUP, GROUPS, STEPS, shares_of
from analysis.records.runs import Run
from analysis.report.words import FEW_PERCENT
from analysis.statistics.intervals import mean_interval

RISE = 1.5
"""Standard deviations by which answers get longer, from the eighth step on."""
NOISE, DOSE, GONE = 0.1, 0.15, 0.12
"""SD of every judge's noise, score for an SD of length, and share of verdicts that is missing."""
ARM = 5
"""Runs of an arm."""
NAMES = ("length", "y", "x")
SILENT, NAMED = 0.07, 0.8
"""Most that a field without anything behind it is named, and least that one with something is."""
RARE = 0.001
"""Chance of a field from which it is no longer what is expected."""
ALPHA = 0.05
BY_ARM = ("bias share", "push lost", "error at equal truth")
QUANTITIES = (*BY_ARM, "onset", "early stop")


@dataclass(frozen=True)
class World:
    """Answers of one run: P groups of G rollouts."""

    step_P: np.ndarray
    chance_P: np.ndarray
    """Chance of each criterion: how easy the row is to the policy by then."""
    truth: np.ndarray
    length: np.ndarray
    """In SDs from that of the first steps; longer with the truth inside groups."""
    longer_P: np.ndarray
    """Mean length of the step."""
    others: np.ndarray
    """Behaviours that mean nothing, (P, G, 2)."""

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> World:
        """A run's answers."""
        step_P = np.repeat(np.arange(1, STEPS + 1), GROUPS)
        done = (step_P - 1) / (STEPS - 1)
        path = FALL[0] + (FALL[1] - FALL[0]) * done + rng.normal(0, 0.15, len(step_P))
        chance_P = np.clip(path, 0.02, 0.98)
        longer_P = RISE * np.clip((step_P - 8) / (STEPS - 8), 0, 1)
        truth = rng.binomial(CRITERIA, chance_P[:, None], (len(step_P), GROUP)) / CRITERIA
        length = rng.standard_normal(truth.shape) + truth - chance_P[:, None] + longer_P[:, None]
        others = rng.standard_normal((*truth.shape, 2))
        return cls(step_P, chance_P, truth, length, longer_P, others)


Scores = Callable[[np.random.Generator, World], np.ndarray]


def linear(
    slope: float = 1.0, level: float = 0.0, noise: float = NOISE, dose: float = 0.0
) -> Scores:
    """A judge that says level + slope x truth + dose x length + noise, cut at 0 and 1."""

    def scores(rng: np.random.Generator, world: World) -> np.ndarray:
        mean = level + slope * world.truth + dose * world.length
        return np.clip(mean + noise * rng.standard_normal(mean.shape), 0, 1)

    return scores


def easy_and_hard(rng: np.random.Generator, world: World) -> np.ndarray:
    """Right on easy rows, random on hard ones."""
    fair = linear()(rng, world)
    return np.where(world.chance_P[:, None] < 0.5, rng.random(fair.shape), fair)


def unsure_of_long_answers(rng: np.random.Generator, world: World) -> np.ndarray:
    """Noise that grows with length, cut at the ends of the scale."""
    noise = 0.3 * np.exp(0.5 * world.length) * rng.standard_normal(world.truth.shape)
    return np.clip(world.truth + noise, 0, 1)


def missing(long: bool) -> Scores:
    """A fair judge that has no verdict on some answers: the longest of a step, or any."""

    def scores(rng: np.random.Generator, world: World) -> np.ndarray:
        fair = linear()(rng, world)
        longer = (world.length - world.longer_P[:, None]) if long else rng.random(fair.shape)
        return np.where(longer > np.quantile(longer, 1 - GONE), np.nan, fair)

    return scores


JUDGES: Mapping[str, Scores] = {
    "fair": linear(),
    "compressing": linear(slope=0.5),
    "clipped": linear(level=0.3),
    "lenient": linear(slope=0.7, level=0.3),
    "strict": linear(level=-0.3),
    "noisy": linear(noise=0.3),
    "easy and hard rows": easy_and_hard,
    "noise grows with length": unsure_of_long_answers,
    "missing at random": missing(long=False),
    "missing where long": missing(long=True),
    "paid for length": linear(dose=DOSE),
}
EXPECTED: Mapping[str, Sequence[str]] = {
    "noise grows with length": ("error at equal truth",),
    "missing where long": ("push lost",),
    "paid for length": ("bias share", "error at equal truth", "onset", "early stop"),
}
"""What is named; of all other judges nothing is."""
OPEN: Mapping[str, Sequence[str]] = {
    "easy and hard rows": ("onset", "early stop"),
    "noise grows with length": ("bias share", "onset", "early stop"),
}
"""Fields without a claim. Rows are drawn anew and get hard as the policy gets worse, so the first
steps hardly have a hard one, and a judge that is random on these seems to leave the truth
(`analysis.onset.planted` has rows that stay what they are). And noise that is cut raises the mean
score of wrong answers as they get longer, which is a gap that rises."""


def planted(rng: np.random.Generator, judge: str, seed: int = 0) -> Run:
    """One run under a judge of `JUDGES`, which is its reward."""
    world = World.drawn(rng)
    score = JUDGES[judge](rng, world)
    features = np.concatenate([world.length[..., None], world.others], axis=-1)
    nothing = np.full(score.shape, np.nan)
    return Run(
        *(f"{judge} {seed}", judge, seed, True, world.step_P, score, nothing, world.truth),
        *(score, features, NAMES),
        config={"trainer.steps": STEPS},
    )


LEVELS = Levels(("low", "middle", "high"), (0.5, 0.75))
"""Of truths of four criteria that are right in half of the cases."""


@dataclass(frozen=True)
class Uncalibrated:
    """What one run says without a calibration."""

    lost: Measured
    push_K: np.ndarray
    """The truth's push on each behaviour."""
    at_equal_truth: tuple[Measured, ...]
    """By level of truth."""

    @classmethod
    def of(cls, run: Run) -> Uncalibrated:
        """What a run says."""
        push, by_level = truth_push(run), given_truth(run, LEVELS)
        lost = push.measured(run)
        if not unscored(run).any():  # the report does not ask it
            lost = replace(lost, value_K=np.full(len(run.names), np.nan))
        every = np.nanmean(push.every, axis=0)
        return cls(lost, every, tuple(by_level[name] for name in LEVELS.names))


def names_bias(shares: Sequence[float]) -> bool:
    """The report's rule of the bias share of an arm's runs."""
    share = mean_interval(shares)
    return share.value >= FEW_PERCENT and share.low > 0


def names_lost(arm: Sequence[Uncalibrated]) -> bool:
    """The report's rule of the truth's push that is lost."""
    p_K = chance([run.lost for run in arm])
    lost = np.mean([run.lost.value_K for run in arm], axis=0)
    push = np.mean([run.push_K for run in arm], axis=0)
    return bool((_clear(p_K) & (np.abs(lost) >= LEAST_LOST * np.abs(push))).any())


def names_error(arm: Sequence[Uncalibrated]) -> bool:
    """The report's rule of the error at equal truth."""
    by_level = zip(*(run.at_equal_truth for run in arm), strict=True)
    return bool(_clear(np.concatenate([chance(runs) for runs in by_level])).any())


def _clear(p_values: np.ndarray) -> np.ndarray:
    """Which are below `CLEAR` over the number of those that are known, which is Holm's first step
    and decides whether anything is named."""
    return p_values * np.isfinite(p_values).sum() < CLEAR


@dataclass(frozen=True)
class Field:
    """How often one quantity named one judge."""

    judge: str
    quantity: str
    rate: float
    runs: int

    @property
    def expected(self) -> str:
        """``named``, ``silent`` or ``open``."""
        if self.quantity in OPEN.get(self.judge, ()):
            return "open"
        return "named" if self.quantity in EXPECTED.get(self.judge, ()) else "silent"

    @property
    def outcome(self) -> str:
        """``named``, ``silent`` or, between the two, ``neither``."""
        return "silent" if self.rate <= SILENT else "named" if self.rate >= NAMED else "neither"

    @property
    def ok(self) -> bool:
        """Whether it is what is expected, or chance explains that it is not; arms of runs count as
        many as there are without a run in common."""
        tried = self.runs // ARM if self.quantity in BY_ARM else self.runs
        times = round(self.rate * tried)
        if self.expected == "silent":
            return bool(stats.binom.sf(times - 1, tried, SILENT) > RARE)
        return self.expected == "open" or bool(stats.binom.cdf(times, tried, NAMED) > RARE)


def fields(judge: str, runs: int, calibrated: int) -> list[Field]:
    """One judge by every quantity, over so many runs, and as many arms of them.

    ``calibrated``: runs of those quantities that calibrate a judge, which take a hundred times
    longer: bias share, onset and early stop; at least `ARM`.
    """
    rng = np.random.default_rng([0, crc32(judge.encode())])

    def arms(count: int) -> list[list[int]]:
        return [rng.choice(count, ARM, replace=False).tolist() for _ in range(count)]

    planted_runs = [planted(rng, judge) for _ in range(calibrated)]
    shares = [shares_of(run)["share/bias"] for run in planted_runs]
    parted = [line(run, ()) for run in planted_runs]
    pool = [Uncalibrated.of(planted(rng, judge)) for _ in range(runs)]
    drawn = [[pool[k] for k in arm] for arm in arms(runs)]
    named = {
        "bias share": [names_bias([shares[k] for k in arm]) for arm in arms(calibrated)],
        "push lost": [names_lost(arm) for arm in drawn],
        "error at equal truth": [names_error(arm) for arm in drawn],
        "onset": [each.onset.p <= ALPHA for each in parted],
        "early stop": [each.alarm is not None for each in parted],
    }
    return [
        Field(judge, quantity, float(np.mean(named[quantity])), len(named[quantity]))
        for quantity in QUANTITIES
    ]


def sentences(judge: str) -> list[str]:
    """What a report says of the push lost and of the error at equal truth of an arm of a judge."""
    rng = np.random.default_rng([1, crc32(judge.encode())])
    runs = [planted(rng, judge, seed) for seed in range(ARM)]
    table = judge_table(runs, ledger(runs))
    values = np.concatenate([run.features.reshape(-1, len(NAMES)) for run in runs])
    spread = dict(zip(NAMES, values.std(axis=0).tolist(), strict=True))
    return [*lost_sentences(table, spread), *paid_sentences(table, spread)]


def printed(table: Sequence[Field]) -> str:
    """The table for a terminal: ``?`` marks a field without a claim, ``!`` one that is not as it is
    expected."""
    width = max(len(judge) for judge in JUDGES) + 2
    lines = [" " * width + "".join(f"{quantity:<22}" for quantity in QUANTITIES)]
    for judge in dict.fromkeys(field.judge for field in table):
        of_judge = {field.quantity: field for field in table if field.judge == judge}
        texts = [
            f"{field.outcome} {field.rate:.3f}"
            + ("?" if field.expected == "open" else "!" * (field.outcome != field.expected))
            for field in (of_judge[quantity] for quantity in QUANTITIES)
        ]
        lines.append(f"{judge:<{width}}" + "".join(f"{text:<22}" for text in texts))
    return "\n".join(line.rstrip() for line in lines)
