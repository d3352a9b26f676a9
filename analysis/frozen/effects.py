"""The effect of a study: how far each run moved, on the answers that arms are compared on.

Those are the held-out rows, before and after training, where every run was evaluated on them, else
the rollouts of the first and the last tenth of the steps. Every table, figure and sentence takes it
from here, so that an effect is one number with one interval wherever it stands::

    effects = effects_of(runs, base="sim-fair")
    effects.difference("length", "sim-verbose", "sim-fair")
    shift_table(effects.behaviours, "sim-fair", variances=effects.variances)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from analysis.drift.estimate import (
    RunVariances,
    difference,
    feature_values,
    mean_shift,
    run_shifts,
    run_variances,
)
from analysis.frozen.estimate import all_frozen, frozen_shifts
from analysis.records.runs import Run
from analysis.statistics.estimate import Estimate
from analysis.statistics.intervals import Paired
from study.errors import UserError
from study.screen import plural

On = Literal["held_out", "rollouts"]
ON: tuple[On, ...] = ("held_out", "rollouts")


@dataclass(frozen=True, repr=False)
class Effects:
    """Shifts of every run, as `analysis.drift.estimate.run_shifts` has them."""

    on: On
    rows: int
    """Held-out rows; 0 on rollouts."""
    base: str | None
    """The arm that others are compared with."""
    scores: pd.DataFrame
    behaviours: pd.DataFrame
    variances: RunVariances
    """Of scores and behaviours together."""

    def __repr__(self) -> str:
        return f"<Effects {self.where}; {plural(self.scores['cell'].nunique(), 'run')}>"

    @property
    def where(self) -> str:
        """On what the numbers rest, in the words of every caption."""
        if self.on == "held_out":
            return f"on {plural(self.rows, 'held-out row')}, before and after"
        return "on rollouts, first and last tenth of the steps"

    def runs_of(self, metric: str, arm: str) -> pd.DataFrame:
        """The shifts of an arm's runs in a score or a behaviour, by seed; none where there are
        none."""
        every = self.scores if metric in set(self.scores["metric"]) else self.behaviours
        return every[(every["metric"] == metric) & (every["arm"] == arm)].set_index("seed")

    def shift(self, metric: str, arm: str) -> Estimate:
        """How far the runs of an arm moved, with the study's one interval of it."""
        return mean_shift(self.runs_of(metric, arm), self.variances)

    def difference(self, metric: str, arm: str, base: str) -> Paired:
        """How much further the runs of an arm moved than those of another, paired by seed, with the
        study's one interval of it."""
        return difference(self.runs_of(metric, arm), self.runs_of(metric, base), self.variances)


def effects_of(
    runs: Sequence[Run],
    base: str | None,
    behaviours: Collection[str] | None = None,
    on: On | None = None,
    scale: tuple[float, float] = (0.0, 1.0),
) -> Effects:
    """The effects of runs that are compared with one another.

    Args:
        base: the arm that others are compared with.
        behaviours: those that vary; by default all that are measured.
        on: the answers; by default the held-out rows where all runs have them.
        scale: ends of the judge's scale, for the worst cases of missing scores.

    Raises UserError: ``on`` is neither, or a run was not evaluated on held-out rows.
    """
    if on not in (None, *ON):
        raise UserError(f"on={on} is not known. Type on=held_out or on=rollouts.")
    if on == "held_out" and not all_frozen(runs):
        raise UserError(
            "on=held_out needs runs that were all evaluated on held-out rows before and after"
            " training; these were not. Type on=rollouts."
        )
    names = set(runs[0].names if runs else ()) if behaviours is None else {*behaviours}
    rows = 0
    if on == "held_out" or (on is None and all_frozen(runs)):
        held_out = frozen_shifts(runs, scale=scale)
        is_behaviour = held_out["metric"].isin(runs[0].names)
        scores = held_out[~is_behaviour]
        moved = held_out[is_behaviour & held_out["metric"].isin(names)]
        start = runs[0].frozen
        assert start is not None
        rows = len(start.at(int(start.step_P.min())).truth)
        place: On = "held_out"
    else:
        place, scores = "rollouts", run_shifts(runs, scale=scale)
        moved = run_shifts(
            runs, lambda run: {k: v for k, v in feature_values(run).items() if k in names}
        )
    parts = [part for part in (scores, moved) if len(part)]
    variances = run_variances(pd.concat(parts) if parts else scores, base)
    return Effects(place, rows, base, scores, moved, variances)
