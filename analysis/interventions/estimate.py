"""What each intervention on a biased judge bought: bias left, truth gained, what grew, the cost.

An intervention is a setting of ``correction`` (a panel brings its shadow judges with it), or a
larger KL penalty. Its arm is compared with the plain arm, paired by seed: the same judge without a
correction, at the smallest KL penalty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.drift.base import plain_arm, settings_of
from analysis.drift.estimate import usable_cells
from analysis.drift.substitution import Substitution, substitutions
from analysis.frozen.effects import Effects
from analysis.ledger.transmission import within_regression
from analysis.records.frames import rollouts_frame
from analysis.records.runs import Records, Run
from analysis.statistics.estimate import NAN, NO_ESTIMATE, Estimate, columns, known_mean, ratio_se
from analysis.statistics.intervals import mean_interval
from study.cell.records import COMPONENT
from study.config.identity import left_out
from study.config.marks import under
from study.rewards.corrections.calibration import fitted
from study.rewards.corrections.corrector import RECHECKED, UNCALIBRATED

COLUMNS = tuple(f"{COMPONENT}{name}" for name in (UNCALIBRATED, RECHECKED))
DRAWS = 200
"""Of the labelled groups, for what a calibration does not know."""


@dataclass(frozen=True)
class Intervention:
    """One arm beside the plain arm.

    Attributes:
        arm, settings: its name, and what it has that the plain arm does not, as it is typed; the
            plain arm's is empty.
        residual: what is left of the bias, per SD of the behaviour: its coefficient in the
            regression within groups of the score that was rewarded, less the truth, on all
            behaviours and the truth; a slope and no effect of an arm, so Student's t over runs.
        worth: the same over the coefficient of the truth in that score: the truth that an SD of
            the behaviour outweighs. It does not change with the scale of a score, and neither do
            advantages that are divided by their group's SD.
        behaviour, truth: shift of the biased behaviour and of the truth beyond the plain arm's,
            paired by seed, as `Effects` has it; of the plain arm the shift itself.
        grew: behaviours that rose while another fell beyond the plain arm (`substitutions`).
        calls: verdicts of a run, those of shadow judges too.
        labels: rule truths of a run that took part in its rewards.
        steps: that a run made.
        calibrated: what calibrated scores are beyond the truth in the last tenth of the steps;
            its interval has what the calibration does not know: it is Student's over the runs of
            this arm alone, as there are no other comparisons like it. NaN without a calibration.
    """

    arm: str
    settings: str
    runs: int
    residual: Estimate
    worth: Estimate
    behaviour: Estimate
    truth: Estimate
    grew: tuple[Substitution, ...]
    calls: float
    labels: float
    steps: float
    calibrated: Estimate


@dataclass(frozen=True)
class Interventions:
    """The arms, the plain one first, and the behaviour that its judge pays for."""

    plain: str
    feature: str
    where: str
    """On what the shifts rest: `Effects.where`."""
    arms: tuple[Intervention, ...]


def of_records(
    records: Records, effects: Effects, cells: Sequence[str] | None = None
) -> Interventions | None:
    """The interventions of a study; None where no arm has any beside a plain one. ``effects`` are
    those of the study."""
    used_cells = usable_cells(records.table) if cells is None else cells
    runs = [run for run in records.runs if run.cell in used_cells]
    by_arm: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.arm, run.seed)):
        by_arm.setdefault(run.arm, []).append(run)
    settings = {arm: settings_of(of_arm[0].identity) for arm, of_arm in by_arm.items()}
    plain, compared = plain_arm(settings)
    if not compared:
        return None
    feature = _paid_for(by_arm[plain])
    arms = {arm: by_arm[arm] for arm in (plain, *compared)}
    whole = [run for of_arm in arms.values() for run in of_arm]
    swaps = substitutions(whole, base=plain)
    sd = _sd(by_arm[plain], feature)
    residuals = {
        arm: [_residual(run, feature, sd) for run in of_arm] for arm, of_arm in arms.items()
    }
    calls = records.outcomes.groupby("cell")["verdicts"].sum()
    calibration_rows = {run.cell: _taken(records, run) for run in whole}

    def beyond(metric: str, arm: str) -> Estimate:
        if arm == plain:
            return effects.shift(metric, arm)
        return effects.difference(metric, arm, plain)

    return Interventions(
        plain,
        feature,
        effects.where,
        tuple(
            Intervention(
                arm,
                _typed(settings[arm], settings[plain]),
                len(of_arm),
                *(mean_interval(values) for values in zip(*residuals[arm], strict=True)),
                beyond(feature, arm),
                beyond("truth", arm),
                tuple(swap for swap in swaps if swap.arm == arm),
                known_mean(np.array([calls.get(run.cell, 0) for run in of_arm], dtype=float)),
                known_mean(np.array([_labels(run, calibration_rows[run.cell]) for run in of_arm])),
                known_mean(np.array([len(run.steps) for run in of_arm], dtype=float)),
                _calibrated([(run, calibration_rows[run.cell]) for run in of_arm]),
            )
            for arm, of_arm in arms.items()
        ),
    )


def numbers(interventions: Interventions) -> dict[str, Any]:
    """For JSON: the plain arm, the behaviour, and a row for each arm."""
    arms = [
        columns(row) | {"grew": [columns(swap) for swap in row.grew]} for row in interventions.arms
    ]
    names = ("plain", "feature", "where")
    return {name: getattr(interventions, name) for name in names} | {"arms": arms}


def _typed(settings: Mapping[str, Any], plain: Mapping[str, Any]) -> str:
    """What an arm has that the plain one does not, as it is typed."""
    lists: dict[str, list[str]] = {}
    for key, value in settings.items():
        same = value == plain.get(key, left_out(key))
        if same or under(key, ("shadow_judges", "correction.parts")):
            continue
        name, _, place = key.rpartition(".")
        lists.setdefault(name if place.isdecimal() else key, []).append(
            str(value).lower() if isinstance(value, bool) else str(value)
        )
    return " ".join(
        f"{key}=[{','.join(values)}]" if f"{key}.0" in settings else f"{key}={values[0]}"
        for key, values in lists.items()
    )


def _paid_for(runs: Sequence[Run]) -> str:
    """The behaviour with the largest dose, or else with the largest measured bias per SD."""
    doses = {name: abs(dose) for name, dose in (runs[0].doses or {}).items() if dose}
    if doses:
        return max(doses, key=lambda name: doses[name])
    sizes = {
        name: abs(known_mean(np.array([_residual(run, name, _sd(runs, name))[0] for run in runs])))
        for name in runs[0].names
    }
    return max(sizes, key=lambda name: sizes[name] if np.isfinite(sizes[name]) else -1.0)


def _sd(runs: Sequence[Run], feature: str) -> float:
    """SD of a behaviour over the first rollouts of some runs; NaN where it was not measured."""
    k = runs[0].names.index(feature)
    first = np.concatenate([run.features[run.step_P == run.step_P.min(), :, k] for run in runs])
    finite = first[np.isfinite(first)]
    return float(finite.std()) if finite.size else NAN


def _residual(run: Run, feature: str, sd: float) -> tuple[float, float]:
    """``residual`` and ``worth`` of one run; see `Intervention`."""
    score = run.judge if run.corrected is None else run.corrected
    beside = np.concatenate([run.features, run.truth[..., None]], axis=-1)
    bias = within_regression(score - run.truth, beside).coef_K
    residual, of_truth = float(bias[run.names.index(feature)]) * sd, 1 + float(bias[-1])
    return residual, residual / of_truth if of_truth > 0 else NAN


def _taken(records: Records, run: Run) -> pd.DataFrame:
    """Calibration and rechecks of a run's rollouts, in the order in which they were made."""
    if run.corrected is None:
        return pd.DataFrame()
    row = records.table[records.table["cell"] == run.cell]
    names = ["step", "group", "member", "truth", *COLUMNS]
    frame = rollouts_frame(records.folder, names, row)
    return frame.sort_values(["step", "group", "member"], ignore_index=True)


