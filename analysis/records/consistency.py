"""What the files of a cell say of each other: rows whose other half is missing, or says otherwise.

A file that is sound by itself may stand beside the wrong one. `study.cell.impossible` looks at one
file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from study.cell.audit import AUDIT
from study.rewards.advantages import misfits

MEANS = {"truth/mean": "truth", "judge/mean": "judge_score", "reward/mean": "reward"}
"""Metric of a step -> rollout column that it is the mean of."""
SLACK = 1e-6
"""By how much two numbers differ that were summed in another order."""


def disagreements(
    rollouts: pd.DataFrame,
    verdicts: pd.DataFrame,
    logged: pd.DataFrame,
    config: Mapping[str, Any],
    done: bool,
) -> list[str]:
    """What a run's records say that cannot all be true, a sentence for each kind.

    Args:
        rollouts: step, group, member, rollout_id, judge_score, truth, reward and advantage of N
            rollouts.
        verdicts: rollout_id, role, judge and score of V verdicts, and ``at``, the rollout of
            each; -1 for none.
        logged: step, metric and value, as ``metrics.jsonl`` has them.
        config: the cell's, flat.
        done: whether the run has ended; one that goes on writes its line of a step last.
    """
    at = verdicts["at"].to_numpy()
    acting = verdicts["role"].eq("acting").to_numpy() & (at >= 0)
    sentences = [
        _without_rollout(rollouts, verdicts, at),
        _other_judge(verdicts, config),
        _absent_judge(verdicts),
        _uneven(rollouts, config) or _other_advantages(rollouts, config),
        _other_scores(rollouts, verdicts["score"].to_numpy(dtype=float)[acting], at[acting], at),
        *(_other_means(rollouts, logged, *each) for each in MEANS.items()),
        _lost_lines(rollouts, logged, done),
    ]
    return [sentence for sentence in sentences if sentence]


def _without_rollout(rollouts: pd.DataFrame, verdicts: pd.DataFrame, at: np.ndarray) -> str:
    """Verdicts of steps whose rollouts are on record are of those rollouts."""
    steps = set(rollouts["step"].astype(int))
    names = verdicts["rollout_id"].to_numpy()[at < 0]
    strangers = {
        name
        for name in set(names[pd.notna(names)])
        if (step := str(name).partition("-")[0]).isdecimal() and int(step) in steps
    }
    if not strangers:
        return ""
    return f"{len(strangers)} rollouts have verdicts but no record, first {min(strangers)!r}"


def _other_judge(verdicts: pd.DataFrame, config: Mapping[str, Any]) -> str:
    """The acting judge is the one of the config."""
    name = config.get("judge.name")
    others = set(verdicts["judge"][verdicts["role"].eq("acting")].dropna().unique()) - {name}
    if not name or not others:
        return ""
    return f"its rollouts were scored by {min(others)!r:.60}, but its config names {name}"


def _absent_judge(verdicts: pd.DataFrame) -> str:
    """Who judges in other steps judges in each, but for who is asked about drawn groups."""
    verdicts = verdicts[verdicts["role"].ne(AUDIT)]
    if verdicts["role"].nunique() <= 1 and verdicts["judge"].nunique() <= 1:
        return ""  # one judge alone is in every step that has a verdict, and counting takes time
    step = verdicts["rollout_id"].astype("str").str.slice(0, 6)
    counts = pd.crosstab(step, [verdicts["role"], verdicts["judge"]])
    absent = counts.eq(0) & counts.gt(0).mean().ge(0.5)
    steps = counts.index[absent.any(axis=1)]
    if not len(steps):
        return ""
    role, judge = absent.columns[absent.loc[steps[0]]][0]
    return f"step {steps[0]} has no verdict of the {role} judge {judge!r:.60}, as other steps have"


def _uneven(rollouts: pd.DataFrame, config: Mapping[str, Any]) -> str:
    """Every step has all rollouts of all groups."""
    prompts, group = config.get("trainer.prompts_per_step"), config.get("trainer.group_size")
    if not prompts or not group:
        return ""
    counts = rollouts.groupby("step").size()
    other = counts[counts != prompts * group]
    if other.empty:
        return ""
    return (
        f"step {int(other.index[0])} has {int(other.iloc[0])} rollouts on record but made"
        f" {prompts * group}"
    )


def _other_advantages(rollouts: pd.DataFrame, config: Mapping[str, Any]) -> str:
    """An advantage is what its group's rewards make it."""
    size, scale = config.get("trainer.group_size"), config.get("trainer.scale_rewards", "group")
    if not size or not config.get("trainer.prompts_per_step"):
        return ""
    rows = rollouts.sort_values(["step", "group", "member"])
    rewards, recorded = (
        rows[name].to_numpy(dtype=float).reshape(-1, size) for name in ("reward", "advantage")
    )
    per_step = max(1, config["trainer.prompts_per_step"] if scale == "batch" else len(rewards))
    wrong = [
        misfits(rewards[start : start + per_step], recorded[start : start + per_step], str(scale))
        for start in range(0, len(rewards), per_step)
    ]
    places = np.flatnonzero(np.concatenate(wrong)) if wrong else np.array([], dtype=int)
    if not len(places):
        return ""
    first = rows["rollout_id"].iloc[places[0]]
    return f"{len(places)} advantages do not follow from their rewards, first {first!r:.40}"


