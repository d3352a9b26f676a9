"""Judges forecast before anything is trained: the work of the command, and of a notebook."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.forecast import estimate
from analysis.forecast.display import text
from analysis.forecast.estimate import Pushes, ask
from analysis.forecast.study import SHIPPED, InUnits, in_units
from study.cell.exchange import folder_of
from study.cell.folder import study_cells
from study.cli import StudyOptions
from study.config.compose import load_trainer
from study.errors import UserError
from study.system.files import say

OF_STUDY = "study"
"""In place of judges: those of the study."""


@dataclass(frozen=True)
class JudgeForecast:
    """What training under each judge would push, and the shifts to expect; its text is what the
    command prints."""

    pushes: Pushes
    units: InUnits

    def numbers(self) -> dict[str, object]:
        """For JSON."""
        return self.pushes.numbers() | self.units.numbers()

    def __str__(self) -> str:
        return text(self.pushes, self.units)

    __repr__ = __str__


def forecast(
    judges: str | Sequence[str] = OF_STUDY,
    study: Path | str | None = None,
    policy: str = "tiny",
    task: str = "instruct-mini",
    trainer: str = "quickstart",
    base: str = "",
    fit: str = "",
    probes: Path | str | None = None,
    k: int = 0,
    runs_dir: Path | str = "runs",
) -> JudgeForecast:
    """What training a policy under each judge would teach it.

    Args:
        judges: presets, by commas where they are one text; ``study`` for those of ``study``.
        study: folder of a study; None for a policy that nobody trained yet, which then answers
            before it is trained (``experiment=base``, once).
        policy: preset of that policy.
        task: preset of the rows that it is trained on.
        trainer: preset of how it is trained.
        base: study of ``runs_dir`` with rollouts of the policy before training.
        fit: study whose runs the fit uses, ``shipped``, or empty for ``study``.
        probes: folder of probes whose judges are forecast instead, without asking any.
        k: updates that are seen of each judge's first run in ``study``.

    Raises UserError: neither judges nor a study, no such preset or folder, or nothing to read.
    """
    typed = judges if isinstance(judges, str) else ",".join(judges)
    runs_dir = Path(runs_dir).absolute()
    if study is None:
        check_named(typed, probes, k)
    if study is not None:
        study_dir = folder_of(study).absolute()
        StudyOptions(study_dir.name, study_dir.parent).check()
        settings, base_dir = None, study_dir.parent / base if base else None
    else:
        study_dir = base_dir = runs_dir / (base or f"base-{policy}-{task}")
        settings, fit = load_trainer(trainer), fit or SHIPPED
        if not any(folder.parts("rollouts") for folder in study_cells(study_dir)):
            _draw(study_dir, (f"policy={policy}", f"task={task}", f"trainer={trainer}"))
    base_rewards = ask(study_dir, "" if probes else typed, base_dir, settings)
    units = in_units(base_rewards, study_dir, fit, Path(probes) if probes else None, k)
    return JudgeForecast(estimate.forecast(base_rewards), units)


def check_named(judges: str, probes: Path | str | None, k: int = 0) -> None:
    """Raises UserError: without a study neither judges nor probes are named, or updates are to be
    seen."""
    if k:
        raise UserError(
            f"k={k} sees the first updates of trained judges, and no study= is given. Type"
            " study=NAME, or leave k= out to forecast before training"
        )
    if judges == OF_STUDY and not probes:
        raise UserError(
            "The forecast needs study= to take judges from, or presets. Type judges= with"
            " presets, for example judges=sim-fair,sim-verbose"
        )


def _draw(study_dir: Path, presets: Sequence[str]) -> None:
    """Let the policy answer before training. Raises UserError: the sweep that does it failed."""
    words = [
        *("-m", "experiments.sweep", "experiment=base", f"study={study_dir.name}"),
        *presets,
        *(f"runs_dir={study_dir.parent}", "sweep.report=false"),
    ]
    typed = f"python {' '.join(words)}"
    say(f"The policy answers before training: {typed}")
    if subprocess.run([sys.executable, *words], check=False).returncode:
        raise UserError(f"There are no rollouts of the policy to forecast from. Type {typed}")
