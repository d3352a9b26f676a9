"""From what a step pushes to where a run ends: the behaviour's shift, predicted from the ledger.

To first order a GRPO step moves E[z] by scale x E Cov(A, z). The covariance is within groups and
known from the run's own rollouts (`analysis.step.transmission`). The scale is not: it depends on
optimiser, clipping and weight sharing. So steps are weighed with what the optimiser logged, and the
rest is fitted on the *other* runs of the study. The covariance is a sum of the truth's and the
bias's part, and so is the prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.arm.calibration import FEWEST, Predicted, calibrate, fit_scale
from analysis.records.behaviour import shift, unit
from analysis.records.runs import Run, read_runs, step_means
from analysis.reports.figures import looks, style
from analysis.statistics.estimate import columns
from analysis.step.transmission import group_cov, known_mean, split
from study.errors import UserError

SCALES = ("plain", "adam")
"""How much of its push a step takes: ``plain`` the learning rate, less what gradient clipping took;
``adam`` learning rate / gradient norm. Adam divides a step by the gradient's own size, so the same
covariance moves a policy further where gradients are small, and clipping does not matter."""


@dataclass(frozen=True)
class Trajectory:
    """One run and feature over its T steps.

    Attributes:
        level: mean of the feature at each step, shape (T,); NaN where it was not measured.
        push: E Cov(A, z) at each step, shape (T,).
        of_truth: the part of it that the truth makes; ``push - of_truth`` is the bias's.
        gradient: gradient norm at each step, shape (T,); NaN where it was not logged.
        rate: learning rate at each step, shape (T,), NaN where it was not logged; 1 where no run
            of the study logged any.
        clip: largest gradient norm that was let through; 0 is any.
        sd: of the feature over the first step's rollouts; NaN unknown.
    """

    cell: str
    arm: str
    feature: str
    level: np.ndarray
    push: np.ndarray
    of_truth: np.ndarray
    gradient: np.ndarray
    rate: np.ndarray | float = 1.0
    clip: float = 0.0
    sd: float = float("nan")


def paths(runs: Sequence[Run]) -> list[Trajectory]:
    """The path of every run and feature, over all steps that the run made.

    A step whose records are lost has no level and no push; one in which no group had two rewards
    pushed nothing. Gradient norms and learning rates are those that the run logged, the clip is
    ``trainer.max_grad_norm``.
    """
    rated = any("policy/learning_rate" in run.logged for run in runs)
    trajectories = []
    for run in runs:
        at = np.searchsorted(run.steps, run.step_P)
        recorded = np.bincount(at, minlength=len(run.steps)) > 0
        total, truth = _parts(run)
        live = np.bincount(at, np.isfinite(total).any(axis=1), len(run.steps)) > 0
        pushes = []
        for part in (total, truth):
            covariance = group_cov(part, run.features)
            means = [step_means(run, covariance[:, [k]]) for k in range(len(run.names))]
            pushes.append([np.where(recorded & ~live, 0.0, mean) for mean in means])
        unlogged = np.full(len(run.steps), np.nan)
        gradient = run.logged.get("policy/grad_norm", unlogged)
        rate = run.logged.get("policy/learning_rate", unlogged if rated else 1.0)
        clip = float(run.config.get("trainer.max_grad_norm") or 0.0)
        first = run.features[run.step_P == run.step_P.min()].reshape(-1, len(run.names))
        spread = pd.DataFrame(first).std(ddof=0)
        for k, name in enumerate(run.names):
            columns = (step_means(run, run.features[..., k]), pushes[0][k], pushes[1][k])
            logs = (gradient, rate, clip, float(spread.iloc[k]))
            trajectories.append(Trajectory(run.cell, run.arm, name, *columns, *logs))
    return trajectories


def _parts(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Advantages of all steps and the truth's part of them, each (P, G); a batch is a step."""
    if run.scale != "batch":
        return split(run.reward, run.truth, run.scale)[:2]
    total, of_truth = np.full((2, *run.reward.shape), np.nan)
    for step in np.unique(run.step_P):
        rows = run.step_P == step
        total[rows], of_truth[rows], _ = split(run.reward[rows], run.truth[rows], run.scale)
    return total, of_truth