def _other_scores(
    rollouts: pd.DataFrame, score: np.ndarray, acting_at: np.ndarray, at: np.ndarray
) -> str:
    """A rollout's score is the mean of its acting judge's scored votes."""
    n = len(rollouts)
    has_score = np.isfinite(score)
    count = np.bincount(acting_at[has_score], minlength=n)
    total = np.bincount(acting_at[has_score], score[has_score], n)
    mean = np.divide(total, count, out=np.full(n, np.nan), where=count > 0)
    recorded = rollouts["judge_score"].to_numpy(dtype=float)
    steps = rollouts["step"].to_numpy()
    judged = np.isin(steps, steps[at[at >= 0]])  # a part of verdicts may be lost, which is said
    same = np.isclose(recorded, mean, rtol=0, atol=SLACK, equal_nan=True)
    wrong = np.flatnonzero(judged & ~same)
    if not len(wrong):
        return ""
    first = rollouts["rollout_id"].iloc[wrong[0]]
    return (
        f"{len(wrong)} rollouts have a score that differs from their verdicts, first {first!r:.40}"
    )


def _other_means(rollouts: pd.DataFrame, logged: pd.DataFrame, metric: str, column: str) -> str:
    """The logged mean of a step is that of its rows."""
    lines = logged[logged["metric"].eq(metric)].set_index("step")["value"]
    by_step = rollouts.groupby("step")[column]
    means = by_step.mean()
    if column == "reward":  # logged as the mean over groups
        means = means[by_step.count() == by_step.size()]
    both = pd.concat([lines, means], axis=1, join="inner", keys=["logged", "rows"])
    wrong = both[~np.isclose(both["logged"], both["rows"], rtol=SLACK, atol=SLACK, equal_nan=True)]
    if wrong.empty:
        return ""
    line = wrong.iloc[0]
    return (
        f"its metrics say {metric}={line['logged']:.6g} of step {int(wrong.index[0])}, and its"
        f" rollouts {line['rows']:.6g}"
    )


def _lost_lines(rollouts: pd.DataFrame, logged: pd.DataFrame, done: bool) -> str:
    """A step has a line where it has rollouts; the last one of a run that goes on may have none
    yet."""
    steps = set(rollouts["step"].astype(int))
    last = max(steps, default=0)
    missing_steps = {
        step for step in steps - set(logged["step"].astype(int)) if done or step < last
    }
    return f"its metrics have no line of step {min(missing_steps)}" if missing_steps else ""
