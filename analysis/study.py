"""A study as a notebook asks it: its answers, how far an arm moved, curves, figures::

    study = read_study("runs/quickstart")
    study.shift("length", "sim-verbose", beyond="sim-fair")
    study.shift("truth", on="rollouts")
    study.worst(5)

Every frame has the column names of ``judgedrift export``, and every estimate is that of the report.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np
import pandas as pd

from analysis.answers import frames
from analysis.answers.frames import Part
from analysis.answers.reading import read_answers
from analysis.display.figures import looks, looks_of
from analysis.display.markup import MISSING, number
from analysis.drift import figures
from analysis.drift.base import base_of
from analysis.drift.estimate import SCORES, arms_in_order, learning_curves, run_curves, usable_cells
from analysis.frozen.effects import ON, Effects, On, effects_of
from analysis.frozen.estimate import ANSWERS, answer_values
from analysis.records import runs as records
from analysis.records.runs import Records, Run
from analysis.statistics.estimate import Estimate
from study.config.presets import nearest, unknown_name
from study.errors import UserError
from study.features import FEATURES, unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Study(Records):
    """Everything numeric that a study has on record, with its answers to questions."""

    _effects: dict[On | None, Effects] = field(default_factory=dict, compare=False)

    def _repr_html_(self) -> str:
        rest = "".join(f"<li>{escape(problem)}</li>" for problem in self.problems)
        return f"<p>{escape(repr(self)[1:-1])}</p>{self.arms().to_html(index=False)}<ul>{rest}</ul>"

    def arms(self) -> pd.DataFrame:
        """One row for each arm: its seeds, steps and state, and truth and judge score before and
        after training, on what `effects` rests on; a dash where there is no such number."""
        effects = self.effects() if self.runs else None
        rows = []
        for arm in self._arms():
            cells = self.table[self.table["arm"] == arm]
            states = cells["state"].value_counts()
            steps = sorted({*cells["steps"]})
            row = {
                "arm": arm,
                "seeds": ", ".join(map(str, sorted(cells["seed"]))),
                "steps": " to ".join(map(str, dict.fromkeys([steps[0], steps[-1]]))),
                "state": ", ".join(f"{count} {state}" for state, count in states.items()),
            }
            for metric in ("truth", "judge_score"):
                runs = pd.DataFrame() if effects is None else effects.runs_of(metric, arm)
                ends = [runs[end].mean() for end in ("first", "last")] if len(runs) else [np.nan]
                row[metric] = " \u2192 ".join(map(number, ends)) if len(runs) else MISSING
            rows.append(row)
        return pd.DataFrame(
            rows, columns=["arm", "seeds", "steps", "state", "truth", "judge_score"]
        )

    def answers(
        self,
        arm: str | None = None,
        seed: int | None = None,
        step: int | Collection[int] | None = None,
        on: On = "rollouts",
        columns: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """One row for each answer: arm, seed, step, prompt, answer, judge_score, truth, gap, every
        behaviour by its name, and what the judge said of it. See docs/answers.md for all columns.

        Args:
            arm: of the answers that are read; by default all.
            seed: of the answers that are read; by default all.
            step: of the answers that are read, or several; by default all.
            on: ``rollouts`` that were trained on, or answers to ``held_out`` rows.
            columns: those to read; by default all. Name a few where a study is large.

        Raises UserError: no such arm, seed, step or column, or no answers to held-out rows.
        """
        return frames.answers_frame(read_answers(self.folder), _part(arm, seed, step, on), columns)

    def verdicts(
        self,
        arm: str | None = None,
        seed: int | None = None,
        step: int | Collection[int] | None = None,
        on: On = "rollouts",
        columns: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """One row for each verdict on each answer, shadow judges and every vote too, with the
        columns of the export. Arguments and errors: as `answers`."""
        return frames.verdicts_frame(read_answers(self.folder), _part(arm, seed, step, on), columns)

    def worst(
        self,
        n: int = 5,
        arm: str | None = None,
        seed: int | None = None,
        step: int | Collection[int] | None = None,
        on: On = "rollouts",
    ) -> pd.DataFrame:
        """The n answers that their judge overrates most: the largest gap, judge score minus truth,
        first, with what the judge said of them.
        Raises UserError: no answer has both, or as `answers`."""
        return frames.worst(read_answers(self.folder), _part(arm, seed, step, on), n)

    def effects(self, on: On | None = None) -> Effects:
        """The shifts that the study's report rests on, or those ``on`` other answers: of finished
        runs, or of all where none has finished. Computed once."""
        if on not in self._effects:
            self._effects[on] = effects_of(self._used(), self._base(), on=on)
        return self._effects[on]

    @overload
    def shift(
        self, metric: str, arm: str, beyond: str | None = None, on: On | None = None
    ) -> Estimate: ...

    @overload
    def shift(
        self, metric: str, arm: None = None, beyond: str | None = None, on: On | None = None
    ) -> pd.DataFrame: ...

    @overload
    def shift(
        self, metric: str, *, judge: str, beyond: str | None = None, on: On | None = None
    ) -> Estimate: ...

    def shift(
        self,
        metric: str,
        arm: str | None = None,
        beyond: str | None = None,
        on: On | None = None,
        judge: str | None = None,
    ) -> Estimate | pd.DataFrame:
        """How far an arm moved (see `effects`), with the report's 95 % interval over runs.

        Args:
            metric: a score (truth, judge_score, reward, gap), or one of `study.features.FEATURES`
                in its own unit (words for length).
            arm: an arm of the study, as its report names it; without it, a frame with a row for
                each arm: ``shift``, ``low``, ``high``, ``runs`` and ``note``.
            beyond: another arm: how much further, paired by seed.
            on: held_out or rollouts; by default what the report rests on.
            judge: an earlier name of ``arm``.

        Raises UserError: no such metric, or no such run of an arm.
        """
        self._check((metric,))
        arm = judge if arm is None else arm
        effects = self.effects(on)
        for each in (arm, beyond):
            if each is not None and effects.runs_of(metric, each).empty:
                raise UserError(self._no_run(effects, metric, each))
        if arm is not None:
            return _moved(effects, metric, arm, beyond)
        with_runs = [each for each in self._arms() if len(effects.runs_of(metric, each))]
        rows = [
            {
                **{"arm": each, "metric": metric},
                "unit": "score" if metric in SCORES else unit(metric),
                **_moved(effects, metric, each, beyond).row("shift", "runs"),
            }
            for each in with_runs
            if each != beyond
        ]
        columns = ["arm", "metric", "unit", "shift", "low", "high", "runs", "note"]
        return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)

    def curve(self, *metrics: str, arm: str | None = None, on: On = "rollouts") -> pd.DataFrame:
        """Mean over the runs of an arm at each step, with its 95 % interval over runs: arm, metric,
        step, mean, low, high, n (runs), missing (runs without a value at that step).

        Args:
            metrics: as those of `shift`; by default truth and judge_score.
            arm: one of the study; by default all.
            on: ``rollouts``, or answers drawn for ``held_out`` rows at the evaluated steps.

        Raises UserError: no such metric or arm, or no answers to held-out rows.
        """
        return learning_curves(self._curves(metrics or figures.SCORED, arm, on))

    def plot(self, *metrics: str, arm: str | None = None, on: On = "rollouts") -> Figure:
        """The report's figures over the steps: without ``metrics`` judge score and truth, a panel
        for each arm; else a panel for each metric with a line for each arm, and a band from its
        lowest run to its highest. Arguments and errors: as `curve`."""
        curves = self._curves(metrics or figures.SCORED, arm, on)
        arms = [each for each in self._arms() if each in set(curves["arm"])]
        with looks_of(self._arms()):
            if not metrics:
                return _displayed(figures.learning(learning_curves(curves, figures.DRAWN)))
            return _displayed(figures.course(curves, arms, looks(arms), metrics))

    def _curves(self, metrics: Sequence[str], arm: str | None, on: On) -> pd.DataFrame:
        """Step means of the used runs."""
        self._check(metrics)
        _check_on(on)
        used = self._used()
        arms = list(dict.fromkeys(run.arm for run in used))
        if arm is not None and arm not in arms:
            raise UserError(unknown_name(arm, f"an arm of {self.folder.name} with runs", arms))
        chosen = [run for run in used if arm in (None, run.arm)]
        drawn = slice(None)
        if on == "held_out":
            chosen = [run.frozen for run in chosen if run.frozen is not None]
            drawn = ANSWERS["drawn"]
            if used and not chosen:
                raise UserError(
                    "on=held_out needs runs that were evaluated on held-out rows with"
                    " trainer.eval_samples; these were not. Type on='rollouts'."
                )

        def values(run: Run) -> dict[str, np.ndarray]:
            every = answer_values(run) | {"reward": run.reward}
            return {name: every[name][:, drawn] for name in metrics if name in every}

        return run_curves(chosen, values)

    def _used(self) -> list[Run]:
        cells = {*usable_cells(self.table)}
        return [run for run in self.runs if run.cell in cells]

    def _base(self) -> str | None:
        cells = {*usable_cells(self.table)}
        settings = [(run.arm, run.seed, run.identity) for run in self._used()]
        return base_of(self.table[self.table["cell"].isin(cells)], settings)

    def _arms(self) -> list[str]:
        """The base arm first, then the others by name, as in the report."""
        return arms_in_order(self.table, self._base())

    def _check(self, metrics: Sequence[str]) -> None:
        """Raises UserError: one of them is not measured."""
        legal = [*SCORES, *(self.runs[0].names if self.runs else FEATURES)]
        for metric in metrics:
            if metric not in legal:
                raise UserError(unknown_name(metric, "measured", legal))

    def _no_run(self, effects: Effects, metric: str, arm: str) -> str:
        """What to say of an arm that has no run of a metric."""
        table = effects.scores if metric in SCORES else effects.behaviours
        arms = list(dict.fromkeys(table.loc[table["metric"] == metric, "arm"]))
        if not arms and metric == "reward":
            return "Held-out answers have no reward. Type on='rollouts', or ask for judge_score."
        near = nearest(arm, arms, 1)
        guess = f" Did you mean {near[0]}?" if near else ""
        return (
            f"{self.folder} has no finished run under judge={arm}.{guess} It has"
            f" {', '.join(arms) or 'no finished run at all'}."
        )


def _moved(effects: Effects, metric: str, arm: str, beyond: str | None) -> Estimate:
    if beyond is None:
        return effects.shift(metric, arm)
    return effects.difference(metric, arm, beyond)


def _part(arm: str | None, seed: int | None, step: int | Collection[int] | None, on: On) -> Part:
    _check_on(on)
    return Part(arm, seed, step, on == "held_out")


def _check_on(on: str) -> None:
    if on not in ON:
        raise UserError(f"on={on!r} is not known. Type on='held_out' or on='rollouts'.")


def _displayed(figure: Figure) -> Figure:
    """A figure that a notebook shows, whether or not it has loaded pyplot."""
    from IPython.core.pylabtools import print_figure

    vars(figure)["_repr_png_"] = lambda: print_figure(figure, base64=False)
    return figure


def read_study(study_dir: Path | str) -> Study:
    """Every run of a study that has rollouts, and every verdict counted.

    Shadow verdicts are averaged over votes; unscored votes are left out.
    """
    return Study(**vars(records.read_study(study_dir)))
