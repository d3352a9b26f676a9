"""The ledger of a study: `analysis.step.transmission` applied to every run and step on record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.records.runs import Run, on_each_core, read_runs
from analysis.statistics.intervals import grouped_intervals
from analysis.step.transmission import (
    MISFIT,
    SCALES,
    bias_share,
    comparing,
    dead_groups,
    gains,
    group_cov,
    known_mean,
    split,
    tied_groups,
    within_regression,
    yes_no,
)
from study.rewards.advantages import advantages
from study.rewards.failure import REPLAY_POLICIES


def step_row(run: Run) -> dict[str, float]:
    """One line of the ledger from the groups given; missing numbers are NaN.

    docs/planted-truth.md says what each column is.
    """
    reward, truth = run.reward, run.truth
    total, of_truth, of_bias = split(reward, truth, run.scale)
    bias = within_regression(run.judge - truth, run.features)
    push = within_regression(total, run.features)
    row: dict[str, float] = {
        "groups": float(len(reward)),
        "rollouts": float(reward.size),
        "unscored": float((~np.isfinite(run.judge)).mean()) if run.judge.size else float("nan"),
        "bias_r2": bias.r2,
        "advantage_r2": push.r2,
        "bias_share": bias_share(of_truth, of_bias),
        "bias_share_none": bias_share(*split(reward, truth, "none")[1:]),
        "tied": known_mean(tied_groups(truth, reward)),
        "dead": known_mean(dead_groups(reward)),
        "too_few": known_mean((np.isfinite(reward).sum(axis=1) < 2).astype(float)),
        **yes_no(run.judge, truth),
        **gains(reward, truth),
    }
    for scale in SCALES:
        gap = abs(advantages(reward, scale) - run.advantage)[np.isfinite(reward)]
        gap = gap[np.isfinite(gap)]
        row[f"check/{scale}"] = float(gap.max()) if len(gap) else float("nan")
    parts = {"cov": total, "cov_truth": of_truth, "cov_bias": of_bias}
    parts["cov_bias_none"] = split(reward, truth, "none")[2]
    covariances = {key: group_cov(part, run.features) for key, part in parts.items()}
    for k, name in enumerate(run.names):
        row[f"bias/{name}"], row[f"bias_se/{name}"] = bias.coef_K[k], bias.se_K[k]
        row[f"unique/{name}"] = push.unique_K[k]
        row |= {f"{key}/{name}": known_mean(pushed[:, k]) for key, pushed in covariances.items()}
    with_rewards, with_judge = comparing(reward, run.scale), comparing(run.judge, run.scale)
    for policy in REPLAY_POLICIES:
        other = under_policy(run, policy)
        changed = with_rewards(other)
        row |= {f"{policy}/{key}": changed[key] for key in ("cosine", "flips", "silenced")}
        moved = covariances["cov"]
        if other is not reward:
            moved = group_cov(split(other, truth, run.scale)[0], run.features)
        row |= {f"{policy}/cov/{name}": known_mean(moved[:, k]) for k, name in enumerate(run.names)}
    for judge, scores in {"truth": truth, **run.shadows}.items():
        row |= {f"align/{judge}/{key}": value for key, value in with_judge(scores).items()}
    return row


def under_policy(run: Run, policy: str) -> np.ndarray:
    """Rewards as another failure policy would have made them, shape (P, G).

    They were composed when the run was read; all are NaN where they could not be.
    """
    if policy in run.under:
        return run.under[policy]
    same = policy == run.on_failure or np.isfinite(run.judge).all()
    return run.reward if same else np.full(run.reward.shape, np.nan)


def ledger(source: Path | str | Sequence[Run]) -> pd.DataFrame:
    """One row per run and step: cell, arm, seed, done, step and the columns of `step_row`.

    ``source`` is a study's folder or runs already read. ``attrs["problems"]`` holds sentences on
    files that could not be read, on rewards that cannot be composed again and on advantages that
    are not what the trainer used.
    """
    runs, problems = read_runs(source) if isinstance(source, str | Path) else (list(source), [])
    size = sum(run.features.nbytes for run in runs)
    rows = []
    for run, of_run in zip(runs, on_each_core(_rows, runs, size), strict=True):
        rows += of_run
        worst = np.nanmax([0.0, *(row[f"check/{run.scale}"] for row in of_run)])
        if worst > MISFIT:
            problems.append(
                f"{run.cell}: recorded advantages differ by up to {worst:.3g} from those of its "
                f"rewards under scale_rewards={run.scale}"
            )
    frame = pd.DataFrame(rows, columns=None if rows else ["cell", "arm", "seed", "done", "step"])
    frame.attrs["problems"] = problems
    return frame


def _rows(run: Run) -> list[dict[str, Any]]:
    axes = {"cell": run.cell, "arm": run.arm, "seed": run.seed, "done": run.done}
    steps = sorted(set(run.step_P.tolist()))
    return [{**axes, "step": step, **step_row(run.at(step))} for step in steps]


def judge_table(runs: Sequence[Run], steps: pd.DataFrame) -> pd.DataFrame:
    """Run means over steps as one line per arm and metric: mean, low, high (t), n, missing.

    ``bias/<feature>`` is refitted on all groups of a run at once: a single step has too few for a
    vector of features. Finished runs only, or all where none is finished.
    """
    chosen = [run for run in runs if run.done] or list(runs)
    rows = []
    for run in chosen:
        of_run = steps[steps["cell"] == run.cell]
        plain = of_run.drop(columns=["cell", "arm", "seed", "done", "step"])
        means = plain[[c for c in plain if not c.startswith("bias_se/")]].mean()
        pooled = within_regression(run.judge - run.truth, run.features)
        means.update(pd.Series({f"bias/{n}": pooled.coef_K[k] for k, n in enumerate(run.names)}))
        means["bias_r2"] = pooled.r2
        rows += [(run.arm, metric, value) for metric, value in means.items()]
    long = pd.DataFrame(rows, columns=["arm", "metric", "value"])
    return grouped_intervals(long, ["arm", "metric"])
