"""Checks of `analysis.selfcheck` for mixtures of domains: rates, shares, predictions, transfer."""

from __future__ import annotations

import numpy as np
from scipy.special import roots_jacobi

from analysis.arm.teaching import Drawn, expected
from analysis.arm.transfer import swaps, transfers
from analysis.planted.trials import Trials, replicated, trials
from analysis.planted.truth import Tabular
from analysis.records.runs import Run
from analysis.statistics.estimate import Estimate
from analysis.step.confusion import judged
from analysis.step.mixture import answers, mix, pulls
from study.rewards.advantages import advantages

GROUP = 8
DOMAINS = {
    "math": (24, (2.0, 3.0), (0.9, 0.1)),
    "qa": (18, (3.0, 2.0), (0.95, 0.6)),
    "code": (18, (3.0, 3.0), (0.4, 0.05)),
}
"""Domain -> prompts, parameters of the beta distribution of their pass rates, (TPR, FPR)."""


def planted(pass_rates: tuple[float, float], rates: tuple[float, float]) -> dict[str, float]:
    """What a group of a domain is expected to do, summed over every possible group.

    An answer is right or wrong, passed or not: four kinds, whose chances follow from p and the
    rates. The mean over p is Gauss-Jacobi quadrature.
    """
    tpr, fpr = rates
    right, passed = np.array([1.0, 0.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0, 0.0])
    nodes, weights = roots_jacobi(40, pass_rates[1] - 1, pass_rates[0] - 1)
    chance = 0.0
    for p, weight in zip((nodes + 1) / 2, weights / weights.sum(), strict=True):
        kinds = np.array([p * tpr, (1 - p) * fpr, p * (1 - tpr), (1 - p) * (1 - fpr)])
        table = Tabular(right, right[:, None], np.log(kinds))
        counts, of_group = table.every_group(GROUP)
        chance = chance + weight * of_group
    members = np.repeat(np.tile(np.arange(4), len(counts)), counts.ravel().astype(int))
    members = members.reshape(-1, GROUP)
    told, ruled = advantages(passed[members]), advantages(right[members])
    sums = {
        "pull": abs(told).sum(axis=1),
        "rule_pull": abs(ruled).sum(axis=1),
        "squares": (told**2).sum(axis=1),
        "rule_squares": (ruled**2).sum(axis=1),
        "product": (told * ruled).sum(axis=1),
        "taught": (told * right[members]).sum(axis=1),
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
    groups, told = pulls(run), answers([run])
    lenient, strict = (judged(told[told["domain"] == name]) for name in ("qa", "code"))
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


def _run(rng: np.random.Generator) -> Run:
    """A run of one step under the rates of `DOMAINS`."""
    truth, passed = [], []
    for prompts, pass_rates, (tpr, fpr) in DOMAINS.values():
        right = rng.random((prompts, GROUP)) < rng.beta(*pass_rates, (prompts, 1))
        truth.append(right.astype(float))
        passed.append((rng.random(right.shape) < np.where(right, tpr, fpr)).astype(float))
    judge = np.concatenate(passed)
    names = np.repeat(list(DOMAINS), [prompts for prompts, *_ in DOMAINS.values()]).astype(object)
    return Run(
        *("c", "a", 0, True, np.ones(len(judge), dtype=int), judge, advantages(judge)),
        *(np.concatenate(truth), judge, np.zeros((*judge.shape, 0)), ()),
        domain_P=names,
        prompt_P=np.arange(len(judge)),
    )


def moved(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """A judge of qa that costs it .1 of held-out accuracy and gives math .02, over five seeds."""
    seen: dict[str, list[Estimate]] = {"trained": [], "swapped": [], "elsewhere": []}
    for _ in range(count):
        runs = [
            run
            for seed in range(5)
            for run in _pair(seed, rng.normal(0, 0.03), rng.normal(0, 0.02, (2, 2)))
        ]
        seen["trained"] += [
            row.change for row in transfers(runs) if (row.arm, row.tested) == ("ruled", "qa")
        ]
        by_tested = {row.tested: row.change for row in swaps(runs)}
        seen["swapped"].append(by_tested["qa"])
        seen["elsewhere"].append(by_tested["math"])
    return {
        "transfer, t over seeds": trials(0.3, seen["trained"]),
        "swap, in the domain": trials(0.1, seen["swapped"]),
        "swap, in another": trials(-0.02, seen["elsewhere"]),
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
                *(arm + str(seed), arm, seed, True, np.array([1, 1])),
                *(nothing, nothing, nothing, nothing, np.zeros((2, 1, 0)), ()),
                config={**rewards, "reward.domains.qa": teacher, "judge.name": "j"},
                domain_P=np.array(["math", "qa"], dtype=object),
                held_out={
                    domain: {0: 0.4, 9: 0.4 + gain + shared + error}
                    for (domain, gain), error in zip(by_domain.items(), noise, strict=True)
                },
            )
        )
    return runs


CHECKS = (mixed, moved)
