"""Which domain pulls on a policy, and how much of its pull is truth.

An update sums advantages, so a domain's share of it is its share of the sum of |A|: the *effective*
mix, which is not the nominal one, and which a judge moves without touching a weight. The share
alone does not tell signal from noise. So the domain's advantages are projected on those that the
truth would have given the same rollouts. With c the cosine of the two, which the ledger calls
``align/truth/cosine`` (`study.rewards.advantages.alignment`), c^2 is the share of the sum of
squares that the projection explains, and the *truth part* is the effective share times c |c|: all
of it under the rule, 0 under random verdicts, negative where wrong answers are preferred. What is
left is the *rest*. (The parts of `analysis.ledger.transmission.split` add up rollout by rollout,
but the first is the truth divided by the reward's sd, which does not vanish where verdicts are
random.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.records.runs import Run
from analysis.statistics.bootstrap import FEWEST, resampled_sums, widened
from analysis.statistics.estimate import LEVEL, NAN, Estimate
from study.rewards.advantages import advantages
from study.tasks import mix as arithmetic
from study.tasks.mix import shares
from study.tasks.mixture import DOMAINS

REPLICATES = 1000
PARTS = 10
"""Windows that a study's steps are cut into, at most."""
SUMS = ("pull", "rule_pull", "squares", "product", "rule_squares")
"""Columns of `pulls` that a bootstrap resamples."""


@dataclass(frozen=True)
class Mix:
    """A domain's shares of what some steps did; intervals are over prompts.

    ``nominal`` is its share of the weights, ``realised`` of the groups, ``effective`` of the sum
    of |advantage|, ``rule_effective`` of that sum had every reward been the rule's truth.
    ``truth_part`` and ``rest`` add up to ``effective``. ``dead`` is the share of its groups that
    push nothing.
    """

    nominal: float
    realised: float
    effective: Estimate
    rule_effective: Estimate
    truth_part: Estimate
    rest: Estimate
    dead: float
    groups: int
    prompts: int