def cumulative(path: Trajectory, part: np.ndarray, scale: str) -> np.ndarray:
    """What has been pushed before each step, shape (T,), 0 at the first; NaN after an unknown push.

    A step without a push needs no gradient norm, and a gradient of 0 moves nothing. ``part`` is a
    push of the path, whole or one part of it; ``scale`` is one of `SCALES`.
    """
    unknown = np.isnan(path.gradient)
    if scale == "adam":
        taken = np.where(unknown, np.nan, 0.0)
        np.divide(1.0, path.gradient, out=taken, where=path.gradient > 0)
    else:
        taken = np.where(unknown & (path.clip > 0), np.nan, 1.0)
        over = (path.gradient > path.clip) & (path.clip > 0)
        np.divide(path.clip, path.gradient, out=taken, where=over)
    steps = np.where(part == 0, 0.0, part * taken * path.rate)
    return np.concatenate([[0.0], np.cumsum(steps)[:-1]])


def pushed(path: Trajectory, part: np.ndarray, scale: str) -> float:
    """`cumulative` between the tenths that a shift compares; NaN where any step is unknown."""
    before = cumulative(path, part, scale)
    return shift(before) if np.isfinite(before).all() else float("nan")


def predict(trajectories: Sequence[Trajectory], scale: str = "plain") -> list[Predicted]:
    """Observed and predicted shift of every run and feature, the scale from the other runs.

    Shifts and pushes are taken between the same tenths (`analysis.records.behaviour.shift`). A run
    whose push is not known all the way is neither predicted nor fitted on.
    """
    rows = []
    for feature in dict.fromkeys(path.feature for path in trajectories):
        of_feature = [path for path in trajectories if path.feature == feature]
        push = np.array([pushed(path, path.push, scale) for path in of_feature])
        moved = np.array([shift(path.level) for path in of_feature])
        arms = np.array([path.arm for path in of_feature])
        for k, path in enumerate(of_feature):
            others, elsewhere = np.arange(len(of_feature)) != k, arms != path.arm
            fit = fit_scale(push[others], moved[others])
            predicted = fit.at(float(push[k]))
            factor = fit.factor if fit.runs >= FEWEST else float("nan")
            of_truth = factor * pushed(path, path.of_truth, scale)
            why = _lacking(path, scale) if np.isnan(push[k]) else ""
            if not why and np.isnan(predicted.value):
                why = f"{fit.runs} other runs with a known push and shift; a scale takes {FEWEST}"
                if fit.runs >= FEWEST:
                    why = "nothing pushed it in the other runs"
            rows.append(
                Predicted(
                    *(path.cell, path.arm, feature, float(moved[k]), predicted),
                    *(of_truth, predicted.value - of_truth, factor, fit.runs),
                    unseen=fit_scale(push[elsewhere], moved[elsewhere]).at(float(push[k])),
                    repeated=known_mean(moved[others & ~elsewhere]),
                    sd=path.sd,
                    note=why,
                )
            )
    return rows


def _lacking(path: Trajectory, scale: str) -> str:
    """Why the push of a run is not known."""
    moving = path.push != 0
    lacks = {"covariance of reward and behaviour": np.isnan(path.push)}
    if scale == "adam" or path.clip > 0:
        lacks["gradient norm"] = np.isnan(path.gradient) & moving
    lacks["learning rate"] = np.isnan(path.rate) & moving
    return (
        "; ".join(
            f"no {name} at {at.sum()} of {len(at)} steps" for name, at in lacks.items() if at.any()
        )
        or "a single step"
    )


def kl_limit(run: Run, beta: float) -> dict[str, tuple[float, float]]:
    """Where a KL penalty of ``beta`` would hold each feature, to first order: Cov(A, z) / beta.

    The covariance is the mean within groups over the first recorded step, of the reward as it is
    scaled for the trainer. Under a dose on z it is dose x Var(z) / beta beside the truth's part.
    Returns feature -> (shift, the truth's part of it); NaN without beta: nothing holds the policy
    back.

    Source: derivative of E[z] at the optimum pi0 exp(A / beta).
    """
    first = run.at(run.step_P.min())
    parts = split(first.reward, first.truth, run.scale)[:2]
    total, truth = (group_cov(part, first.features) for part in parts)
    penalty = beta if beta > 0 else float("nan")
    return {
        name: (known_mean(total[:, k]) / penalty, known_mean(truth[:, k]) / penalty)
        for k, name in enumerate(run.names)
    }


