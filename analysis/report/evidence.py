"""Every table behind one study's report, computed once.

`gather` reads a study, and `Evidence` is what it gives::

    evidence = gather("runs/quickstart")
    print(*findings(evidence), sep="\\n")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.audit.estimate import StudyAudit, audit_of
from analysis.crossjudge.estimate import Inflation, agreement, inflation, matrix
from analysis.display.figures import DRAWN
from analysis.dose.estimate import FEWEST as FEWEST_DOSES
from analysis.dose.estimate import DoseResponse, doses_of, response
from analysis.drift import estimate as drift
from analysis.drift.base import base_of
from analysis.drift.failures import failure_table, failures_by_length
from analysis.drift.substitution import Substitution, substitutions, why_no_substitution
from analysis.families.estimate import Families
from analysis.families.estimate import of_runs as families_of
from analysis.field.estimate import Field
from analysis.field.estimate import of_runs as field_of
from analysis.frozen.effects import Effects, effects_of
from analysis.frozen.estimate import held_out_table
from analysis.interventions.estimate import Interventions
from analysis.interventions.estimate import of_records as interventions_of
from analysis.knockout.estimate import Knockout, knockouts
from analysis.ledger.estimate import frame_of, gap_table, judge_table, step_rows
from analysis.ledger.judge_error import calibrated
from analysis.mixture.estimate import Mixture
from analysis.mixture.estimate import of_runs as mixture_of
from analysis.onset.estimate import Line, own_line
from analysis.onset.overopt import BestOfN, best_of_n, rows
from analysis.panel.estimate import Panel, worth
from analysis.propagation.calibration import Calibration, PushPrediction, calibrate
from analysis.propagation.estimate import against, paths, placebos, predict
from analysis.records.replays import with_replays
from analysis.records.runs import Records, Run, on_each_core, read_study
from analysis.statistics.looks import Look, look_of
from analysis.statistics.prediction import FEWEST
from analysis.workflow.arm import Workflow
from analysis.workflow.arm import of_study as workflow_of
from study.features import FEATURES


@dataclass(frozen=True, repr=False)
class Evidence:
    """Every table of one study's report.

    The estimates rest on the used cells: the finished ones, or all where none is finished.
    """

    records: Records
    used_cells: list[str]
    base: str | None
    """The arm that the others are compared with."""
    runs: list[Run]
    """Runs of the used cells by arm and seed; judges of a replay are among their shadows."""
    spread: dict[str, float]
    """Standard deviation of each behaviour over all answers of the study, where it varies."""
    scores: pd.DataFrame
    features: pd.DataFrame
    """Step means by run, long, of the scores, and of the behaviours that vary."""
    effects: Effects
    """What the two rest on: held-out rows where every used run has them, else the rollouts."""
    score_shifts: pd.DataFrame
    feature_shifts: pd.DataFrame
    """`analysis.drift.estimate.shift_table` of the two: of frozen evaluation where every used run
    has it, else of the rollouts."""
    held_out: pd.DataFrame
    """`analysis.frozen.estimate.held_out_table`: empty where the comparison rests on rollouts,
    and where nothing moved at all."""
    same: dict[str, str]
    """`analysis.drift.estimate.one_behaviour`: behaviours that go with another, and are not
    counted."""
    moved: dict[str, float]
    """`analysis.drift.estimate.moved`: p that no run moved on a behaviour."""
    failures: pd.DataFrame
    failures_by_length: pd.DataFrame
    doses: list[DoseResponse]
    """Of each behaviour that is paid for in enough doses."""
    ledger: pd.DataFrame
    """`analysis.ledger.estimate.ledger`: one row per run and step."""
    ledger_by_arm: pd.DataFrame
    """`analysis.ledger.estimate.judge_table`: arm, metric, mean, low, high, n."""
    gap_parts: pd.DataFrame
    """`analysis.ledger.estimate.gap_table`: how far each part of judge - truth moved, by arm."""
    predicted: list[PushPrediction]
    calibration: list[Calibration]
    no_prediction: str
    """Why nothing was predicted; empty where something was."""
    onsets: list[Line]
    overoptimisation: list[dict[str, Any]]
    """`analysis.onset.overopt.rows` of the runs with a truth."""
    best_of_n: list[BestOfN]
    """What choosing by each judge would give before any training."""
    field: Field
    """What other studies report: aggregates over metrics, differences by prompt, onset times."""
    mixture: Mixture | None
    """What the runs say of their domains; None where no row names its domain."""
    workflow: Workflow | None
    """What the runs say of the programs that were written; None where none was."""
    knockouts: list[Knockout]
    """`analysis.knockout.estimate.knockouts`."""
    interventions: Interventions | None
    """What was done about a judge, beside the same judge as it is; None where nothing was."""
    families: Families | None
    """Judges by family, size and prompt; None where natural judges have one of each."""
    gains: pd.DataFrame
    """`analysis.crossjudge.estimate.matrix`: the gain of each policy under each judge."""
    inflation: list[Inflation]
    agreement: pd.DataFrame
    audit: StudyAudit | None
    """What a reference says of a share of the answers; None where none was asked."""
    panels: list[Panel]
    substitutions: list[Substitution]
    no_substitution: str
    """Why substitution cannot be told; empty where it can."""
    problems: list[str]
    """Steps and replays that were left out; what could not be read is in ``records.problems``."""

    def __repr__(self) -> str:
        return f"<Evidence {self.effects.where}; {self.records!r}>"

    @property
    def name(self) -> str:
        """The study's name."""
        return self.records.folder.name

    @property
    def cells(self) -> pd.DataFrame:
        """One row per cell, in any state."""
        return self.records.table

    @cached_property
    def score_curves(self) -> pd.DataFrame:
        """`analysis.drift.estimate.learning_curves` of the scores, in as many points as are
        drawn."""
        return drift.learning_curves(self.scores, DRAWN)

    @cached_property
    def behaviour_curves(self) -> pd.DataFrame:
        """The same of the behaviours that vary."""
        return drift.learning_curves(self.features, DRAWN)

    @cached_property
    def look(self) -> Look:
        """Where the study stands among its looks: by the seeds that every arm has."""
        return look_of(self.records.looks, [(run.arm, run.seed) for run in self.runs])

    @property
    def absent(self) -> list[str]:
        """Behaviours that are the same in every answer, left out of figures and tests."""
        return [name for name in FEATURES if name not in self.spread]

    @property
    def arms(self) -> list[str]:
        """The base arm first, then the others by name."""
        return drift.arms_in_order(self.cells, self.base)

    def recorded(self, arm: str) -> list[Run]:
        """The runs of one arm that have rollouts, used or not."""
        return [run for run in self.records.runs if run.arm == arm]


