"""What a judge pays for a feature, from recorded rollouts, so that it can be taken out again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from analysis.records.runs import Run, read_study
from analysis.statistics.estimate import FLAT
from analysis.statistics.fixed_effects import at_equal_levels, fixed_effects
from judges.ask.identity import judge_id
from study.cell.cells import load_cell
from study.cell.folder import CellFolder
from study.config.correction import Part
from study.config.schema import Judge
from study.errors import UserError
from study.system.files import Damaged


def fitted_parts(
    study_dir: Path, judge: Judge, names: Sequence[str], cell: str = ""
) -> dict[str, Part]:
    """Feature -> its part of the error of ``judge``, by `regressed` over the recorded rollouts of
    the runs that the very same judge trained without a correction: the finished ones, or all where
    none is finished. So an arm that is fitted on its own study does not change its own fit.

    Args:
        cell: the only run to take, by its name; empty takes all of the judge's.

    Raises:
        UserError: no such runs, no truth in them, or a feature that varies in no group.
    """
    runs = [run for run in read_study(study_dir).runs if cell in ("", run.cell)]
    plain = [run for run in runs if run.corrected is None]
    same = [run for run in plain if _identity(CellFolder(study_dir / run.cell)) == judge_id(judge)]
    if not same:
        judges = ", ".join(sorted({run.acting for run in plain})) or "no such run with rollouts"
        raise UserError(
            f"correction.fit={study_dir.name}{'/' * bool(cell)}{cell} has no rollouts that"
            f" judge={judge.name} trained with the same settings and no correction; it has"
            f" {judges}. Train a run"
            " with this judge and no correction, and name its study."
        )
    return regressed([run for run in same if run.done] or same, names, study_dir.name)


def regressed(runs: Sequence[Run], names: Sequence[str], study: str) -> dict[str, Part]:
    """Feature -> its coefficient in the regression of judge - truth on all behaviours within groups
    at equal truth (`at_equal_levels`), per SD of the feature. So a judge that makes anything of the
    truth, and another thing in each group, pays for nothing by that; groups are the clusters of the
    standard error.
    Mean and SD of the feature are over the same rollouts; ``study`` is named as the source.
    Raises UserError: no truth, a feature that varies in no group, or too few groups."""
    error, features, truth = _stacked(runs)
    if not np.isfinite(error).any():
        raise UserError(
            f"correction.fit={study} has no rollout with both a verdict of judge={runs[0].acting}"
            " and a rule truth, but the fit needs judge - truth. Name a study whose task has a"
            " truth."
        )
    measured = np.where(np.isfinite(features).any(axis=(0, 1)), features, 0.0)
    complete = np.isfinite(error) & np.isfinite(measured).all(axis=-1)
    group_N = np.broadcast_to(np.arange(len(error))[:, None], error.shape)[complete]
    matched_N, beside = at_equal_levels(truth[complete], group_N, group_N)
    columns = np.concatenate([measured[complete], beside], axis=1)
    bias = fixed_effects(error[complete], columns, matched_N, flat=FLAT, clusters_N=group_N)
    source = f"{study}: {', '.join(run.cell for run in runs)}"
    parts = {}
    for name in names:
        k = runs[0].names.index(name)
        if not np.isfinite(bias.coef_K[k]):
            raise UserError(
                f"correction.without names {name}, but in correction.fit={study} it does not vary"
                " within groups, or only together with other behaviours, so its bias is not"
                " identified. Name another study."
            )
        if not np.isfinite(bias.se_K[k]):
            raise UserError(
                f"correction.fit={study} has too few groups of rollouts with a verdict and a truth"
                f" to estimate the error of the bias of judge={runs[0].acting} for {name}. Name a"
                " study with more rollouts of this judge."
            )
        values = features[..., k][np.isfinite(features[..., k])]
        mean, sd = float(values.mean()), float(values.std())
        parts[name] = Part(float(bias.coef_K[k]) * sd, float(bias.se_K[k]) * sd, mean, sd, source)
    return parts


def _identity(cell: CellFolder) -> str:
    try:
        return judge_id(load_cell(cell).config.judge)
    except (Damaged, UserError):
        return ""


def _stacked(runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Judge - truth (P, G), features (P, G, K) and truth (P, G) of several runs; places that a
    smaller group does not have are NaN."""
    most = max(run.judge.shape[1] for run in runs)

    def wide(values: np.ndarray) -> np.ndarray:
        room = [(0, 0), (0, most - values.shape[1]), (0, 0)][: values.ndim]
        return np.pad(values, room, constant_values=np.nan)

    columns = [(run.judge - run.truth, run.features, run.truth) for run in runs]
    gaps, features, truths = (
        np.concatenate([wide(column) for column in part]) for part in zip(*columns, strict=True)
    )
    return gaps, features, truths
