"""From what a step pushes to where a run ends: the behaviour's shift, predicted from the ledger.

To first order a GRPO step moves E[z] by scale x E Cov(A, z). The covariance is within groups and
known from the run's own rollouts (`analysis.ledger.transmission`). The scale is not: it depends on
optimiser, clipping and weight sharing. So steps are weighed with what the optimiser logged, and the
rest is fitted on the *other* runs of the study: one step size for all behaviours, which is above 0
or predicts nothing. The covariance is a sum of the truth's and the bias's part, and so is the
prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.ledger.transmission import group_cov, split
from analysis.propagation.calibration import (
    AGAINST,
    Calibration,
    PushPrediction,
    Scale,
    calibrate,
    fit_scale,
    root_mean_square,
)
from analysis.records.runs import Run, read_runs, shift, step_means
from analysis.statistics.estimate import NAN, NO_ESTIMATE, Estimate, columns, known_mean
from analysis.statistics.prediction import FEWEST
from study.errors import UserError

PERMUTATIONS = 5
"""Draws of permuted advantages, for a placebo."""


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
        sham: pushes of placebos, each (D, T): ``permuted``, E Cov(A, z) of advantages permuted
            within their groups, and ``variance``, that of the feature within groups.
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
    sd: float = NAN
    sham: Mapping[str, np.ndarray] = field(default_factory=dict)


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
        shuffle = np.random.default_rng(0).permuted
        permuted = [shuffle(total, axis=1) for _ in range(PERMUTATIONS)]
        pushes_T_K = []
        for part in (total, truth, *permuted):
            covariance = group_cov(part, run.features)
            means = [step_means(run, covariance[:, [k]]) for k in range(len(run.names))]
            pushes_T_K.append(np.where((recorded & ~live)[:, None], 0.0, np.stack(means, axis=1)))
        unlogged = np.full(len(run.steps), np.nan)
        gradient = run.logged.get("policy/grad_norm", unlogged)
        rate = run.logged.get("policy/learning_rate", unlogged if rated else 1.0)
        clip = float(run.config.get("trainer.max_grad_norm") or 0.0)
        first = run.features[run.step_P == run.step_P.min()].reshape(-1, len(run.names))
        spread = pd.DataFrame(first).std(ddof=0)
        for k, name in enumerate(run.names):
            values = run.features[..., k]
            push, of_truth, *shuffled = (pushes[:, k] for pushes in pushes_T_K)
            spread_T = step_means(run, group_cov(values, values[..., None]))
            variance = np.where(push == 0, 0.0, spread_T)
            trajectories.append(
                Trajectory(
                    cell=run.cell,
                    arm=run.arm,
                    feature=name,
                    level=step_means(run, values),
                    push=push,
                    of_truth=of_truth,
                    gradient=gradient,
                    rate=rate,
                    clip=clip,
                    sd=float(spread.iloc[k]),
                    sham={"permuted": np.stack(shuffled), "variance": variance[None]},
                )
            )
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
    push of the path, whole or one part of it; ``scale`` is one of `analysis.propagation.SCALES`.
    """
    unknown = np.isnan(path.gradient)
    if scale == "adam":
        factor = np.where(unknown, np.nan, 0.0)
        np.divide(1.0, path.gradient, out=factor, where=path.gradient > 0)
    else:
        factor = np.where(unknown & (path.clip > 0), np.nan, 1.0)
        over = (path.gradient > path.clip) & (path.clip > 0)
        np.divide(path.clip, path.gradient, out=factor, where=over)
    steps = np.where(part == 0, 0.0, part * factor * path.rate)
    return np.concatenate([[0.0], np.cumsum(steps)[:-1]])


def pushed(path: Trajectory, part: np.ndarray, scale: str) -> float:
    """`cumulative` between the tenths that a shift compares; NaN where any step is unknown."""
    before = cumulative(path, part, scale)
    return shift(before) if np.isfinite(before).all() else NAN


@dataclass(frozen=True)
class _Moves:
    """Pushes, shifts and first SDs of R runs and K features, NaN where a run lacks one.

    ``at_N`` are run and feature of each of N trajectories, shape (N, 2).
    """

    at_N: np.ndarray
    arm_R: np.ndarray
    push_R_K: np.ndarray
    moved_R_K: np.ndarray
    sd_R_K: np.ndarray

    def table(self, values_N: Sequence[float] | np.ndarray) -> np.ndarray:
        """One number for each trajectory, as (R, K)."""
        table = np.full(self.push_R_K.shape, np.nan)
        table[tuple(self.at_N.T)] = values_N
        return table

    def fit(self, runs_R: np.ndarray, push_R_K: np.ndarray | None = None) -> Scale:
        """The scale over some runs; of another push, where one is given."""
        push = self.push_R_K if push_R_K is None else push_R_K
        return fit_scale(push[runs_R], self.moved_R_K[runs_R], self.sd_R_K[runs_R])


