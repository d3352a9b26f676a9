"""Two studies side by side: how they were made, what each taught, and how one forecasts the other.

A shift is a mean over runs with its interval over runs, as the report has it. Where an arm of one
name ran under the same seeds in both, the difference is paired by seed. Both studies are read by
frozen evaluation where every finished run of both has it, and else by their rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.drift import estimate as drift
from analysis.forecast import units as forecast_units
from analysis.forecast.candidates import Candidates, candidates
from analysis.forecast.estimate import BaseRewards, ask
from analysis.forecast.scores import MethodScore, scored
from analysis.forecast.units import FEWEST_ARMS, Trained
from analysis.frozen.effects import Effects, On, effects_of
from analysis.frozen.estimate import all_frozen
from analysis.records.runs import Records, Run, read_study
from analysis.statistics.estimate import NO_ESTIMATE, Estimate
from analysis.statistics.looks import Look, look_of
from analysis.statistics.prediction import Prediction
from study.cell.cells import Cell, load_cell
from study.cell.folder import study_cells
from study.cell.study_file import read_study as read_description
from study.config.identity import left_out
from study.config.marks import under
from study.errors import UserError
from study.features import unit
from study.screen import plural
from study.system.files import Damaged

SCORES = ("truth", "judge_score", "gap")
Place = tuple[str, str]
"""A key of the config and an arm; no arm is all cells."""


@dataclass(frozen=True, repr=False)
class Side:
    """One of the two studies."""

    name: str
    cells: tuple[Cell, ...]
    arms: tuple[str, ...]
    """Of the cells, in their order."""
    factors: tuple[str, ...]
    records: Records
    runs: tuple[Run, ...]
    """Those that the estimates rest on: the finished ones, or all where none is finished."""

    def __repr__(self) -> str:
        return f"<Side {self.records!r}>"

    @classmethod
    def of(cls, records: Records) -> Side:
        """A study that was read. Raises UserError: no cell of it can be read."""
        folder, every = records.folder, []
        records = replace(records, problems=[*records.problems])
        for path in study_cells(folder):
            try:
                every.append(load_cell(path))
            except Damaged as error:
                records.problems.append(f"{path.name} is left out: {error.why}")
        if not every:
            raise UserError(f"{folder} holds no readable cell to compare. Run the study first.")
        factors = tuple(read_description(folder).get("factors") or every[0].config.factors)
        named = dict(zip(records.table["cell"], records.table["arm"], strict=True))
        arms = [named[cell.name] for cell in every]
        used_cells = drift.usable_cells(records.table)
        runs = tuple(run for run in records.runs if run.cell in used_cells)
        return cls(folder.name, tuple(every), tuple(arms), factors, records, runs)

    def values(self, key: str, arm: str | None = None) -> list[object]:
        """What the cells, or those of one arm, have under a key of the config, each once."""
        values = [
            cell.identity.get(key, left_out(key))
            for cell, of in zip(self.cells, self.arms, strict=True)
            if arm in (None, of)
        ]
        return sorted((v for place, v in enumerate(values) if v not in values[:place]), key=str)

    def keys(self) -> set[str]:
        """Every key that some cell's config has."""
        return {key for cell in self.cells for key in cell.identity}

    @property
    def look(self) -> Look:
        """Where the study stands among its looks: by the seeds that every arm has."""
        return look_of(self.records.looks, [(run.arm, run.seed) for run in self.runs])

    def runs_of(self, arm: str) -> int:
        """How many of the runs are of an arm."""
        return sum(run.arm == arm for run in self.runs)


@dataclass(frozen=True)
class ShiftPair:
    """How far an arm moved on a metric in either study, and ``diff``, the second less the first."""

    metric: str
    arm: str
    shift: list[Estimate]
    diff: Estimate

    @property
    def unit(self) -> str:
        """Of the shifts."""
        return "score" if self.metric in SCORES else unit(self.metric)


@dataclass(frozen=True)
class CrossForecast:
    """The study ``of``, forecast by the runs of the study ``by``.

    Attributes:
        in_both: arms of both.
        shifts: of every arm, beside the mean of the runs that were trained.
        why_none: why there is no forecast; empty where there is.
    """

    of: str
    by: str
    in_both: Sequence[str] = ()
    shifts: Sequence[Prediction] = ()
    scores: Sequence[MethodScore] = ()
    why_none: str = ""

    def row(self) -> dict[str, object]:
        """For JSON."""
        forecast = {
            "in_both": self.in_both,
            "shifts": [
                {"arm": each.arm, "metric": each.feature}
                | {"forecast": _plain(each.predicted), "trained": _plain(each.observed)}
                for each in self.shifts
            ],
            "scores": [score.row() for score in self.scores],
        }
        result = {"none": self.why_none} if self.why_none else forecast
        return {"of": self.of, "by": self.by, **result}