def answers(runs: Sequence[Run]) -> pd.DataFrame:
    """Rollouts in the columns that `analysis.mixture.confusion.judged` takes, beside arm and
    step."""
    parts = []
    for run in (run for run in runs if run.domain_P is not None):
        recorded = np.stack([run.judge, run.truth, run.advantage, run.reward])
        present: np.ndarray = np.any(np.isfinite(recorded), axis=0)
        group = np.broadcast_to(np.arange(len(present))[:, None], present.shape)[present]
        assert run.domain_P is not None and run.prompt_P is not None
        parts.append(
            pd.DataFrame(
                {"arm": run.arm, "step": run.step_P[group], "item": run.prompt_P[group]}
                | {"domain": run.domain_P[group]}
                | {"judge": run.judge[present], "truth": run.truth[present]}
            )
        )
    columns = ["arm", "step", "item", "domain", "judge", "truth"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def pulls(run: Run) -> pd.DataFrame:
    """What each group of a run pushed, one row a group.

    Columns: cell, arm, seed, step, prompt, domain; ``pull`` and ``rule_pull``, sums of
    |A| as it was and under the rule; ``squares`` and ``rule_squares``, sums of A^2, and
    ``product``, the sum of products of the two, 0 for a group in which a rewarded rollout has no
    truth.
    """
    assert run.domain_P is not None and run.prompt_P is not None
    advantage, ruled = np.nan_to_num(run.advantage), by_rule(run)
    rewarded, has_truth = np.isfinite(run.reward), np.isfinite(run.truth)
    whole = (has_truth | ~rewarded).all(axis=1, keepdims=True)
    return pd.DataFrame(
        {"cell": run.cell, "arm": run.arm, "seed": run.seed, "step": run.step_P}
        | {"prompt": run.prompt_P, "domain": run.domain_P}
        | {"pull": abs(advantage).sum(axis=1)}
        | {"rule_pull": abs(ruled).sum(axis=1)}
        | {"squares": (whole * advantage**2).sum(axis=1)}
        | {"product": (whole * advantage * ruled).sum(axis=1)}
        | {"rule_squares": (whole * ruled**2).sum(axis=1)}
    )


def by_rule(run: Run) -> np.ndarray:
    """Advantages of a run's rollouts had the truth been their reward, (P, G); a batch is a step."""
    if run.scale != "batch":
        return advantages(run.truth, run.scale)
    result = np.zeros(run.truth.shape)
    for step in np.unique(run.step_P):
        rows = run.step_P == step
        result[rows] = advantages(run.truth[rows], run.scale)
    return result


def nominal(run: Run, domains: Sequence[str]) -> dict[str, float]:
    """Each domain's share of the weights that a run drew by.

    As the run logged them (``domain/<name>/nominal_share``), else by its ``task.options.domains``,
    else 4:3:3 of math, qa and code (`study.tasks.mixture.DOMAINS`); NaN for domains beyond those.
    """
    logged = {d: run.logged.get(f"domain/{d}/nominal_share", np.array([])) for d in domains}
    weights = {d: float(values[np.isfinite(values)][:1].sum()) for d, values in logged.items()}
    if not all(weights.values()):
        weights = {d: run.config.get(f"task.options.domains.{d}") or 0.0 for d in domains}
    if not all(weights.values()):
        weights = {d: DOMAINS.get(d, NAN) for d in domains}
    return arithmetic.nominal(weights)


def mix(
    groups: pd.DataFrame, weights: Mapping[str, float] | None = None, level: float = LEVEL
) -> dict[str, Mix]:
    """Shares of each domain, in order of the names.

    The mixture gives each domain its turns, so the bootstrap draws prompts anew inside each domain
    (percentiles expanded as `analysis.statistics.bootstrap.widened` says). No interval where a
    domain has fewer than ten prompts.

    Args:
        groups: rows of `pulls` of one or more runs; those without a domain are left out.
        weights: nominal share of each domain.
        level: of the intervals.
    """
    named = groups[groups["domain"].ne("")]
    domains = sorted(named["domain"].unique())
    parts = {domain: named[named["domain"] == domain] for domain in domains}
    sums = {domain: _by_prompt(part) for domain, part in parts.items()}
    units = min(map(len, sums.values()), default=0)
    whole = _measures(np.array([[each.sum(axis=0)] for each in sums.values()]))
    drawn = None
    if units >= FEWEST:
        rng = np.random.default_rng(0)
        drawn = _measures(
            np.array([resampled_sums(each, REPLICATES, rng) for each in sums.values()])
        )
    note = "" if units >= FEWEST else f"a domain has fewer than {FEWEST} prompts: no interval"
    realised = arithmetic.realised(named["domain"].to_numpy())
    mixes = {}
    for place, domain in enumerate(domains):
        estimates = {}
        for measure, values in whole.items():
            value = Estimate(float(values[place, 0]), n=len(sums[domain]), unit="prompt")
            value = replace(value, level=level, note=note)
            if drawn is not None:
                value = _with_ends(value, drawn[measure][place], widened(units, level))
            estimates[measure] = value
        mixes[domain] = Mix(
            nominal=(weights or {}).get(domain, NAN),
            realised=realised[domain],
            **estimates,
            dead=float((parts[domain]["pull"] == 0).mean()),
            groups=len(parts[domain]),
            prompts=len(sums[domain]),
        )
    return mixes


def _by_prompt(groups: pd.DataFrame) -> np.ndarray:
    """`SUMS` of each prompt, shape (C, M)."""
    codes, prompts = pd.factorize(groups["prompt"])
    columns = (np.bincount(codes, groups[name], len(prompts)) for name in SUMS)
    return np.stack(list(columns), axis=1)


def _measures(sums_D_B_M: np.ndarray) -> dict[str, np.ndarray]:
    """Effective shares and their parts of D domains from B sets of `SUMS`, each (D, B)."""
    if not len(sums_D_B_M):
        return {}
    pull, rule_pull, squares, product, rule_squares = np.moveaxis(sums_D_B_M, -1, 0)
    effective, rule_effective = (_share(each) for each in (pull, rule_pull))
    size = squares * rule_squares
    explained = np.divide(product * abs(product), size, out=np.zeros_like(size), where=size > 0)
    truth_part = effective * explained
    return {
        "effective": effective,
        "rule_effective": rule_effective,
        "truth_part": truth_part,
        "rest": effective - truth_part,
    }


def _share(values_D_B: np.ndarray) -> np.ndarray:
    total = values_D_B.sum(axis=0)
    return np.divide(values_D_B, total, out=np.full(values_D_B.shape, np.nan), where=total > 0)


def _with_ends(value: Estimate, drawn_B: np.ndarray, tail: float) -> Estimate:
    finite = drawn_B[np.isfinite(drawn_B)]
    if len(finite) <= REPLICATES / 2:
        return replace(value, note="nothing pushed in most resamples: no interval")
    low, high = np.quantile(finite, [tail, 1 - tail]).tolist()
    return replace(value, low=low, high=high)


def windows(groups: pd.DataFrame, width: int = 0) -> list[tuple[int, int]]:
    """First and last step of each window, over the steps of ``groups``.

    ``width`` steps each; 0: `PARTS` windows, or fewer where one of them would leave a domain of an
    arm with under ten groups on average.
    """
    if groups.empty:
        return []
    first, last = int(groups["step"].min()), int(groups["step"].max())
    steps = last - first + 1
    if not width:
        fewest = min(len(part) for _, part in groups.groupby(["arm", "domain"]))
        width = math.ceil(steps / max(1, min(PARTS, steps, fewest // FEWEST)))
    return [(start, min(start + width - 1, last)) for start in range(first, last + 1, width)]


def between(frame: pd.DataFrame, window: tuple[int, int]) -> pd.DataFrame:
    """The rows whose step lies in a window."""
    return frame[frame["step"].between(*window)]


def mix_curves(groups: pd.DataFrame, spans: Sequence[tuple[int, int]]) -> pd.DataFrame:
    """Effective shares of each run in each window, long: cell, arm, seed, step, metric, value.

    ``step`` is the middle of the window and ``metric`` the domain.
    """
    parts = []
    for window in spans:
        inside = between(groups, window)
        for cell, part in inside.groupby("cell", sort=False):
            run = part.iloc[0]
            values = shares(part["pull"].to_numpy(dtype=float), part["domain"].to_numpy())
            parts += [
                {"cell": cell, "arm": run["arm"], "seed": run["seed"], "step": sum(window) / 2}
                | {"metric": domain, "value": share}
                for domain, share in values.items()
                if domain
            ]
    return pd.DataFrame(parts, columns=["cell", "arm", "seed", "step", "metric", "value"])