def _moves(trajectories: Sequence[Trajectory], scale: str) -> _Moves:
    arms = {path.cell: path.arm for path in trajectories}
    run = {cell: place for place, cell in enumerate(arms)}
    feature = {name: k for k, name in enumerate(dict.fromkeys(p.feature for p in trajectories))}
    at = np.array([(run[path.cell], feature[path.feature]) for path in trajectories])
    tables = np.full((3, len(run), len(feature)), np.nan)
    for path, place in zip(trajectories, at, strict=True):
        push = pushed(path, path.push, scale)
        tables[:, place[0], place[1]] = push, shift(path.level), path.sd
    return _Moves(at, np.array(list(arms.values())), *tables)


def _by_feature(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    names = list(dict.fromkeys(path.feature for path in trajectories))
    return sorted(trajectories, key=lambda path: names.index(path.feature))


def predict(trajectories: Sequence[Trajectory], scale: str = "plain") -> list[PushPrediction]:
    """Observed and predicted shift of every run and feature, the scale from the other runs.

    Shifts and pushes are taken between the same tenths (`analysis.records.runs.shift`). The
    scale is one for all features. A run whose push is not known all the way is neither predicted
    nor fitted on, and nothing is predicted with a scale that is not above 0. Rows are ordered by
    feature.
    """
    if not trajectories:
        return []
    trajectories = _by_feature(trajectories)
    moves = _moves(trajectories, scale)
    runs = np.arange(len(moves.arm_R))
    by_other_runs = [moves.fit(runs != run) for run in runs]
    unseen = {arm: moves.fit(moves.arm_R != arm) for arm in dict.fromkeys(moves.arm_R)}
    rows = []
    for path, (run, feature) in zip(trajectories, moves.at_N, strict=True):
        push, moved_R = float(moves.push_R_K[run, feature]), moves.moved_R_K[:, feature]
        still = not np.nansum(moves.push_R_K[:, feature] ** 2)
        fit, why = by_other_runs[run], ""
        if np.isnan(push):
            why = _lacking(path, scale)
        elif fit.runs < FEWEST:
            why = f"{fit.runs} other runs with a known push and shift; a scale needs {FEWEST}"
        elif np.isnan(fit.factor) or still:
            why = "its push is 0 in the other runs"
        elif not fit.usable:
            why = AGAINST
        nothing = np.isnan(push) or still
        predicted = NO_ESTIMATE if why else fit.at(push, feature)
        factor = fit.factor if fit.runs >= FEWEST else NAN
        of_truth = NAN if why else factor * pushed(path, path.of_truth, scale)
        rows.append(
            PushPrediction(
                cell=path.cell,
                arm=path.arm,
                feature=path.feature,
                observed=Estimate(float(moved_R[run])),
                predicted=predicted,
                of_truth=of_truth,
                of_bias=predicted.value - of_truth,
                scale=factor,
                fitted_on=fit.runs,
                unseen=NO_ESTIMATE if nothing else unseen[path.arm].at(push, feature),
                repeated=known_mean(moved_R[(runs != run) & (moves.arm_R == path.arm)]),
                sd=path.sd,
                note=why,
            )
        )
    return rows


def placebos(trajectories: Sequence[Trajectory], scale: str = "plain") -> dict[str, np.ndarray]:
    """What pushes predict without what was rewarded, each (D, N) in the order of `predict`.

    The scale is fitted as there, on the other runs; where it is not above 0 no shift is predicted.
    ``permuted``: advantages permuted within their groups, in D draws. ``variance``: the sign of a
    run's push, times the variance of the feature within groups at each step. ``constant``: that
    sign, times one SD.
    """
    if not trajectories:
        return {}
    trajectories = _by_feature(trajectories)
    moves = _moves(trajectories, scale)
    sd_K = root_mean_square(moves.sd_R_K)
    sign = np.sign(moves.push_R_K)
    shams = {
        name: [
            moves.table([pushed(*each, scale) for each in zip(trajectories, draw, strict=True)])
            for draw in zip(*(path.sham.get(name, ()) for path in trajectories), strict=True)
        ]
        for name in ("permuted", "variance")
    }
    inverse_K = np.divide(1.0, sd_K, out=np.zeros_like(sd_K), where=sd_K > 0)
    shams["variance"] = [sign * push * inverse_K for push in shams["variance"]]
    shams["constant"] = [sign * sd_K]
    return {
        name: np.array([_predicted_by(moves, push) for push in draws])
        for name, draws in shams.items()
        if draws
    }


def _predicted_by(moves: _Moves, push_R_K: np.ndarray) -> np.ndarray:
    """Shift of each trajectory by another push, with the scale of the other runs, shape (N,)."""
    runs = np.arange(len(push_R_K))
    factors = np.array([moves.fit(runs != run, push_R_K).factor for run in runs])
    predicted = np.where(factors > 0, factors, 0.0)[:, None] * push_R_K
    return predicted[tuple(moves.at_N.T)]


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
    penalty = beta if beta > 0 else NAN
    return {
        name: (known_mean(total[:, k]) / penalty, known_mean(truth[:, k]) / penalty)
        for k, name in enumerate(run.names)
    }


@dataclass(frozen=True)
class Propagation:
    """What the pushes of a study's finished runs predict, and how that came out.

    Attributes:
        scale: one of `analysis.propagation.SCALES`.
        step_size: movement per push over all runs, in SDs.
        kl_limit: where a KL penalty would hold the features of runs that had one: cell, feature,
            observed shift, limit, and its parts of truth and bias.
        problems: what could not be read, and runs that are not predicted.
    """

    study: str
    scale: str
    runs: list[PushPrediction]
    step_size: Estimate
    calibration: list[Calibration]
    kl_limit: list[dict[str, str | float]]
    problems: list[str]

    def numbers(self) -> dict[str, object]:
        """For JSON."""
        return {
            **{"study": self.study, "scale": self.scale, "unit": "run"},
            "runs": [columns(row, observed=None, predicted="") for row in self.runs],
            "step_size": self.step_size.row("factor"),
            "calibration": [line.row() for line in self.calibration],
            "kl_limit": self.kl_limit,
            "problems": self.problems,
        }


def study(folder: Path, scale: str) -> Propagation:
    """Predictions and calibration of a study's finished runs. Raises UserError: too few runs that
    trained for two steps or more."""
    runs, problems = read_runs(folder)
    trained = [run for run in runs if run.done and len(np.unique(run.step_P)) > 1]
    if len(trained) <= FEWEST:
        raise UserError(
            f"{folder} has {len(trained)} finished runs of two steps or more, but a run's scale is"
            f" fitted on the others, which needs {FEWEST + 1} runs. Train more seeds or judges."
        )
    trajectories = paths(trained)
    rows = predict(trajectories, scale)
    moves = _moves(trajectories, scale)
    problems += [f"{cell} is not predicted: {why}" for cell, why in unpredicted(rows).items()]
    problems += [sentence] if (sentence := against(rows)) else []
    observed = {(row.cell, row.feature): row.observed.value for row in rows}
    limits: list[dict[str, str | float]] = [
        {"cell": run.cell, "feature": name, "observed": observed[run.cell, name]}
        | {"limit": limit, "of_truth": truth, "of_bias": limit - truth}
        for run in trained
        if (beta := float(run.config.get("trainer.beta") or 0.0)) > 0
        for name, (limit, truth) in kl_limit(run, beta).items()
    ]
    return Propagation(
        study=folder.name,
        scale=scale,
        runs=rows,
        step_size=moves.fit(np.full(len(moves.arm_R), True)).estimate,
        calibration=calibrate(rows, placebos(trajectories, scale)),
        kl_limit=limits,
        problems=problems,
    )


def unpredicted(rows: Sequence[PushPrediction]) -> dict[str, str]:
    """Cell -> why, for the runs of which no behaviour is predicted, but those of `against`."""
    predicted = {row.cell for row in rows if row.note in ("", AGAINST)}
    lacking = [row for row in rows if row.cell not in predicted]
    return {row.cell: row.note for row in reversed(lacking)}


def against(rows: Sequence[PushPrediction]) -> str:
    """The sentence on runs whose step size would not be above 0; empty where there are none."""
    cells = {row.cell for row in rows if row.note == AGAINST}
    runs = len({row.cell for row in rows})
    return f"{len(cells)} of {runs} runs are not predicted: {AGAINST}." if cells else ""