def gather(study_dir: Path | str) -> Evidence:
    """Read a study's folder and compute every table of its report."""
    return of_records(read_study(study_dir))


def of_records(records: Records, cells: Sequence[str] | None = None) -> Evidence:
    """The evidence of a study that was read.

    ``cells``: those to rest the estimates on; by default what `drift.estimate.usable_cells` says.
    """
    table = records.table
    used_cells = drift.usable_cells(table) if cells is None else list(cells)
    used_runs = [run for run in records.runs if run.cell in used_cells]
    settings = [(run.arm, run.seed, run.identity) for run in used_runs]
    base = base_of(table[table["cell"].isin(used_cells)], settings)
    spread = _spread(records.runs)

    def varying(run: Run) -> dict[str, np.ndarray]:
        return {name: v for name, v in drift.feature_values(run).items() if name in spread}

    by_arm = sorted(used_runs, key=lambda run: (run.arm, run.seed))
    same = drift.one_behaviour(used_runs, list(spread))
    effects = on_rollouts = effects_of(used_runs, base, spread, scale=_score_scale(records.runs))
    if effects.on == "held_out":
        on_rollouts = effects_of(used_runs, base, spread, on="rollouts")
    moved = on_rollouts.behaviours
    bought = interventions_of(records, effects, used_cells)
    plain = base if bought and bought.plain == base else None
    size = sum(run.features.nbytes for run in by_arm)
    of_each = on_each_core(_rows_and_line, by_arm, size)
    steps = frame_of([row for of_run, _ in of_each for row in of_run])
    onsets = [onset for _, onset in of_each]
    predicted, calibration, no_prediction = _predictions(by_arm)
    runs, unread = with_replays(by_arm, records.folder)
    gains = matrix(runs)
    field_results = field_of(runs, onsets, effects, study_dir=records.folder)
    return Evidence(
        records=records,
        used_cells=used_cells,
        base=base,
        runs=runs,
        spread=spread,
        scores=drift.run_curves(used_runs),
        features=drift.run_curves(used_runs, varying),
        effects=effects,
        score_shifts=drift.shift_table(effects.scores, base, variances=effects.variances),
        feature_shifts=drift.shift_table(effects.behaviours, base, same, effects.variances),
        held_out=held_out_table(
            used_runs if effects.on == "held_out" else [], base, effects.variances
        ),
        same=same,
        moved=drift.moved(moved[~moved["metric"].isin(list(same))]),
        failures=failure_table(records.outcomes),
        failures_by_length=failures_by_length(records.outcomes),
        doses=dose_responses(used_runs),
        ledger=steps,
        ledger_by_arm=judge_table(by_arm, steps),
        gap_parts=gap_table(steps),
        predicted=predicted,
        calibration=calibration,
        no_prediction=no_prediction,
        onsets=onsets,
        overoptimisation=[
            row for run in by_arm if np.isfinite(run.truth).any() for row in rows(run)
        ],
        best_of_n=best_of_n(runs),
        field=field_results,
        mixture=mixture_of(by_arm, by_window=False),
        workflow=workflow_of(records, used_cells),
        knockouts=knockouts(by_arm, effects, on_rollouts, predicted),
        interventions=bought,
        families=families_of(by_arm, spread, effects, records.folder),
        gains=gains,
        inflation=inflation(gains) if len(gains) else [],
        agreement=agreement(runs),
        audit=audit_of(by_arm, records.folder),
        panels=worth(runs),
        substitutions=substitutions(runs, base=plain),
        no_substitution=why_no_substitution(runs, plain),
        problems=[*unread, *field_results.problems],
    )


