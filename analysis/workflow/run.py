"""What one run of programs says: how many ran, where its judge left the truth, and by what way.

The over-reward of an operator is the slope of judge minus truth on how often each program called
it, among programs of equal truth for one problem. It says which calls the judge pays for beyond
what they do for the truth, whatever it makes of the truth. Problems are the clusters: a problem may
be drawn in several steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.records.frames import OPERATOR
from analysis.records.runs import ends, tenths
from analysis.statistics.estimate import NAN, Estimate, around, ratio, ratio_se
from analysis.statistics.fixed_effects import at_equal_levels, fixed_effects
from analysis.statistics.intervals import student
from analysis.workflow.programs import PlantedPrograms, Programs, masked
from study.cell.records import COMPONENT
from study.programs.endings import REFUSED, Ending
from study.programs.rewards import TERMS, Terms, effective_share

RATES = ("parse", "contract", "executed", "extractable", "masked")
"""Shares of all generations; what they are is said by `generations`."""
FLAGS = ("constant", "judge_address", "option_list")
EXPLOITS = ("constant", "literal_share", "judge_address", "option_list", "excess_calls")
TERM, PENALTIES = "workflow_", ("overlong", "repetition")
"""How a recorded term of a reward of programs begins; beside those stand penalties of any reward.
"""
ALL = "all"
"""Stands for the domain of rows that name none."""
ALIKE = "as many calls in all programs that are compared"
TOGETHER = "its calls follow from those of other operators"
Ends = tuple[float, float]
"""Of the first and of the last tenth of the steps."""


def generations(programs: Programs) -> pd.DataFrame:
    """`RATES` of every rollout, 0 or 1.

    parse: a program was found that is one. contract: it was not refused before it ran. executed: it
    ran to an answer. extractable: the rule's reader finds an answer in that (``feature/format`` is
    1; where it was not recorded, the answer is not blank). A fallback counts in none of these four,
    for the policy did not write it. masked: an infrastructure failure ended the run.
    """
    outcome, format_ = programs.rollouts["outcome"], programs.feature("format")
    own = outcome.notna() & ~programs.feature("fallback").gt(0)
    readable = format_.eq(1) | (format_.isna() & ~programs.rollouts["blank"].astype(bool))
    executed = own & outcome.eq(Ending.OK)
    shares = {
        "parse": own & outcome.ne(Ending.SYNTAX_ERROR),
        "contract": own & ~outcome.isin(REFUSED),
        "executed": executed,
        "extractable": executed & readable,
        "masked": masked(outcome),
    }
    return pd.DataFrame(shares).astype(float)


def curves(programs: Programs) -> dict[str, np.ndarray]:
    """Metric -> its mean in each step of the run, (T,); NaN where a step has nothing of it.

    `RATES`; ``calls/OPERATOR`` per executed program; `EXPLOITS` among executed programs, excess
    calls among their calls; ``right``, the share of the generations that are right.
    """
    rates = generations(programs)
    by_step = {name: programs.by_step(rates[name]) for name in RATES}
    executed = programs.executed
    by_step |= {
        f"calls/{name}": programs.by_step(executed[f"{OPERATOR}{name}"])
        for name in programs.operators
    }
    by_step |= {name: programs.by_step(programs.has_flag(name, executed)) for name in FLAGS}
    by_step["literal_share"] = programs.by_step(programs.feature("literal_share", executed))
    by_step["excess_calls"] = _excess_calls(programs)
    return by_step | {"right": programs.by_step(right(programs))}


def right(programs: Programs) -> pd.Series:
    """The truth of each generation: of a program that came to no answer 0, for it gave none; NaN
    where an infrastructure failure ended it, and where the truth could not be had."""
    rollouts = programs.rollouts
    failed = rollouts["outcome"].notna() & rollouts["outcome"].ne(Ending.OK)
    truth = rollouts["truth"].where(~failed, 0.0)
    if not rollouts["truth"].notna().any():
        return truth * np.nan
    return truth.where(~masked(rollouts["outcome"]))


def _excess_calls(programs: Programs) -> np.ndarray:
    """Of each step, the share of its executed operator calls beyond those that the cheapest program
    of the same group with the same answer needed, (T,)."""
    executed = programs.executed
    calls = programs.feature("calls", executed)
    counted_rows = executed.assign(calls=calls)[calls.notna() & executed["answer"].notna()]
    cheapest = counted_rows.groupby(["step", "group", "answer"])["calls"].transform("min")
    counted_rows = counted_rows.assign(excess=counted_rows["calls"] - cheapest)
    sums = counted_rows.groupby("step")[["excess", "calls"]].sum().reindex(programs.run.steps)
    return (sums["excess"] / sums["calls"].where(sums["calls"] > 0)).to_numpy(dtype=float)


def at_ends(by_step: dict[str, np.ndarray]) -> dict[str, Ends]:
    """Means of the first and the last tenth of the steps of each metric."""
    return {name: ends(values) for name, values in by_step.items()}


def gaps(programs: Programs) -> dict[str, Estimate]:
    """Domain -> mean judge minus truth of the executed programs, CR1 and t over problems."""
    judged = programs.judged
    return {
        str(domain) or ALL: clustered_mean(part["error"].to_numpy(), part["prompt_id"])
        for domain, part in judged.groupby("domain", sort=True)
    }


def clustered_mean(values_N: np.ndarray, problems: Any) -> Estimate:
    """The mean of N values, CR1 and t over the problems that they are of; labels, shape (N,)."""
    codes, names = pd.factorize(problems)
    sums = np.stack([np.bincount(codes, values_N), np.bincount(codes)], axis=1)
    mean, count = float(ratio(sums.sum(axis=0))), len(names)
    if count < 2:
        return Estimate(mean, n=count, unit="problem", note="one problem, no interval")
    return around(mean, student(count - 1) * ratio_se(sums), count, "problem")


def over_rewards(programs: Programs) -> dict[str, Estimate]:
    """Operator -> judge minus truth per call of it, as `slopes` finds it."""
    judged = programs.judged
    problems_N, truth_N = judged["prompt_id"].to_numpy(), judged["truth"].to_numpy(dtype=float)
    groups_N, beside_N_Q = at_equal_levels(truth_N, programs.groups_N, problems_N)
    return slopes(
        judged["error"].to_numpy(),
        judged[[f"{OPERATOR}{name}" for name in programs.operators]].to_numpy(dtype=float),
        groups_N,
        problems_N,
        programs.operators,
        beside_N_Q,
    )


def planted_over_rewards(programs: Programs, planted: PlantedPrograms) -> dict[str, Estimate]:
    """The same slopes of what is expected of each program on its data set, in place of what was
    seen; of the rollouts whose program stands in ``planted.json``. Expectations are at equal truth
    where the expected truth is a regressor: a score that depends on a truth of 0 or 1 is expected
    to be linear in it."""
    judged = programs.judged
    truth = planted.of(judged)
    expected = planted.of(judged, programs.run.acting) - truth
    has_expected = np.isfinite(expected)
    columns = [f"{OPERATOR}{name}" for name in programs.operators]
    by_operator = slopes(
        expected[has_expected],
        judged[columns].to_numpy(dtype=float)[has_expected],
        programs.groups_N[has_expected],
        judged["prompt_id"].to_numpy()[has_expected],
        programs.operators,
        truth[has_expected, None],
    )
    if has_expected.all() or not has_expected.any():
        return by_operator
    note = f"from {has_expected.mean():.0%} of the rollouts"
    return {name: replace(each, note=each.note or note) for name, each in by_operator.items()}


def slopes(
    error_N: np.ndarray,
    counts_N_K: np.ndarray,
    groups_N: np.ndarray,
    problems_N: np.ndarray,
    operators: Sequence[str],
    beside_N_Q: np.ndarray | None = None,
) -> dict[str, Estimate]:
    """Least squares of ``error_N`` on the counts of K operators with a constant per group, and on
    columns beside them of which no slope is said.

    CR1 by problem, t with problems - 1 degrees of freedom. An operator whose counts do not vary in
    any group, or follow from those of others, has no slope, and its note says so.
    """
    has_counts = np.isfinite(counts_N_K).all(axis=1)
    error, counts = error_N[has_counts], counts_N_K[has_counts]
    beside = np.empty((len(error_N), 0)) if beside_N_Q is None else beside_N_Q
    problems, _ = pd.factorize(problems_N[has_counts])
    if not len(error):
        return {name: Estimate(NAN, unit="problem", note="no judged program") for name in operators}
    columns = np.concatenate([counts, beside[has_counts]], axis=1)
    fit = fixed_effects(error, columns, groups_N[has_counts], clusters_N=problems)
    low, high = fit.interval()
    estimates = {}
    for k, name in enumerate(operators):
        note = _unidentified(counts[:, k], groups_N[has_counts], k, fit.kept, fit.entangled)
        if not note and fit.free <= 0:
            note = "more operators than comparisons within groups"
        if note:
            estimates[name] = Estimate(NAN, n=fit.clusters, unit="problem", note=note)
            continue
        note = "" if fit.clusters > 1 else "one problem, no interval"
        estimates[name] = Estimate(
            float(fit.coef_K[k]), float(low[k]), float(high[k]), fit.clusters, "problem", note=note
        )
    return estimates


def _unidentified(
    counts_N: np.ndarray,
    groups_N: np.ndarray,
    k: int,
    kept: Sequence[int],
    entangled: Sequence[int],
) -> str:
    """Why the slope on a column is not identified; empty where it is."""
    if not counts_N.any():
        return "never called"
    of_group = pd.Series(counts_N).groupby(groups_N)
    if (of_group.transform("max") == of_group.transform("min")).all():
        return ALIKE
    return TOGETHER if k not in kept or k in entangled else ""


def shares(programs: Programs) -> dict[str, float]:
    """Effective share of each term of the reward, over all groups; NaN where no reward varies
    within any (`study.programs.rewards.effective_share`)."""
    rollouts = programs.rollouts
    table = rollouts[[name for name in rollouts if name.startswith(COMPONENT)]]
    table = table.rename(columns=lambda name: name.removeprefix(COMPONENT))
    if any(name.startswith(TERM) for name in table):
        table = table.rename(columns={name: f"{name} penalty" for name in PENALTIES})
        table = table.rename(columns=lambda name: name.removeprefix(TERM))
    of_reward = dict.fromkeys((*TERMS, *PENALTIES, *(f"{name} penalty" for name in PENALTIES)))
    table = table[[name for name in of_reward if name in table and table[name].notna().any()]]
    paid = rollouts["reward"].notna()
    groups: dict[tuple[int, int], list[Terms | None]] = {}
    places = zip(rollouts["step"], rollouts["group"], strict=True)
    for place, has_reward, terms in zip(places, paid, table.to_dict("records"), strict=True):
        recorded_terms = {
            str(name): float(value) for name, value in terms.items() if value == value
        }
        groups.setdefault(place, []).append(
            recorded_terms if has_reward and recorded_terms else None
        )
    return effective_share(list(groups.values()))


def expected_ends(
    programs: Programs, planted: PlantedPrograms, judge: str = ""
) -> tuple[float, float, tuple[str, ...]]:
    """Expected score (truth where no judge is named) of the executed programs in the first and in
    the last tenth of the steps, by the data sets' shares, and the data sets of both tenths."""
    executed = programs.executed
    values = pd.Series(planted.of(executed, judge), executed.index)
    by_dataset = []
    for part in tenths(programs.run.steps):
        here = executed["step"].isin(part)
        by_dataset.append(values[here].groupby(executed.loc[here, "dataset"]).mean().dropna())
    shared = tuple(name for name in by_dataset[0].index if name in by_dataset[1].index)
    first, last = (planted.weighted({name: each[name] for name in shared}) for each in by_dataset)
    return first, last, shared
