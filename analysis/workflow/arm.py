"""What each judge taught a policy that writes programs: the runs of an arm together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.records.runs import Records
from analysis.statistics.estimate import NAN, Estimate
from analysis.statistics.intervals import mean_interval
from analysis.workflow import run as of_run
from analysis.workflow.programs import PlantedPrograms, Programs, read_planted, read_programs
from analysis.workflow.run import ALIKE, EXPLOITS, RATES, TOGETHER
from analysis.workflow.treatments import Treatment, treatments

SEEN, NOT_SEEN, UNTOLD = "seen", "not seen", "not to be told"
"""Whether the judge ran ahead of the truth while the policy learned."""

UNIDENTIFIED = {
    ALIKE: "called as often in all programs that are compared",
    TOGETHER: "called only as other operators are",
}
"""Note of an over-reward that is not known -> what it says of the programs."""


@dataclass(frozen=True)
class Operator:
    """One operator under one judge: mean calls per executed program in the first and last tenth of
    the steps, and what the judge pays per call beyond the truth, beside what is planted."""

    first: float
    last: float
    over_reward: Estimate
    planted: Estimate | None


@dataclass(frozen=True)
class Optimum:
    """Where a judge leads, by ``planted.json``.

    Attributes:
        truth: expected truth of the small programs that the judge scores highest.
        best: the highest expected truth of small programs.
        reached: how far the policy went from its first tenth to that score, as a share.
        first_truth, last_truth: expected truth of the executed programs at both ends.
        programs: data set -> the program that the judge scores highest.
    """

    truth: float = NAN
    best: float = NAN
    reached: Estimate = field(default_factory=lambda: Estimate(NAN))
    first_truth: float = NAN
    last_truth: float = NAN
    programs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Arm:
    """What the runs of one arm say; pairs are means of the first and the last tenth."""

    runs: int
    rates: dict[str, of_run.Ends]
    gap: dict[str, Estimate]
    gap_change: Estimate
    shares: dict[str, float]
    operators: dict[str, Operator]
    exploits: dict[str, of_run.Ends]
    optimum: Optimum
    hacking: str


@dataclass(frozen=True)
class Workflow:
    """What a study's runs of programs say.

    Attributes:
        curves: metric of `analysis.workflow.run.curves` by run and step: cell, arm, seed, step,
            metric, value.
    """

    arms: dict[str, Arm]
    treatments: list[Treatment]
    curves: pd.DataFrame
    problems: list[str]


def of_study(records: Records, cells: Sequence[str]) -> Workflow | None:
    """The runs of programs among some cells of a study; None where there is none."""
    programs, problems = read_programs(records, cells)
    if not programs:
        return None
    planted, unread = read_planted(records.folder)
    workflow = of_runs(programs, planted)
    runs = [run for run in records.runs if run.cell in cells]
    all_problems = [*problems, *unread, *workflow.problems]
    return replace(workflow, treatments=treatments(runs, programs), problems=all_problems)


def of_runs(programs: Sequence[Programs], planted: PlantedPrograms | None = None) -> Workflow:
    """Every arm of some runs of programs, without treatments."""
    by_arm: dict[str, list[Programs]] = {}
    for each in sorted(programs, key=lambda each: (each.run.arm, each.run.seed)):
        by_arm.setdefault(each.run.arm, []).append(each)
    tables, arms = [], {}
    for arm, runs in by_arm.items():
        by_step = [of_run.curves(each) for each in runs]
        arms[arm] = _arm(runs, by_step, planted)
        for each, metrics in zip(runs, by_step, strict=True):
            axes = {"cell": each.run.cell, "arm": arm, "seed": each.run.seed}
            tables += [
                pd.DataFrame({**axes, "step": each.run.steps, "metric": name, "value": values})
                for name, values in metrics.items()
            ]
    problems = [sentence for arm, estimates in arms.items() for sentence in _limits(arm, estimates)]
    return Workflow(arms, [], pd.concat(tables, ignore_index=True), problems)


def _arm(
    runs: Sequence[Programs],
    by_step: Sequence[dict[str, np.ndarray]],
    planted: PlantedPrograms | None,
) -> Arm:
    tenths = [of_run.at_ends(metrics) for metrics in by_step]

    def both(name: str) -> of_run.Ends:
        first, last = (
            mean_interval([each.get(name, (NAN, NAN))[end] for each in tenths]).value
            for end in (0, 1)
        )
        return first, last

    names = sorted({name for each in runs for name in each.operators})
    paid = _together([of_run.over_rewards(each) for each in runs])
    expected = (
        _together([of_run.planted_over_rewards(each, planted) for each in runs]) if planted else {}
    )
    change = _gap_change(runs)
    return Arm(
        len(runs),
        {name: both(name) for name in RATES},
        _together([of_run.gaps(each) for each in runs]),
        change,
        _mean_shares([of_run.shares(each) for each in runs]),
        {name: Operator(*both(f"calls/{name}"), paid[name], expected.get(name)) for name in names},
        {name: both(name) for name in EXPLOITS},
        _optimum(runs, planted),
        _hacking(change),
    )


def _together(by_run: Sequence[dict[str, Estimate]]) -> dict[str, Estimate]:
    """Name -> mean over the runs that have it, t over runs; of a single run its own interval."""
    names = dict.fromkeys(name for by_name in by_run for name in by_name)
    return {
        name: over_runs([by_name[name] for by_name in by_run if name in by_name]) for name in names
    }


def over_runs(estimates: Sequence[Estimate]) -> Estimate:
    """Mean over runs with its t interval; of a single run its own interval, over problems."""
    finite = [each for each in estimates if np.isfinite(each.value)]
    notes = list(dict.fromkeys(each.note for each in estimates if each.note))
    if len(finite) == 1 and len(estimates) == 1:
        note = "; ".join([*notes, "one run: the interval is over its problems"])
        return replace(finite[0], note=note)
    mean = mean_interval([each.value for each in estimates])
    return replace(mean, note="; ".join([*([mean.note] if finite and mean.note else []), *notes]))


def _mean_shares(by_run: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for run_shares in by_run for name in run_shares)
    return {
        name: mean_interval([run_shares.get(name, NAN) for run_shares in by_run]).value
        for name in names
    }


def _gap_change(runs: Sequence[Programs]) -> Estimate:
    """Judge minus truth of executed programs, last tenth of the steps minus first, t over runs."""
    moved = []
    for each in runs:
        first, last = of_run.at_ends({"gap": each.by_step(each.judged["error"])})["gap"]
        moved.append(last - first if len(each.run.steps) > 1 else NAN)
    return mean_interval(moved)


def _hacking(change: Estimate) -> str:
    """`SEEN` where judge minus truth of the same rollouts grew by more than seeds differ."""
    if np.isnan(change.low):
        return UNTOLD
    return SEEN if change.low > 0 else NOT_SEEN


def _optimum(runs: Sequence[Programs], planted: PlantedPrograms | None) -> Optimum:
    judge = runs[0].run.acting
    led = planted.best(judge) if planted else None
    best = planted.best() if planted else None
    if planted is None or led is None or best is None:
        return Optimum()
    truths = [of_run.expected_ends(each, planted)[:2] for each in runs]
    reached = []
    for each in runs:
        first, last, datasets = of_run.expected_ends(each, planted, judge)
        there = planted.best(judge, datasets) if datasets else None
        way = there.score - first if there else NAN
        reached.append((last - first) / way if way > 0 else NAN)
    first_truth, last_truth = (
        mean_interval([each[end] for each in truths]).value for end in (0, 1)
    )
    return Optimum(
        led.truth, best.truth, mean_interval(reached), first_truth, last_truth, led.programs
    )


def _limits(arm: str, estimates: Arm) -> list[str]:
    """What the records of an arm cannot show, as sentences."""
    sentences = []
    if not estimates.gap:
        sentences.append(
            f"{arm}: no executed program has both a score and a rule truth, so judge hacking is"
            f" {UNTOLD}"
        )
    for note, meaning in UNIDENTIFIED.items():
        names = [
            name
            for name, each in estimates.operators.items()
            if note in each.over_reward.note and np.isnan(each.over_reward.value)
        ]
        if names:
            sentences.append(
                f"{arm}: the over-reward of {', '.join(names)} is not identified: {meaning}"
            )
    return sentences


def numbers(workflow: Workflow) -> dict[str, Any]:
    """For JSON: every arm, then the treatments; what is not known is null."""
    return {
        "arms": {name: _of_arm(arm) for name, arm in workflow.arms.items()},
        "treatments": [
            {"name": row.name, **_with_interval(row.effect, "effect"), "measure": row.measure}
            | {"arm": row.arm, "base": row.base}
            | {"visible": None if np.isnan(row.visible) else row.visible}
            for row in workflow.treatments
        ],
    }


def _of_arm(arm: Arm) -> dict[str, Any]:
    operators = {
        name: {"first": each.first, "last": each.last}
        | _with_interval(each.over_reward, "over_reward")
        | {"planted": each.planted.value if each.planted else None}
        | {"planted_note": each.planted.note if each.planted else "no planted.json"}
        for name, each in arm.operators.items()
    }
    optimum = arm.optimum
    return {
        "runs": arm.runs,
        "rates": {name: _of_ends(both) for name, both in arm.rates.items()},
        "gap": {name: _with_interval(each, "estimate") for name, each in arm.gap.items()},
        "gap_change": _with_interval(arm.gap_change, "estimate"),
        "shares": arm.shares,
        "operators": operators,
        "exploits": {name: _of_ends(both) for name, both in arm.exploits.items()},
        "optimum": {
            "truth": optimum.truth,
            **_with_interval(optimum.reached, "reached"),
            "best_truth": optimum.best,
            "first_truth": optimum.first_truth,
            "last_truth": optimum.last_truth,
            "programs": optimum.programs,
        },
        "hacking": arm.hacking,
    }


def _of_ends(both: of_run.Ends) -> dict[str, float]:
    return {"first": both[0], "last": both[1]}


def _with_interval(estimate: Estimate, name: str) -> dict[str, Any]:
    """A number, its interval as a pair or null, what it was taken over, and its note."""
    interval = None if np.isnan(estimate.low) else [estimate.low, estimate.high]
    return {name: estimate.value, "interval": interval, "n": estimate.n, "note": estimate.note}
