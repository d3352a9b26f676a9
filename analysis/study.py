"""A study as a notebook asks it: what was read, and how far an arm moved::

study = read_study("runs/quickstart")
study.shift("length", judge="sim-verbose", beyond="sim-fair")
study.shift("truth", judge="sim-verbose", on="rollouts")
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from analysis.drift.base import base_of
from analysis.drift.estimate import SCORES, usable_cells
from analysis.frozen.effects import Effects, On, effects_of
from analysis.records import runs as records
from analysis.records.runs import Records
from analysis.statistics.estimate import Estimate
from study.errors import UserError
from study.features import FEATURES


@dataclass(frozen=True)
class Study(Records):
    """Everything numeric that a study has on record, with its answers to questions."""

    _effects: dict[On | None, Effects] = field(default_factory=dict, repr=False, compare=False)

    def effects(self, on: On | None = None) -> Effects:
        """The shifts that the study's report rests on, or those ``on`` other answers: of finished
        runs, or of all where none has finished. Computed once."""
        if on not in self._effects:
            cells = {*usable_cells(self.table)}
            used_runs = [run for run in self.runs if run.cell in cells]
            settings = [(run.arm, run.seed, run.identity) for run in used_runs]
            base = base_of(self.table[self.table["cell"].isin(cells)], settings)
            self._effects[on] = effects_of(used_runs, base, on=on)
        return self._effects[on]

    def shift(
        self, metric: str, judge: str, beyond: str | None = None, on: On | None = None
    ) -> Estimate:
        """How far a judge's runs moved (see `effects`), with the report's 95 % interval over runs.

        Args:
            metric: a score (truth, judge_score, reward, gap), or one of `study.features.FEATURES`
                in its own unit (words for length).
            judge: an arm of the study, as its report names it.
            beyond: another arm: how much further, paired by seed.
            on: held_out or rollouts; by default what the report rests on.

        Raises UserError: no such metric, or no such run of an arm.
        """
        if metric not in (*SCORES, *FEATURES):
            raise UserError(
                f"{metric} is not measured. Legal are {', '.join([*SCORES, *FEATURES])}."
            )
        effects = self.effects(on)
        for arm in (judge, *([] if beyond is None else [beyond])):
            if effects.runs_of(metric, arm).empty:
                table = effects.scores if metric in SCORES else effects.behaviours
                arms = ", ".join(dict.fromkeys(table.loc[table["metric"] == metric, "arm"]))
                raise UserError(
                    f"{self.folder} has no finished run under judge={arm}. It has"
                    f" {arms or 'no finished run at all'}."
                )
        if beyond is not None:
            return effects.difference(metric, judge, beyond)
        return effects.shift(metric, judge)


def read_study(study_dir: Path | str) -> Study:
    """Every run of a study that has rollouts, and every verdict counted.

    Shadow verdicts are averaged over votes; unscored votes are left out.
    """
    return Study(**vars(records.read_study(study_dir)))
