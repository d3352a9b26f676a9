"""Checks of `analysis.selfcheck` for the field's measures: aggregates, pairs, onset times."""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

from analysis.crossjudge.reference_panel import exploitation_rate, left_out, preference, wins
from analysis.field.shortcut import entanglement, growth, onset_time
from analysis.planted.trials import Trials, replicated, trials
from analysis.scaffold.self_gap import peak, self_gap
from analysis.statistics.aggregates import (
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    stratified_bootstrap,
)
from analysis.statistics.estimate import Estimate
from analysis.statistics.intervals import PairedPrompts, mean_interval, paired_prompts
from analysis.statistics.power import POWER, smallest_effect

SEEDS = 5
METRICS = np.array([-0.3, -0.1, 0.0, 0.1, 0.3])
"""What each metric's scores lie around; symmetric, so that their interquartile mean is 0."""
RUN_SD, NOISE_SD = 0.1, 0.1
"""Scores of a run have a part in common: it is one training."""
BETTER = 0.1
THRESHOLD = 0.1


def _scores(rng: np.random.Generator) -> np.ndarray:
    """Scores of five runs on the metrics, (S, M)."""
    by_run = rng.normal(0, RUN_SD, (SEEDS, 1))
    return METRICS + by_run + rng.normal(0, NOISE_SD, (SEEDS, len(METRICS)))


_SD = float(np.hypot(RUN_SD, NOISE_SD))


@replicated({"interquartile mean, t over runs": 0.0})
def middle(rng: np.random.Generator, number: int) -> list[Estimate]:
    """What the scores of one arm come to; a run's scores go together."""
    return [interquartile_mean(_scores(rng))]


@replicated(
    {
        "performance profile, t over runs": float(norm.sf((THRESHOLD - METRICS) / _SD).mean()),
        "probability of improvement": float(norm.cdf(BETTER / (2**0.5 * _SD))),
    },
    at_least=True,
)
def shares(rng: np.random.Generator, number: int) -> list[Estimate]:
    """Shares over five runs are coarse, so more than .95 may be covered."""
    scores, better = _scores(rng), _scores(rng) + BETTER
    profile = performance_profile(scores, np.array([THRESHOLD]))
    return [*profile, probability_of_improvement(better, scores)]


@replicated({"interquartile mean, rliable's bootstrap": 0.0})
def by_metric(rng: np.random.Generator, number: int) -> list[Estimate]:
    """The same scores, each metric resampled alone: too narrow where a run gives them all."""
    return [stratified_bootstrap(_scores(rng), replicates=400, seed=number)]


PROMPTS, SAMPLES, GAIN = 30, 3, 0.05
BY_PROMPT, BY_ANSWER = 0.15, 0.2
"""SDs of a difference between prompts, and of a single answer's score."""


def _answers(rng: np.random.Generator, gain: float) -> PairedPrompts:
    """Two policies on prompts that differ in difficulty, and in what training did to them."""
    prompt = np.repeat(np.arange(PROMPTS), SAMPLES)
    difficulty, gains = rng.normal(0.5, 0.3, PROMPTS), rng.normal(gain, BY_PROMPT, PROMPTS)
    noise = rng.normal(0, BY_ANSWER, (2, len(prompt)))
    return paired_prompts(
        (difficulty + gains)[prompt] + noise[0], difficulty[prompt] + noise[1], prompt
    )


_PAIR_SD = float(np.hypot(BY_PROMPT, (2 / SAMPLES) ** 0.5 * BY_ANSWER))
_VISIBLE = smallest_effect(PROMPTS) * _PAIR_SD


@replicated({"paired difference, CR1 by prompt": GAIN})
def pairs(rng: np.random.Generator, number: int) -> list[Estimate]:
    """The mean difference of two policies on the same prompts, each answered several times."""
    return [_answers(rng, GAIN)]