def _labels(run: Run, rollouts: pd.DataFrame) -> float:
    """Rule truths that took part in the rewards of a run; one of both kinds counts once."""
    if rollouts.empty:
        return 0.0
    again = rollouts.index[rollouts[COLUMNS[1]].fillna(0.0) > 0]
    return float(len(_scored(rollouts).head(_wanted(run)).index.union(again)))


def _wanted(run: Run) -> int:
    """Rollouts that a run's scores are calibrated on."""
    return int(run.config.get("correction.calibrate") or 0)


def _scored(rollouts: pd.DataFrame) -> pd.DataFrame:
    """Those with a score before calibration, and a truth."""
    return rollouts.dropna(subset=[COLUMNS[0], "truth"])


def _calibrated(runs: Sequence[tuple[Run, pd.DataFrame]]) -> Estimate:
    """Calibrated score - truth in the last tenth of the steps, t over runs; the interval is no
    narrower than the rollouts of both ends allow."""
    differences = [_transported(run, rollouts) for run, rollouts in runs]
    with_labels = [pair for pair in differences if pair is not None]
    if not with_labels:
        return NO_ESTIMATE
    values, variances = zip(*with_labels, strict=True)
    return mean_interval(values, within=variances)


def _transported(run: Run, rollouts: pd.DataFrame) -> tuple[float, float] | None:
    """Mean of calibrated score - truth in the last tenth, and its variance: that of the labelled
    groups, drawn anew and fitted anew, and that of the groups of the last tenth; NaN where there is
    only one group of either."""
    label_count = _wanted(run)
    if not label_count or rollouts.empty:
        return None
    scored_rows = _scored(rollouts)
    labelled = scored_rows.head(label_count)
    last = scored_rows[scored_rows["step"] > run.steps[-1] - max(1, len(run.steps) // 10)]
    if len(labelled) < label_count or last.empty:
        return None
    names = [COLUMNS[0], "truth"]
    scores, truth = last[names].to_numpy(dtype=float).T
    groups = [part[names].to_numpy(dtype=float) for _, part in labelled.groupby(["step", "group"])]
    rng = np.random.default_rng(0)
    means = [
        float(np.mean(fitted(*np.concatenate([groups[k] for k in drawn]).T)(scores) - truth))
        for drawn in rng.integers(0, len(groups), (DRAWS, len(groups)))
    ]
    error_N = fitted(*labelled[names].to_numpy(dtype=float).T)(scores) - truth
    by_group = last.assign(error=error_N).groupby(["step", "group"])["error"]
    within = ratio_se(by_group.agg(["sum", "count"]).to_numpy(dtype=float))
    between = float(np.var(means, ddof=1)) if len(groups) > 1 else NAN
    return float(error_N.mean()), between + within**2