@dataclass(frozen=True, repr=False)
class Comparison:
    """Everything that `analysis.compare` prints.

    Attributes:
        frozen: whether the shifts rest on frozen evaluation.
        both, alone: arms of both studies, and of each without the other.
        config: values that differ, of the one study and of the other.
        problems: what could not be read.
    """

    sides: tuple[Side, Side]
    frozen: bool
    both: list[str]
    alone: list[list[str]]
    config: dict[Place, list[list[object]]]
    shifts: list[ShiftPair]
    forecasts: list[CrossForecast]
    problems: list[str]

    def __repr__(self) -> str:
        one, other = (side.name for side in self.sides)
        arms = f"{plural(len(self.both), 'arm')} in both"
        keys = f"{plural(len(self.config), 'difference')} in the config"
        return f"<Comparison of {one} and {other}: {arms}, {keys}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self)[1:-1])}</p>{self.table().to_html(index=False)}"

    def table(self) -> pd.DataFrame:
        """How far each arm moved in either study, a row for each metric and arm: ``shift_1`` in the
        first, ``shift_2`` in the second, and ``diff``, the second less the first over the ``pairs``
        of seeds that both have, from ``low`` to ``high`` (95 %). NaN where a study has none."""
        return pd.DataFrame(
            [
                {
                    **{"metric": row.metric, "unit": row.unit, "arm": row.arm},
                    **{f"shift_{k}": each.value for k, each in enumerate(row.shift, 1)},
                    **{"diff": row.diff.value, "low": row.diff.low, "high": row.diff.high},
                    **{"pairs": row.diff.n, "note": row.diff.note},
                }
                for row in self.shifts
            ]
        )

    def numbers(self) -> dict[str, object]:
        """For JSON."""
        return {
            "studies": [side.name for side in self.sides],
            "runs": [len(side.runs) for side in self.sides],
            "looks": [side.look.sentence() for side in self.sides],
            "frozen": self.frozen,
            "arms": {"both": self.both, "only": self.alone},
            "arm_runs": {
                arm: [side.runs_of(arm) for side in self.sides]
                for arm in dict.fromkeys(arm for side in self.sides for arm in side.arms)
            },
            "config": [
                {"key": key, "arm": arm, "values": values}
                for (key, arm), values in self.config.items()
            ],
            "shifts": [
                {"metric": row.metric, "unit": row.unit, "arm": row.arm}
                | {"shift": [_plain(each) for each in row.shift], "diff": _plain(row.diff)}
                for row in self.shifts
            ],
            "forecasts": [forecast.row() for forecast in self.forecasts],
            "problems": self.problems,
        }


def compare(
    left: Records | Path | str, right: Records | Path | str, forecast: bool = False
) -> Comparison:
    """Two studies side by side.

    Args:
        left: a study that was read, or its folder.
        right: the other one.
        forecast: whether each is forecast by the other, for which judges are asked of first
            rollouts what the store does not have.

    Raises UserError: no such study, or no cell of one can be read.
    """
    studies = [each if isinstance(each, Records) else read_study(each) for each in (left, right)]
    one, other = sides = (Side.of(studies[0]), Side.of(studies[1]))
    folders = [each.folder.absolute() for each in studies]
    both = [arm for arm in dict.fromkeys(one.arms) if arm in other.arms]
    on: On = "held_out" if all(all_frozen(side.runs) for side in sides) else "rollouts"
    return Comparison(
        sides=sides,
        frozen=on == "held_out",
        both=both,
        alone=[sorted({*side.arms} - {*both}) for side in sides],
        config=differences(one, other, both),
        shifts=shifts(one, other, on),
        forecasts=forecasts((folders[0], one), (folders[1], other)) if forecast else [],
        problems=[problem for side in sides for problem in side.records.problems],
    )


def differences(one: Side, other: Side, both: Sequence[str]) -> dict[Place, list[list[object]]]:
    """Keys of the config that the studies have in different values: of all cells where neither
    study declares it a factor, and of each arm that both have where one does. ``arm`` is empty for
    the first. Seeds are told once."""
    declared = {*one.factors, *other.factors}
    return {
        (key, arm): values
        for key in sorted(one.keys() | other.keys())
        for arm in ([""] if key == "seed" or not under(key, declared) else both)
        if (values := [side.values(key, arm or None) for side in (one, other)])[0] != values[1]
    }