def _rows_and_line(run: Run) -> tuple[list[dict[str, Any]], Line]:
    """A run's rows of the ledger and its onset, which rest on one calibration of its judge."""
    calibration = calibrated(run, run.judge)
    return step_rows(run, calibration), own_line(run, calibration)


def dose_responses(runs: Sequence[Run]) -> list[DoseResponse]:
    """`analysis.dose.estimate.response` of every behaviour that the judges pay for in three
    doses."""
    return [
        response(runs, feature)
        for feature in (runs[0].names if runs else ())
        if len(set(doses_of(runs, feature).values())) >= FEWEST_DOSES
    ]


def spread_of(values: Iterable[np.ndarray]) -> float:
    """Standard deviation over all known values; 0 where there are none, or all are the same."""
    parts = [each.ravel() for each in values]
    finite = np.concatenate(parts) if parts else np.empty(0)
    finite = finite[np.isfinite(finite)]
    return float(finite.std(ddof=1)) if finite.size and finite.min() < finite.max() else 0.0


def _spread(runs: Sequence[Run]) -> dict[str, float]:
    """Standard deviation of each behaviour over all answers, where it is not always the same."""
    names = runs[0].names if runs else ()
    spreads = {
        name: spread_of(run.features[..., k] for run in runs) for k, name in enumerate(names)
    }
    return {name: spread for name, spread in spreads.items() if spread > 0}


def _score_scale(runs: Sequence[Run]) -> tuple[float, float]:
    """Ends of the score scale: 0 and 1, or the lowest and highest score beyond them."""
    scores = [run.judge[np.isfinite(run.judge)] for run in runs]
    ends = np.concatenate([np.array([0.0, 1.0]), *scores])
    return float(ends.min()), float(ends.max())


def _predictions(runs: Sequence[Run]) -> tuple[list[PushPrediction], list[Calibration], str]:
    long = [run for run in runs if len(np.unique(run.step_P)) > 1]
    if len(long) <= FEWEST:
        why = (
            f"{len(long)} runs of two steps or more: the step size of a run is fitted on the"
            f" others, which needs {FEWEST + 1} runs."
        )
        return [], [], why
    trajectories = paths(long)
    predicted = predict(trajectories, "adam")
    calibration = calibrate(predicted, placebos(trajectories, "adam"))
    has_r2 = any(line.scores.r2 == line.scores.r2 for line in calibration)
    blank = against(predicted) or "No behaviour has a shift to compare."
    why = "" if has_r2 else blank
    return predicted, calibration, why
