"""The ledger of a study: `analysis.ledger.transmission` applied to every run and step on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.ledger.chance import Measured, chance
from analysis.ledger.given_truth import Levels, given_truth
from analysis.ledger.judge_error import PARTS, Calibrated, Parts, taken_apart
from analysis.ledger.missing import truth_push, unscored, worst_cases
from analysis.ledger.transmission import (
    SCALES,
    comparing,
    dead_groups,
    gains,
    group_cov,
    passing,
    split,
    tied_groups,
    within_regression,
    yes_no,
)
from analysis.records.runs import Run, on_each_core, read_runs, shift
from analysis.statistics.estimate import known_mean
from analysis.statistics.intervals import grouped_intervals, ratio_of_means
from study.rewards.advantages import advantages
from study.rewards.failure import REPLAY_POLICIES

ERRORS = tuple(f"error_{part}" for part in PARTS)
SHARES = ("share/truth", *(f"share/{part}" for part in PARTS))
"""Columns on `PARTS`: of every behaviour, and of the advantages."""


def step_row(run: Run, errors: tuple[Parts, Parts] | None = None) -> dict[str, float]:
    """One line of the ledger from the groups given; missing numbers are NaN.

    docs/planted-truth.md says what each column is. ``errors`` are `errors_of` the whole run, of
    these groups; without them the groups given are the run.
    """
    reward, truth = run.reward, run.truth
    of_reward, of_judge = errors or errors_of(run)
    total, of_truth, of_bias = split(reward, truth, run.scale)
    bias = within_regression(run.judge - truth, run.features)
    push = within_regression(total, run.features)
    parts = advantage_parts(run, of_reward, run.scale)
    undivided = advantage_parts(run, of_reward, "none")
    judged = np.isfinite(of_judge.of["noise"])
    row: dict[str, float] = {
        "groups": float(len(reward)),
        "rollouts": float(reward.size),
        "unscored": float((~np.isfinite(run.judge)).mean()) if run.judge.size else float("nan"),
        "bias_r2": bias.r2,
        "advantage_r2": push.r2,
        "slope": of_judge.calibration.slope,
        **{f"gap/{name}": known_mean(part[judged]) for name, part in of_judge.of.items()},
        **shares(of_reward, parts),
        "bias_share_none": shares(of_reward, undivided)["bias_share"],
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
    pushes = {"cov": total, "cov_truth": of_truth, "cov_bias": of_bias}
    pushes["cov_bias_none"] = split(reward, truth, "none")[2]
    pushes |= {f"error_{name}": parts[name] for name in ("compression", "clip", "bias")}
    covariances = {key: group_cov(part, run.features) for key, part in pushes.items()}
    others = sum(covariances[f"error_{name}"] for name in ("compression", "clip", "bias"))
    covariances["error_noise"] = covariances["cov_bias"] - others
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
    return row | lost_columns(run)


def lost_columns(run: Run) -> dict[str, float]:
    """``truth_push/``, ``lost/``, ``lost_low/`` and ``lost_high/`` of each feature, of the groups
    given."""
    push = truth_push(run)
    low_K, high_K = worst_cases(run, push)
    columns: dict[str, float] = {}
    for k, name in enumerate(run.names):
        columns[f"truth_push/{name}"] = known_mean(push.every[:, k])
        columns[f"lost/{name}"] = float(push.lost[k])
        columns |= {f"lost_low/{name}": float(low_K[k]), f"lost_high/{name}": float(high_K[k])}
    return columns


def errors_of(run: Run, calibration: Calibrated | None = None) -> tuple[Parts, Parts]:
    """`taken_apart` of a run's rewards, which reach its policy, and of its judge's scores.
    ``calibration`` is that of the judge's scores, where it was made."""
    of_judge = taken_apart(run, run.judge, calibration)
    same = np.array_equal(run.reward, run.judge, equal_nan=True)
    return of_judge if same else taken_apart(run, run.reward), of_judge


def advantage_parts(run: Run, error: Parts, scale: str) -> dict[str, np.ndarray]:
    """Advantages as the sum of ``truth`` and `PARTS`, each (P, G), divided as `split` divides them.

    Noise is what the others leave. ``product`` is no part: it is that of the bias by either half of
    the prompts.
    """
    total, passes = passing(run.reward, run.truth, scale)
    of_truth = passes(run.truth)
    parts = {
        "compression": passes(error.of["compression"]),
        "clip": passes(error.of["clip"]),
        "bias": passes(error.of["bias"]),
    }
    first, second = map(passes, error.halves)
    noise = total - of_truth - sum(parts.values())
    return {"truth": of_truth, **parts, "noise": noise, "product": first * second}