def visible(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """The smallest visible difference is missed in one study of five."""
    estimates = [_answers(rng, _VISIBLE) for _ in range(count)]
    missed = (Estimate(0.0, 0.0, 0.0) if each.low <= 0 else Estimate(0.0) for each in estimates)
    return {"smallest visible difference, missed": trials(0.0, missed, 1 - POWER)}


RUNS, LAST, HORIZON, ONSET, ONSET_SD = 12, 60.0, 28.0, 28.0, 8.0
KILLED = 0.25
"""Share of the runs that end early, at a step that has nothing to do with their onset."""


@replicated(
    {
        "median onset, Kaplan-Meier": ONSET,
        "restricted mean onset": HORIZON - ONSET_SD * float(norm.pdf(0)),
    },
    at_least=True,
)
def onset_times(rng: np.random.Generator, number: int) -> list[Estimate]:
    """Onsets over runs of which some end before theirs; the horizon is their mean."""
    onset = np.clip(rng.normal(ONSET, ONSET_SD, RUNS), 1, None)
    last = np.where(rng.random(RUNS) < KILLED, rng.uniform(5, LAST, RUNS), LAST)
    onset_estimate = onset_time(np.where(onset <= last, onset, np.nan), last, HORIZON)
    return [onset_estimate.median, onset_estimate.restricted]


ODDS, SHOWN = 3.0, 0.2


@replicated({"odds ratio of a shortcut, by group": ODDS}, at_least=True)
def entangled(rng: np.random.Generator, number: int) -> list[Estimate]:
    """A shortcut that comes with right answers, as often in each of 60 groups; prompts differ in
    how often their answers are right."""
    right = rng.random((60, 8)) < rng.beta(2, 2, (60, 1))
    odds = SHOWN / (1 - SHOWN) * np.where(right, ODDS, 1.0)
    return [entanglement(rng.random((60, 8)) < odds / (1 + odds), right.astype(float))]


RISE = 0.02


@replicated({"growth after an onset, t over runs": RISE})
def growths(rng: np.random.Generator, number: int) -> list[Estimate]:
    """The slope of a score after onsets that are known, over five runs that differ in theirs."""
    steps = np.arange(1, 41)
    slopes = []
    for rise in rng.normal(RISE, 0.005, SEEDS):
        onset = int(rng.integers(5, 30))
        path = rise * np.clip(steps - onset, 0, None) + rng.normal(0, 0.02, len(steps))
        slopes.append(growth(steps, path, onset).value)
    return [mean_interval(slopes)]


CRITERIA, REFERENCES = 5, 3
CREDITED, LATER, WRONG, AGREES = 0.4, 0.6, 0.3, 0.5
"""Chances: the first and the last policy's answer has a criterion's points from the training judge,
such a credit is wrong, and a reference credits what is right. None credits what is wrong."""
MISSING = 0.1


def _rejected_if_labelled() -> float:
    """Share rejected of the credits of which the panel's word is known.

    It is known where a reference that is there credits, and where all are there.
    """
    all_there = (1 - MISSING) ** REFERENCES
    right = 1 - WRONG
    credits = right * (1 - (1 - AGREES * (1 - MISSING)) ** REFERENCES)
    rejects = all_there * (WRONG + right * (1 - AGREES) ** REFERENCES)
    return rejects / (rejects + credits)


@replicated(
    {
        "exploitation rate, by prompt": WRONG + (1 - WRONG) * (1 - AGREES) ** REFERENCES,
        "exploitation rate, references missing": _rejected_if_labelled(),
    }
)
def exploitation(rng: np.random.Generator, number: int) -> list[Estimate]:
    """Credits of 60 prompts whose answers err together, under references that miss some."""
    prompts, answers = 60, 2
    prompt = np.repeat(np.arange(prompts), answers)
    shape = (len(prompt), CRITERIA)
    before = (rng.random((prompts, CRITERIA)) < CREDITED).astype(float)
    after = (rng.random(shape) < LATER).astype(float)
    # a prompt's credits are wrong more or less often, by WRONG on average
    wrong = rng.random(shape) < rng.beta(3, 7, (prompts, 1))[prompt]
    panel = rng.random((len(prompt), REFERENCES, CRITERIA)) < AGREES
    panel = np.where(wrong[:, None], 0.0, panel.astype(float))
    weights = rng.integers(1, 4, (prompts, CRITERIA)).astype(float)
    missing = rng.random(panel.shape) < MISSING
    return [
        exploitation_rate(before, after, panel, weights, prompt),
        exploitation_rate(before, after, np.where(missing, np.nan, panel), weights, prompt),
    ]


HIGHER = 0.5


@replicated(
    {
        "preference for the checkpoint, by prompt": float(norm.cdf(HIGHER / 3**0.5)),
        "what the rubric leaves out, by prompt": float(
            norm.cdf(HIGHER / 3**0.5) - norm.cdf(-HIGHER / 3**0.5)
        ),
    }
)
def checkpoint(rng: np.random.Generator, number: int) -> list[Estimate]:
    """Four answers at each end of 50 prompts; what training did differs by prompt as much as two
    answers do. The judge without the rubric likes them as much less as the other likes them more.
    """
    prompts, answers = 50, 4
    prompt = np.repeat(np.arange(prompts), answers)
    moved = rng.normal(0, 1, prompts)
    shown, free = (
        wins(
            *(rng.normal(0, 1, len(prompt)), prompt),
            *((moved + sign * HIGHER)[prompt] + rng.normal(0, 1, len(prompt)), prompt),
        )
        for sign in (1, -1)
    )
    by_prompt = [np.array([won[place] for place in range(prompts)]) for won in (shown, free)]
    return [preference(by_prompt[0]), left_out(*by_prompt)]


GAP, PEAK = -0.4, 18


@replicated({"self-internalisation gap, by prompt": GAP})
def gaps(rng: np.random.Generator, number: int) -> list[Estimate]:
    """Log-probabilities of answers of 1 to 40 tokens; prompts differ in how far they need it."""
    prompt = np.repeat(np.arange(30), 2)
    tokens = rng.integers(1, 41, len(prompt))
    per_token = rng.normal(GAP, 0.2, 30)[prompt] + rng.normal(0, 0.1, len(prompt))
    shown = -2.0 * tokens
    return [self_gap(shown + per_token * tokens, shown, tokens, prompt)]


@replicated({"step of the largest gap": float(PEAK)}, at_least=True)
def peaks(rng: np.random.Generator, number: int) -> list[Estimate]:
    """A gap that rises to a step and falls again, in eight groups a step."""
    step = np.repeat(np.arange(1, 37), 8)
    means = GAP - 0.0004 * (step - PEAK) ** 2 + rng.normal(0, 0.05, len(step))
    return [peak(step, np.stack([means * 4, np.full(len(step), 4.0)], axis=1), number, 200)]


CHECKS = (
    *(middle, shares, pairs, visible, onset_times, entangled, growths),
    *(exploitation, checkpoint, gaps, peaks),
)
FAILING = (by_metric,)