def study(folder: Path, scale: str) -> dict[str, Any]:
    """Predictions and calibration of a study's finished runs, as plain data. Raises UserError: too
    few runs that trained for two steps or more."""
    runs, problems = read_runs(folder)
    trained = [run for run in runs if run.done and len(np.unique(run.step_P)) > 1]
    if len(trained) <= FEWEST:
        raise UserError(
            f"{folder} has {len(trained)} finished runs of two steps or more. The scale of a run is"
            f" fitted on the others, and that takes {FEWEST + 1} runs. Train more seeds or judges."
        )
    rows = predict(paths(trained), scale)
    problems += [f"{cell} is not predicted: {why}" for cell, why in unpredicted(rows).items()]
    observed = {(row.cell, row.feature): row.observed for row in rows}
    limits = [
        {"cell": run.cell, "feature": name, "observed": observed[run.cell, name]}
        | {"limit": limit, "of_truth": truth, "of_bias": limit - truth}
        for run in trained
        if (beta := float(run.config.get("trainer.beta") or 0.0)) > 0
        for name, (limit, truth) in kl_limit(run, beta).items()
    ]
    return {
        **{"study": folder.name, "scale": scale, "unit": "run"},
        "runs": [columns(row, predicted="") for row in rows],
        "calibration": [columns(line, slope="") for line in calibrate(rows)],
        "kl_limit": limits,
        "problems": problems,
    }


def unpredicted(rows: Sequence[Predicted]) -> dict[str, str]:
    """Cell -> why, for the runs of which no behaviour is predicted."""
    predicted = {row.cell for row in rows if not row.note}
    lacking = [row for row in rows if row.cell not in predicted]
    return {row.cell: row.note for row in reversed(lacking)}


def figure(rows: pd.DataFrame, calibration: pd.DataFrame) -> Any:
    """Observed against predicted shift with its 95 % prediction interval, one point per run.

    A panel for each of the four features that moved furthest, in SDs of the first rollouts.
    """
    from matplotlib.figure import Figure

    lines = calibration.dropna(subset=["r2"]).set_index("feature")
    moved = rows["observed"].abs() / rows["sd"].where(rows["sd"] > 0)
    furthest = moved.groupby(rows["feature"]).max().fillna(0.0)
    names = sorted(lines.index, key=lambda name: -furthest[name])[:4]
    arms = sorted(set(rows["arm"]))
    with style():
        drawn = Figure(figsize=(3.3 * len(names), 3.6), layout="constrained")
        panels = drawn.subplots(1, len(names), squeeze=False)
        look = looks(arms)
        for panel, name in zip(panels[0], names, strict=True):
            of_feature = rows[rows.feature == name]
            low = min(of_feature["predicted"].min(), of_feature["observed"].min())
            high = max(of_feature["predicted"].max(), of_feature["observed"].max())
            panel.plot(
                [low, high], [low, high], color="0.6", linewidth=1, zorder=0, label="as predicted"
            )
            for arm in arms:
                part = of_feature[of_feature.arm == arm]
                panel.errorbar(
                    *(part["predicted"], part["observed"]),
                    xerr=(part["high"] - part["low"]) / 2,
                    **{"label": arm, "color": look[arm]["color"], "fmt": "o", "markersize": 5},
                    elinewidth=0.8,
                )
            seen, unseen = lines.loc[name, ["r2", "r2_unseen"]].astype(float)
            panel.set(
                title=f"{name}, R² = {seen:.2f}"
                + f"\nunseen arm {unseen:.2f}" * (unseen == unseen),
                xlabel=f"predicted shift, 95 % interval ({unit(name)})",
                ylabel=f"observed shift ({unit(name)})",
            )
        handles, labels = panels[0][0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside lower center", ncols=min(4, len(arms)))
    return drawn
