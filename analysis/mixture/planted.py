"""Checks of `analysis.selfcheck` for mixtures of domains: rates, shares, predictions, transfer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
from scipy.special import roots_jacobi

from analysis.mixture.confusion import judged
from analysis.mixture.step import answers, mix, pulls
from analysis.mixture.teaching import Drawn, expected
from analysis.mixture.transfer import swaps, transfers
from analysis.planted.trials import Trials, replicated, trials
from analysis.planted.truth import Tabular
from analysis.records.runs import Run
from analysis.statistics.estimate import Estimate
from study.rewards.advantages import advantages

GROUP = 8
DOMAINS = {
    "math": (24, (2.0, 3.0), (0.9, 0.1)),
    "qa": (18, (3.0, 2.0), (0.95, 0.6)),
    "code": (18, (3.0, 3.0), (0.4, 0.05)),
}
"""Domain -> prompts, parameters of the beta distribution of their pass rates, (TPR, FPR)."""
WRONG = 3
"""Wrong answers to each prompt of `equal_answers`, which have a verdict each."""


def planted(pass_rates: tuple[float, float], rates: tuple[float, float]) -> dict[str, float]:
    """What a group of a domain is expected to do if each rollout has a verdict of its own.

    An answer is right or wrong, passed or not: four kinds, whose chances follow from p and the
    rates.
    """
    tpr, fpr = rates

    def kinds(p: float) -> np.ndarray:
        return np.array([p * tpr, (1 - p) * fpr, p * (1 - tpr), (1 - p) * (1 - fpr)])

    right, passed = np.array([1.0, 0.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0, 0.0])
    return _group_sums(right, passed, *_every_group(pass_rates, kinds))


def planted_texts(pass_rates: tuple[float, float], rates: tuple[float, float]) -> dict[str, float]:
    """The same if equal answers share a verdict, over all verdicts of one right text and `WRONG`
    wrong ones."""
    right = np.array([1.0] + [0.0] * WRONG)
    of_right = np.where(right > 0, *rates)
    groups = _every_group(pass_rates, lambda p: np.array([p, *[(1 - p) / WRONG] * WRONG]))
    sums: dict[str, float] = {}
    for verdicts in product([0.0, 1.0], repeat=len(right)):
        passed = np.array(verdicts)
        chance = float(np.prod(np.where(passed > 0, of_right, 1 - of_right)))
        for name, value in _group_sums(right, passed, *groups).items():
            sums[name] = sums.get(name, 0.0) + chance * value
    return sums


def _every_group(
    pass_rates: tuple[float, float], kinds: Callable[[float], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Every group of four kinds as members (C, G), and its chance (C,): the mean over p, by
    Gauss-Jacobi quadrature."""
    nodes, weights = roots_jacobi(40, pass_rates[1] - 1, pass_rates[0] - 1)
    nothing = np.zeros(4)
    tables = [Tabular(nothing, nothing[:, None], np.log(kinds(p))) for p in (nodes + 1) / 2]
    groups = [table.every_group(GROUP) for table in tables]
    counts = groups[0][0].astype(int)
    members = np.repeat(np.tile(np.arange(4), len(counts)), counts.ravel()).reshape(-1, GROUP)
    chances = np.stack([chance for _, chance in groups])
    return members, weights @ chances / weights.sum()


def _group_sums(
    right: np.ndarray, passed: np.ndarray, members: np.ndarray, chance: np.ndarray
) -> dict[str, float]:
    """What groups do on average, from what is right and passed of each kind of answer."""
    advantage, ruled = advantages(passed[members]), advantages(right[members])
    sums = {
        "pull": abs(advantage).sum(axis=1),
        "rule_pull": abs(ruled).sum(axis=1),
        "squares": (advantage**2).sum(axis=1),
        "rule_squares": (ruled**2).sum(axis=1),
        "product": (advantage * ruled).sum(axis=1),
        "taught": (advantage * right[members]).sum(axis=1),
        "rule_taught": (ruled * right[members]).sum(axis=1),
        "dead": (np.ptp(passed[members], axis=1) == 0).astype(float),
    }
    return {name: float(values @ chance) for name, values in sums.items()}


_PLANTED = {domain: planted(*how) for domain, (_, *how) in DOMAINS.items()}


def _share(domain: str, column: str) -> float:
    whole = {name: prompts * _PLANTED[name][column] for name, (prompts, *_) in DOMAINS.items()}
    return whole[domain] / sum(whole.values())


def _truth_part(domain: str) -> float:
    sums = _PLANTED[domain]
    explained = sums["product"] ** 2 / (sums["squares"] * sums["rule_squares"])
    return _share(domain, "pull") * explained


_QA, _CODE = _PLANTED["qa"], _PLANTED["code"]