def shifts(one: Side, other: Side, on: On) -> list[ShiftPair]:
    """How far each arm moved on truth, judge, their gap and every behaviour that varies, in each
    study; NaN where a study has no run of the arm. ``diff`` is the second less the first, paired by
    seed. The interval of a shift is that of its own study's report."""
    of_studies = [effects_of(side.runs, None, on=on) for side in (one, other)]
    tables = [pd.concat([each.scores, each.behaviours]) for each in of_studies]
    ratios = [each.variances for each in of_studies]
    arms = list(dict.fromkeys([*one.arms, *other.arms]))
    names = [*SCORES, *_varying([*one.runs, *other.runs])]
    of_both = {
        (metric, arm): [
            table[(table["arm"] == arm) & (table["metric"] == metric)].set_index("seed")
            for table in tables
        ]
        for metric in names
        for arm in arms
    }
    of_pairs = drift.variance_of_pairs([(second, first) for first, second in of_both.values()])
    apart = replace(ratios[0], differences=of_pairs)
    rows = []
    for (metric, arm), parts in of_both.items():
        estimates = [drift.mean_shift(*each) for each in zip(parts, ratios, strict=True)]
        has_value = [not np.isnan(each.value) for each in estimates]
        if any(has_value):
            pair = drift.difference(parts[1], parts[0], apart) if all(has_value) else NO_ESTIMATE
            rows.append(ShiftPair(metric, arm, estimates, pair))
    return rows


def _plain(each: Estimate) -> dict[str, float]:
    return {"value": each.value, "low": each.low, "high": each.high, "n": each.n}


def _varying(runs: Sequence[Run]) -> list[str]:
    """Behaviours that are not the same in every answer of some run."""
    names = dict.fromkeys(name for run in runs for name in run.names)
    return [name for name in names if any(_varies(run, name) for run in runs)]


def _varies(run: Run, name: str) -> bool:
    values = run.features[..., run.names.index(name)] if name in run.names else np.empty(0)
    values = values[np.isfinite(values)]
    return bool(values.size and values.min() < values.max())


@dataclass(frozen=True)
class ForecastInputs:
    """What the rollouts of a study's first step say of its judges, and how its runs came out."""

    base_rewards: BaseRewards
    judged: Candidates
    runs: Trained
    effects: Effects
    """On rollouts, which forecasts are of."""


def forecasts(one: tuple[Path, Side], other: tuple[Path, Side]) -> list[CrossForecast]:
    """Each study forecast by a fit on the runs of the other alone. Where one cannot be,
    ``why_none`` says why."""
    inputs: list[ForecastInputs | UserError] = []
    for folder, side in (one, other):
        try:
            base_rewards = ask(folder, "study")
            judged = candidates(base_rewards)
            trained = forecast_units.trained(side.runs, judged)
            effects = effects_of(side.runs, None, on="rollouts")
            inputs.append(ForecastInputs(base_rewards, judged, trained, effects))
        except UserError as error:
            inputs.append(error)
    first, second = inputs
    return [
        _forecast(second, first, other[1].name, one[1].name),
        _forecast(first, second, one[1].name, other[1].name),
    ]


def _forecast(
    of: ForecastInputs | UserError, by: ForecastInputs | UserError, name: str, fitted_on: str
) -> CrossForecast:
    """The study ``name``, forecast by the runs of another."""
    try:
        for each in (of, by):
            if isinstance(each, UserError):
                raise each
        assert isinstance(of, ForecastInputs) and isinstance(by, ForecastInputs)
        if (arms := len(np.unique(by.runs.arm))) < FEWEST_ARMS:
            raise UserError(
                f"{fitted_on} has finished runs of {arms} arms; the fit needs"
                f" {FEWEST_ARMS} arms or more."
            )
        response_fit = forecast_units.fitted(by.base_rewards, by.judged, by.runs)
        lines = forecast_units.forecasts(response_fit, of.base_rewards, of.judged)
        scores = scored(response_fit, of.base_rewards, of.judged, of.runs)
    except UserError as error:
        return CrossForecast(name, fitted_on, why_none=str(error))
    rows = []
    for line in lines:
        of_arm = of.effects.runs_of(line.feature, line.arm)
        trained = of_arm[of_arm["cell"].isin(of.runs.cells)]
        rows.append(replace(line, observed=drift.mean_shift(trained, of.effects.variances)))
    in_both = sorted({*of.judged.arms} & {*by.judged.arms})
    return CrossForecast(name, fitted_on, in_both, rows, scores.methods)