def shares(error: Parts, parts: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Sums of squares of `advantage_parts` over their sum, covariances left out.

    What sampling error adds to the squares of slope and bias is taken off (bias: the product of two
    halves), so that they have mean 0 where there is none, and may be below.
    """
    squares = {name: float(np.nansum(parts[name] ** 2)) for name in ("truth", *PARTS)}
    slope, se = error.calibration.slope, error.calibration.slope_se
    squares["compression"] -= se**2 * squares["truth"]
    by_chance = squares["bias"] - float(np.nansum(parts["product"]))
    squares["bias"] -= by_chance
    squares["noise"] += by_chance
    total = sum(squares.values())
    has_shares = total > 0 and slope == slope
    by_part = {f"share/{k}": v / total if has_shares else float("nan") for k, v in squares.items()}
    return by_part | {"bias_share": by_part["share/bias"]}


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

    ``source`` is a study's folder or runs already read. ``attrs["problems"]`` holds the sentences
    of `analysis.records.runs.read_study`.
    """
    runs, problems = read_runs(source) if isinstance(source, str | Path) else (list(source), [])
    size = sum(run.features.nbytes for run in runs)
    rows = [row for of_run in on_each_core(step_rows, runs, size) for row in of_run]
    frame = frame_of(rows)
    frame.attrs["problems"] = problems
    return frame


def frame_of(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """`ledger` of the rows of all its runs."""
    return pd.DataFrame(rows, columns=None if rows else ["cell", "arm", "seed", "done", "step"])


def step_rows(run: Run, calibration: Calibrated | None = None) -> list[dict[str, Any]]:
    """The rows of one run; ``calibration`` is that of its judge's scores, where it was made."""
    axes = {"cell": run.cell, "arm": run.arm, "seed": run.seed, "done": run.done}
    steps = sorted(set(run.step_P.tolist()))
    errors = errors_of(run, calibration)
    rows = []
    for step in steps:
        here = run.step_P == step
        of_step = errors[0].where(here), errors[1].where(here)
        rows.append({**axes, "step": step, **step_row(run.where(here), of_step)})
    return rows


def gap_table(steps: pd.DataFrame) -> pd.DataFrame:
    """How far each part of judge - truth moved, mean over runs with its t interval: arm, metric,
    mean, low, high, n, missing. The parts add up to the move of the gap itself.

    ``steps`` is what `ledger` gives; a move is `analysis.records.runs.shift`.
    """
    rows = [
        (of_run["arm"].iloc[0], part, shift(of_run[f"gap/{part}"].to_numpy(dtype=float)))
        for _, of_run in steps.groupby("cell", sort=False)
        for part in PARTS
    ]
    long = pd.DataFrame(rows, columns=["arm", "metric", "value"])
    return grouped_intervals(long, ["arm", "metric"])


def judge_table(runs: Sequence[Run], steps: pd.DataFrame) -> pd.DataFrame:
    """Run means over steps as one line per arm and metric: mean, low, high (t), n, missing, p.

    ``bias/<feature>`` is refitted on all groups of a run at once: a single step has too few for a
    vector of features. ``given_truth/<level>/<feature>`` is of all groups of a run, too, and
    ``lost_share/<feature>`` is ``lost/`` as a share of ``truth_push/``, with Fieller's interval.
    These and ``lost/`` have a ``p``: `analysis.ledger.chance.chance` over the runs of the arm.
    Finished runs only, or all where none is finished.
    """
    chosen = [run for run in runs if run.done] or list(runs)
    levels = Levels.of(chosen)
    with_missing = {run.arm for run in chosen if unscored(run).any()}
    rows: list[tuple[str, str, float]] = []
    measured: dict[tuple[str, str], list[Measured]] = {}
    for run in chosen:
        of_run = steps[steps["cell"] == run.cell]
        plain = of_run.drop(columns=["cell", "arm", "seed", "done", "step"])
        means = plain[[c for c in plain if not c.startswith("bias_se/")]].mean()
        pooled = within_regression(run.judge - run.truth, run.features)
        means.update(pd.Series({f"bias/{n}": pooled.coef_K[k] for k, n in enumerate(run.names)}))
        means["bias_r2"] = pooled.r2
        by_level = {f"given_truth/{k}": each for k, each in given_truth(run, levels).items()}
        for key, each in by_level.items():
            means = pd.concat([means, pd.Series(each.value_K, [f"{key}/{n}" for n in run.names])])
            measured.setdefault((run.arm, key), []).append(each)
        if run.arm in with_missing:
            measured.setdefault((run.arm, "lost"), []).append(truth_push(run).measured(run))
        rows += [(run.arm, str(metric), value) for metric, value in means.items()]
    long = pd.DataFrame(rows, columns=["arm", "metric", "value"])
    table = grouped_intervals(long, ["arm", "metric"])
    names = chosen[0].names if chosen else ()
    p_of = {
        (arm, f"{key}/{name}"): p
        for (arm, key), of_runs in measured.items()
        for name, p in zip(names, chance(of_runs).tolist(), strict=True)
    }
    shares = _lost_shares({run.cell: run.arm for run in chosen}, steps, names)
    table = pd.concat([table, shares], ignore_index=True) if len(shares) else table
    axes = zip(table["arm"], table["metric"], strict=True)
    return table.assign(p=[p_of.get(each, np.nan) for each in axes])


def _lost_shares(
    arms: Mapping[str, str], steps: pd.DataFrame, names: Sequence[str]
) -> pd.DataFrame:
    """``lost_share/<feature>`` of the arms (by cell) in which a verdict is missing, over the steps
    that have both ``lost/`` and ``truth_push/``."""
    rows = []
    of_cells = steps.assign(arm=steps["cell"].map(arms)).dropna(subset="arm")
    for arm, of_arm in of_cells.groupby("arm", sort=True):
        for name in names:
            pair = of_arm[["cell", f"lost/{name}", f"truth_push/{name}"]].dropna()
            if not pair[f"lost/{name}"].any():
                continue
            share = ratio_of_means(pair.groupby("cell").mean().to_numpy(), "run")
            ends = {"mean": share.value, "low": share.low, "high": share.high, "n": share.n}
            missing = len(set(of_arm["cell"])) - share.n
            rows.append({"arm": arm, "metric": f"lost_share/{name}", **ends, "missing": missing})
    return pd.DataFrame(rows)