@replicated(
    {
        "domain TPR, strict judge": DOMAINS["code"][2][0],
        "domain FPR, lenient judge": DOMAINS["qa"][2][1],
        "domain leniency, lenient judge": 0.6 + (0.95 - 0.6) * 0.6 - 0.6,
        "effective share, lenient judge": _share("qa", "pull"),
        "effective share by rule": _share("qa", "rule_pull"),
        "truth part, strict judge": _truth_part("code"),
        "rest, strict judge": _share("code", "pull") - _truth_part("code"),
        "expected share, strict judge": _share("code", "pull"),
        "expected dead, lenient judge": _QA["dead"],
        "expected taught, lenient judge": _QA["taught"] / _QA["rule_taught"],
        "expected taught, strict judge": _CODE["taught"] / _CODE["rule_taught"],
    }
)
def mixed(rng: np.random.Generator, number: int) -> tuple[Estimate, ...]:
    """One step of 60 prompts in three domains, whose pass rates differ by prompt."""
    run = _run(rng)
    groups, answer_rows = pulls(run), answers([run])
    lenient, strict = (
        judged(answer_rows[answer_rows["domain"] == name]) for name in ("qa", "code")
    )
    shares = mix(groups)
    total = sum(prompts for prompts, *_ in DOMAINS.values())
    weights = {domain: prompts / total for domain, (prompts, *_) in DOMAINS.items()}
    ahead = expected(Drawn.of([run]), weights)
    return (
        *(strict.tpr, lenient.fpr, lenient.leniency),
        *(shares["qa"].effective, shares["qa"].rule_effective),
        *(shares["code"].truth_part, shares["code"].rest, ahead["code"].effective),
        *(ahead["qa"].dead, ahead["qa"].relative, ahead["code"].relative),
    )


_TEXTS = planted_texts((2.0, 3.0), (0.6, 0.3))


@replicated(
    {
        "expected dead, equal answers": _TEXTS["dead"],
        "expected taught, equal answers": _TEXTS["taught"] / _TEXTS["rule_taught"],
    }
)
def equal_answers(rng: np.random.Generator, number: int) -> tuple[Estimate, ...]:
    """40 prompts with one right answer and three wrong ones, and a verdict for each of the four."""
    right = rng.random((40, GROUP)) < rng.beta(2.0, 3.0, (40, 1))
    text = np.where(right, 0, rng.integers(1, WRONG + 1, right.shape))
    verdicts = (rng.random((40, WRONG + 1)) < [0.6] + [0.3] * WRONG).astype(float)
    judge = np.take_along_axis(verdicts, text, axis=1)
    run = _of_step(judge, right.astype(float), np.full(40, "qa", dtype=object))
    (qa,) = expected(Drawn.of([replace(run, text=text)]), {}).values()
    return qa.dead, qa.relative


def _run(rng: np.random.Generator) -> Run:
    """A run of one step under the rates of `DOMAINS`."""
    truth, passed = [], []
    for prompts, pass_rates, (tpr, fpr) in DOMAINS.values():
        right = rng.random((prompts, GROUP)) < rng.beta(*pass_rates, (prompts, 1))
        truth.append(right.astype(float))
        passed.append((rng.random(right.shape) < np.where(right, tpr, fpr)).astype(float))
    names = np.repeat(list(DOMAINS), [prompts for prompts, *_ in DOMAINS.values()])
    return _of_step(np.concatenate(passed), np.concatenate(truth), names.astype(object))


def _of_step(judge: np.ndarray, truth: np.ndarray, domains: np.ndarray) -> Run:
    """A run of one step in which the judge's score is the reward."""
    return Run(
        cell="c",
        arm="a",
        seed=0,
        done=True,
        step_P=np.ones(len(judge), dtype=int),
        reward=judge,
        advantage=advantages(judge),
        truth=truth,
        judge=judge,
        features=np.zeros((*judge.shape, 0)),
        names=(),
        domain_P=domains,
        prompt_P=np.arange(len(judge)),
    )


def moved(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """A judge of qa that costs it .1 of held-out accuracy and gives math .02, over five seeds."""
    changes: dict[str, list[Estimate]] = {"trained": [], "swapped": [], "elsewhere": []}
    for _ in range(count):
        runs = [
            run
            for seed in range(5)
            for run in _pair(seed, rng.normal(0, 0.03), rng.normal(0, 0.02, (2, 2)))
        ]
        changes["trained"] += [
            row.change for row in transfers(runs) if (row.arm, row.tested) == ("ruled", "qa")
        ]
        by_tested = {row.tested: row.change for row in swaps(runs)}
        changes["swapped"].append(by_tested["qa"])
        changes["elsewhere"].append(by_tested["math"])
    return {
        "transfer, t over seeds": trials(0.3, changes["trained"]),
        "swap, in the domain": trials(0.1, changes["swapped"]),
        "swap, in another": trials(-0.02, changes["elsewhere"]),
    }


def _pair(seed: int, shared: float, noise_2_2: np.ndarray) -> list[Run]:
    """Two runs of a seed that differ in who rewards qa."""
    nothing = np.full((2, 1), np.nan)
    gains = {"judged": {"math": 0.12, "qa": 0.2}, "ruled": {"math": 0.1, "qa": 0.3}}
    runs = []
    for (arm, by_domain), noise in zip(gains.items(), noise_2_2, strict=True):
        teacher = "judge" if arm == "judged" else "rule"
        rewards = {"reward.name": "by-domain", "reward.domains.math": "judge"}
        runs.append(
            Run(
                cell=arm + str(seed),
                arm=arm,
                seed=seed,
                done=True,
                step_P=np.array([1, 1]),
                reward=nothing,
                advantage=nothing,
                truth=nothing,
                judge=nothing,
                features=np.zeros((2, 1, 0)),
                names=(),
                config={**rewards, "reward.domains.qa": teacher, "judge.name": "j"},
                domain_P=np.array(["math", "qa"], dtype=object),
                held_out={
                    domain: {0: 0.4, 9: 0.4 + gain + shared + error}
                    for (domain, gain), error in zip(by_domain.items(), noise, strict=True)
                },
            )
        )
    return runs


CHECKS = (mixed, equal_answers, moved)
