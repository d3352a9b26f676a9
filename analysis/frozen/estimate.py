"""How far a run moved on held-out rows: the same prompts, answered at its start and at its end.

Each answer at the end is compared with the answer at step 0 to the same prompt, drawn from the same
random numbers: what differs between prompts, and most of what is chance between draws, is in no
difference. The prompts of one run are its sample; the run stays the unit between arms.

`held_out_table` puts the runs of an arm together, and beside them how far training rows moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.drift.estimate import (
    AUDITED,
    BY,
    JUDGED,
    SHIFTS,
    RunVariances,
    Tail,
    feature_values,
    run_shifts,
    score_values,
    shift_table,
    worst_cases,
)
from analysis.records.runs import Run
from analysis.statistics.estimate import group_sums, known_mean, ratio_se
from analysis.statistics.intervals import mean_interval, variance_of

ANSWERS = {"drawn": slice(1, None), "greedy": slice(1)}
"""Which answers to a prompt: those drawn as in training, or the one that is most probable."""


def has_frozen(run: Run) -> bool:
    """Whether a run has answers to the same held-out rows, or to some of them, at step 0 and at a
    later step."""
    if run.frozen is None or run.frozen.prompt_P is None:
        return False
    evaluated = run.frozen.step_P
    first, last = (_prompts(end) for end in _ends(run.frozen))
    return bool(evaluated.min() == 0 < evaluated.max()) and first == last != []


def all_frozen(runs: Sequence[Run]) -> bool:
    """Whether there are runs, and all of them have frozen evaluation."""
    return bool(runs) and all(map(has_frozen, runs))


def frozen_shifts(
    runs: Sequence[Run], answers: str = "drawn", scale: tuple[float, float] = (0.0, 1.0)
) -> pd.DataFrame:
    """Shifts within prompts from step 0 to the last evaluated step, one row per run and metric.

    Metrics are the truth, the judge's score and their gap, the score by each shadow judge, and
    every behaviour. The columns are those of `analysis.drift.estimate.run_shifts`, so that its
    tables take them: ``first`` and ``last`` are means over the answers that have the metric at both
    ends, ``shift`` is their difference, ``naive_var`` its sampling variance over answers and
    ``group_var`` over prompts (CR1). A row that is on record at one end only is unscored. Runs
    without frozen evaluation (`has_frozen`) are left out.

    Args:
        answers: one of `ANSWERS`.
        scale: ends of the judge's scale, for the worst cases of missing scores.
    """
    rows = []
    for run in runs:
        if not has_frozen(run):
            continue
        assert run.frozen is not None
        ends = tuple(of_members(end, ANSWERS[answers]) for end in _ends(run.frozen))
        prompts = int(np.unique(run.frozen.step_P, return_counts=True)[1][[0, -1]].max())
        values = [answer_values(end, by_group=True) for end in ends]
        for metric in values[0]:
            first, last = (of_end[metric] for of_end in values)
            row: dict[str, Any] = {
                "cell": run.cell,
                "arm": run.arm,
                "seed": run.seed,
                "metric": metric,
            }
            row |= _shift(first, last, ends[1], prompts, audited=metric in AUDITED)
            if metric in JUDGED:
                least, most = zip(
                    *(
                        map(known_mean, worst_cases(end, metric, of_end[metric], scale))
                        for end, of_end in zip(ends, values, strict=True)
                    ),
                    strict=True,
                )
                row |= {"worst_low": least[1] - most[0], "worst_high": most[1] - least[0]}
            rows.append(row)
    return pd.DataFrame(rows, columns=[*SHIFTS])


def _ends(frozen: Run) -> tuple[Run, Run]:
    """The first and the last evaluation, of the rows that are on record at both."""
    first, last = (frozen.at(int(step)) for step in (frozen.step_P.min(), frozen.step_P.max()))
    shared = {*_prompts(first)} & {*_prompts(last)}

    def of_both(end: Run) -> Run:
        return end.where(np.array([row in shared for row in _prompts(end)]))

    return of_both(first), of_both(last)


def _prompts(end: Run) -> list[tuple[Any, int]]:
    """The held-out rows of an evaluation, in order: the prompt, and which of its rows it is."""
    prompts = pd.Series(end.prompt_P)
    return list(zip(prompts, prompts.groupby(prompts).cumcount(), strict=True))


def answer_values(run: Run, by_group: bool = False) -> dict[str, np.ndarray]:
    """Judge score, truth and gap, the score by each shadow judge, and every behaviour of every
    rollout, each (P, G); ``by_group`` is that of `Run.levels`."""
    scores = score_values(run, by_group)
    del scores["reward"]
    others = {f"{BY}{judge}": values for judge, values in run.shadows.items()}
    return scores | others | feature_values(run)


def of_members(run: Run, members: slice) -> Run:
    """A run with some members of each group."""
    names = ("reward", "advantage", "truth", "judge", "features")
    arrays: dict[str, Any] = {name: getattr(run, name)[:, members] for name in names}
    arrays["shadows"] = {name: scores[:, members] for name, scores in run.shadows.items()}
    if run.reference is not None:
        arrays["reference"] = replace(run.reference, score=run.reference.score[:, members])
    return replace(run, under={}, text=None, corrected=None, log_ratio=None, **arrays)


def _shift(
    first_P_G: np.ndarray, last_P_G: np.ndarray, end: Run, prompts: int, *, audited: bool
) -> dict[str, Any]:
    """What a metric moved between two evaluations of the same prompts, those of ``end``."""
    moved = last_P_G - first_P_G
    both = np.isfinite(moved)
    sums = group_sums(moved)
    measured_sums = sums[sums[:, 1] > 0]
    count = int(both.sum())
    first, last = (float(end[both].mean()) if count else np.nan for end in (first_P_G, last_P_G))
    return {
        **{"first": first, "last": last, "shift": last - first},
        "naive_var": float(moved[both].var(ddof=1)) / count if count > 1 else np.nan,
        "group_var": ratio_se(measured_sums) ** 2 if len(measured_sums) else np.nan,
        "tails": [Tail(np.zeros(len(sums)), end.prompt_P, sums, end.told_P if audited else None)],
        "unscored": 1 - count / max(1, prompts * both.shape[1]),
    }


def held_out_table(
    runs: Sequence[Run], base: str | None, variances: RunVariances | None = None
) -> pd.DataFrame:
    """Shifts on held-out rows by arm and metric, beside those on the rows that were trained on.

    Columns are those of `analysis.drift.estimate.shift_table` for the drawn answers, and further
    ``greedy`` (the shift of the most probable answers), ``training`` (of the rollouts, between the
    first and the last tenth of the steps) and ``apart``, ``apart_low``, ``apart_high``: held-out
    minus training, with its 95 % interval over runs. It is no effect of an arm, so how much more
    runs vary in it than sampling explains is learnt from all rows of it here. About 0 is a shift
    that transfers. Metrics
    that no held-out answer has, or that are the same at both ends of every arm, are left out, and
    so are runs without frozen evaluation.
    """
    evaluated = [run for run in runs if has_frozen(run)]
    drawn, greedy = frozen_shifts(evaluated), frozen_shifts(evaluated, "greedy")
    training = run_shifts(evaluated, answer_values)
    table = shift_table(drawn, base, variances=variances)
    extra_rows, differences = [], []
    for arm, metric in zip(table["arm"], table["metric"], strict=True):
        of_kind = [
            part.loc[(part["arm"] == arm) & (part["metric"] == metric)].set_index("cell")
            for part in (drawn, greedy, training)
        ]
        held_out, at_most, trained = (part["shift"] for part in of_kind)
        # both ends are samples of their own, and so is what the intervals may not fall below
        within = of_kind[0]["group_var"] + of_kind[2]["group_var"]
        differences.append((held_out - trained, within))
        means = {"greedy": at_most, "training": trained}
        extra_rows.append(
            {name: mean_interval(shifts.tolist()).value for name, shifts in means.items()}
        )
    ratios = variance_of(differences)
    for row, (values, within) in zip(extra_rows, differences, strict=True):
        apart = mean_interval(values.tolist(), within=within.tolist(), ratios=ratios)
        row |= {"apart": apart.value, "apart_low": apart.low, "apart_high": apart.high}
    names = ["greedy", "training", "apart", "apart_low", "apart_high"]
    whole = table.join(pd.DataFrame(extra_rows, index=table.index, columns=names, dtype=np.float64))
    levels = whole.groupby("metric")[["first", "last"]].agg(["min", "max"])
    low, high = (levels.xs(end, axis=1, level=1) for end in ("min", "max"))
    varying = set(levels.index[high.max(axis=1) > low.min(axis=1)])
    varying |= set(whole.loc[whole["training"].abs() > 0, "metric"])
    is_shown = whole["shift"].notna() & whole["metric"].isin(varying)
    return whole[is_shown].reset_index(drop=True)
