"""Looked at in every step of a run, missing verdicts are told where they take the truth's push."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from analysis.records.runs import Run
from experiments.monitor.lost_push import STEPS, Lost, beyond_chance

TRAINED, PROMPTS, GROUP, BEHAVIOURS, CRITERIA = 48, 8, 8, 33, 4
ROWS = 64
"""Different prompts; a step draws from them."""
LENGTH = 0
MISSING = 0.12
Missing = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def at_random(rng: np.random.Generator, length_P_G: np.ndarray) -> np.ndarray:
    return rng.random(length_P_G.shape) < MISSING


def where_long(rng: np.random.Generator, length_P_G: np.ndarray) -> np.ndarray:
    return rng.random(length_P_G.shape) < np.where(length_P_G > 1, 0.5, 0.04)


def run_of(rng: np.random.Generator, missing: Missing, on_failure: str) -> Run:
    """A run whose answers are longer where they are right; a quarter of its behaviours is rare
    counts, another is rare, a third has a heavy tail."""
    shape = (TRAINED * PROMPTS, GROUP)
    chance_P = np.clip(rng.beta(2, 2, shape[0]), 0.02, 0.98)
    truth = rng.binomial(CRITERIA, chance_P[:, None], shape) / CRITERIA
    draws = (
        lambda: rng.standard_normal(shape),
        lambda: rng.poisson(0.05, shape),
        lambda: rng.random(shape) < 0.02,
        lambda: rng.lognormal(0, 1, shape),
    )
    features = np.stack([draws[k % 4]() for k in range(BEHAVIOURS)], axis=-1).astype(float)
    features[..., LENGTH] += 2 * (truth - chance_P[:, None])
    judge = np.clip(truth + rng.normal(0, 0.1, shape), 0, 1)
    judge[missing(rng, features[..., LENGTH])] = np.nan
    sd = features.reshape(-1, BEHAVIOURS).std(axis=0)
    return Run(
        *("", "", 0, False, np.repeat(np.arange(1, TRAINED + 1), PROMPTS), judge),
        *(np.full(shape, np.nan), truth, judge, features / sd),
        tuple(f"behaviour {k}" for k in range(BEHAVIOURS)),
        on_failure=on_failure,
        prompt_P=rng.integers(0, ROWS, len(truth)).astype(str),
    )


def first_told(run: Run) -> Lost | None:
    """What the first look that tells anything tells."""
    for step in range(4, TRAINED + 1):
        here = (run.step_P <= step) & (run.step_P > step - STEPS)
        arrays = ("step_P", "reward", "advantage", "truth", "judge", "features", "prompt_P")
        newest = replace(run, **{name: getattr(run, name)[here] for name in arrays})
        if (lost := beyond_chance(newest)) is not None:
            return lost
    return None


def test_zeros_in_the_place_of_verdicts_take_a_tenth_of_the_push() -> None:
    lost = first_told(run_of(np.random.default_rng(0), at_random, "zero"))
    assert lost is not None and lost.lost / lost.push >= 0.1


@pytest.mark.long
def test_verdicts_that_are_missing_at_random_are_hardly_ever_told() -> None:
    """In 1 run of 300 by docs/monitor.md; two or more of 100 then have a chance of .045."""
    rng = np.random.default_rng(1)
    lost = [first_told(run_of(rng, at_random, "unscored")) for _ in range(100)]
    assert sum(each is not None for each in lost) <= 1


@pytest.mark.long
def test_verdicts_that_are_missing_where_answers_are_long_are_told() -> None:
    """29 of 40 by docs/monitor.md; 18 or fewer then have a chance of .0003."""
    rng = np.random.default_rng(2)
    lost = [first_told(run_of(rng, where_long, "unscored")) for _ in range(40)]
    names = [each.behaviour for each in lost if each is not None]
    assert len(names) > 18 and set(names) == {f"behaviour {LENGTH}"}
