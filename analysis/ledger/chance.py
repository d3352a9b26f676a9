"""Whether a quantity of some runs is beyond chance, by what their prompts let expect of it.

That a judge pays for nothing, or that verdicts are missing at random, makes a quantity 0 in every
run, whatever its policy learnt. So what chance does to it is the sampling of prompts and rollouts,
and a few runs of many prompts can tell it. Runs of an arm meet the same prompts and often the same
answers, so a prompt is one cluster in all of them. How much an arm's runs differ is another
question, which the t interval over runs answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.records.runs import Run


@dataclass(frozen=True)
class Measured:
    """One run's values of K features, NaN where they cannot be told."""

    value_K: np.ndarray
    prompts: tuple[object, ...]
    """The C clusters, by what they are called in all runs."""
    pull_C_K: np.ndarray
    """What each adds to the error of the value: their sum has its variance."""


def by_prompt(run: Run, value_K: np.ndarray, pull_P_K: np.ndarray) -> Measured:
    """What the groups of a run add to an error, added up by prompt; each is alone in its cluster
    where its prompt is not known."""
    if run.prompt_P is None:
        alone = tuple((run.cell, run.seed, place) for place in range(len(pull_P_K)))
        return Measured(value_K, alone, pull_P_K)
    places: dict[object, int] = {}
    at = [places.setdefault(prompt, len(places)) for prompt in run.prompt_P.tolist()]
    pulls = np.zeros((len(places), pull_P_K.shape[1]))
    np.add.at(pulls, at, pull_P_K)
    return Measured(value_K, tuple(places), pulls)


def chance(runs: Sequence[Measured]) -> np.ndarray:
    """Two-sided p, shape (K,), that the mean over runs is 0 but for the sampling of C prompts.

    Student's t with C - 1 degrees of freedom, of the standard error over prompts with the factor
    C / (C - 1). Runs without a value are left out; NaN for fewer than two prompts.
    """
    values = np.array([run.value_K for run in runs])
    has_value = np.isfinite(values)
    count = np.maximum(has_value.sum(axis=0), 1)
    places: dict[object, int] = {}
    at = [[places.setdefault(prompt, len(places)) for prompt in run.prompts] for run in runs]
    pulls, touched = np.zeros((2, len(places), values.shape[1]))
    for run, known, here in zip(runs, has_value, at, strict=True):
        pull = np.where(known, run.pull_C_K, 0.0)
        np.add.at(pulls, here, pull / count)
        np.add.at(touched, here, pull != 0)
    clusters = (touched > 0).sum(axis=0)
    factor = clusters / np.maximum(clusters - 1, 1)
    se = np.sqrt(factor * (pulls**2).sum(axis=0))
    mean = np.where(has_value, values, 0.0).sum(axis=0) / count
    known = has_value.any(axis=0) & (clusters > 1) & (se > 0)
    t = np.divide(mean, se, out=np.full(len(se), np.nan), where=known)
    return 2 * stats.t.sf(np.abs(t), np.maximum(clusters - 1, 1))
