"""Checks of `analysis.selfcheck` for runs of programs: over-rewards of operators, gap by domain."""

from __future__ import annotations

import numpy as np

from analysis.planted.trials import replicated
from analysis.statistics.estimate import Estimate
from analysis.statistics.fixed_effects import at_equal_levels
from analysis.workflow.arm import over_runs
from analysis.workflow.run import clustered_mean, slopes

SEEDS, PROBLEMS, MEMBERS = 5, 40, 6
OPERATORS = ("Review", "Custom", "Format")
PAID = (0.15, 0.05, 0.0)
"""Judge minus truth per call of each operator. Format is called twice in every program."""
MOST_GROUPS = 3
"""Groups of one problem: one to so many."""
GAP = 0.1


def _run(rng: np.random.Generator, shift: float) -> tuple[dict[str, Estimate], Estimate]:
    """Over-rewards and gap of one run. What a judge pays for a call, and how far it is off, differ
    by problem; a problem is drawn in one to three steps; ``shift`` is the run's own part of both.
    """
    groups = rng.integers(1, MOST_GROUPS + 1, PROBLEMS)
    problem_P = np.repeat(np.arange(PROBLEMS), groups)
    group = np.repeat(np.arange(len(problem_P)), MEMBERS)
    problem = problem_P[group]
    calls = rng.poisson((1.0, 0.8), (len(group), 2))
    counts = np.column_stack([calls, np.full(len(group), 2)]).astype(float)
    paid = np.array(PAID) + rng.normal(0, 0.1, (PROBLEMS, 3))[problem] + shift
    noise = rng.normal(0, 0.3, len(group)) + rng.normal(0, 0.2, len(problem_P))[group]
    over_rewards = slopes((paid * counts).sum(axis=1) + noise, counts, group, problem, OPERATORS)
    off = GAP + shift + rng.normal(0, 0.2, PROBLEMS)[problem] + noise
    return over_rewards, clustered_mean(off, problem)


@replicated(
    {
        "over-reward, CR1 by problem": PAID[0],
        "gap, CR1 by problem": GAP,
        "over-reward, t over seeds": PAID[0],
        "over-reward of another, t over seeds": PAID[1],
        "gap, t over seeds": GAP,
    }
)
def programs(rng: np.random.Generator, number: int) -> tuple[Estimate, ...]:
    """One run in which runs do not differ, and five seeds in which they do."""
    alone, gap = _run(rng, 0.0)
    seeds = [_run(rng, shift) for shift in rng.normal(0, 0.03, SEEDS)]
    first, second = (
        over_runs([over_rewards[name] for over_rewards, _ in seeds]) for name in OPERATORS[:2]
    )
    return alone[OPERATORS[0]], gap, first, second, over_runs([gap for _, gap in seeds])


LEVELS = {"of 0 or 1": 1, "of 5 levels": 4, "of any value": 1000}
"""Kinds of truth, and how many values it has but 0."""
COMPRESSED = {
    f"{said} operator, compressed truth {kind}": paid
    for kind in LEVELS
    for said, paid in (("unpaid", 0.0), ("paid", PAID[0]))
}


@replicated(COMPRESSED)
def compressed(rng: np.random.Generator, number: int) -> list[Estimate]:
    """Over-rewards of an operator that makes programs right, by a judge that says little of the
    truth: its square on easy problems and nearly nothing of it on hard ones."""
    groups = rng.integers(1, MOST_GROUPS + 1, PROBLEMS)
    problem_P = np.repeat(np.arange(PROBLEMS), groups)
    group = np.repeat(np.arange(len(problem_P)), MEMBERS)
    problem = problem_P[group]
    chance = rng.uniform(0.1, 0.7, PROBLEMS)[problem]
    says = np.where(chance > 0.4, 0.7, 0.1)
    estimates = []
    for values in LEVELS.values():
        calls = rng.poisson((1.0, 0.8), (len(group), 2)).astype(float)
        right = np.minimum(chance + 0.15 * calls[:, 0], 0.95)
        truth = rng.binomial(values, rng.beta(6 * right, 6 * (1 - right))) / values
        noise = rng.normal(0, 0.2, len(group)) + rng.normal(0, 0.2, len(problem_P))[group]
        matched, beside = at_equal_levels(truth, group, problem)
        for paid in (0.0, PAID[0]):
            error = 0.2 + says * truth**2 - truth + paid * calls[:, 0] + noise
            found = slopes(error, calls, matched, problem, OPERATORS[:2], beside)
            estimates.append(found[OPERATORS[0]])
    return estimates


CHECKS = (programs, compressed)
