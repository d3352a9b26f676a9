"""Which judge would teach a policy what, before it is trained.

    judgedrift forecast judges=sim-verbose,sim-fair policy=tiny task=instruct-mini
    judgedrift forecast study=NAME base=base-tiny-instruct-mini

Without a study the policy answers some prompts many times (`experiment=base`, once), the judges
score these answers, and the fit that ships says what training would make of it.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.display.printed import show
from analysis.forecast.display import figure, text
from analysis.forecast.estimate import ask, forecast
from analysis.forecast.study import SHIPPED, in_units
from study.cell.folder import study_cells
from study.cli import FigureOptions, command, option, preset
from study.config.bounds import Name
from study.config.compose import load_trainer
from study.errors import UserError
from study.system.files import say


@dataclass(frozen=True)
class Options(FigureOptions):
    """Options of `analysis.forecast`: the judges, the study or the policy, and what is fitted."""

    study: str = option("name of the study; left out, a policy that nobody trained yet", "")
    judges: str = option("presets separated by commas, or study: those of the study", "study")
    policy: str = preset("policy", "tiny")
    task: str = preset("task", "instruct-mini")
    trainer: str = preset("trainer", "quickstart")
    base: str = option(
        "study with rollouts of the policy before training, as experiment=base makes it; left out,"
        " the first step of this one",
        "",
        Name(empty=True),
        empty=True,
    )
    fit: str = option(
        "study whose runs the fit uses, or shipped; empty is this one",
        "",
        Name(empty=True),
        empty=True,
    )
    probes: str = option(
        "folder of experiments.probe whose judges are forecast from their probes alone",
        "",
        empty=True,
    )

    def check(self) -> None:
        """As that of `FigureOptions`, where there is a study."""
        if self.study:
            super().check()
        elif self.judges == "study" and not self.probes:
            raise UserError(
                "The forecast needs study= to take judges from, or presets. Type judges= with"
                " presets, for example judges=sim-fair,sim-verbose"
            )


@command("analysis.forecast study=quickstart judges=sim-fair,sim-verbose", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    probes = Path(options.probes) if options.probes else None
    judges = "" if probes else options.judges
    runs_dir = options.runs_dir.absolute()
    if options.study:
        study_dir, trainer, fit = options.folder, None, options.fit
        base = runs_dir / options.base if options.base else None
    else:
        study_dir = base = runs_dir / (options.base or f"base-{options.policy}-{options.task}")
        trainer, fit = load_trainer(options.trainer), options.fit or SHIPPED
        if not any(folder.parts("rollouts") for folder in study_cells(study_dir)):
            _draw(options, study_dir)
    base_rewards = ask(study_dir, judges, base, trainer)
    pushes = forecast(base_rewards)
    units = in_units(base_rewards, study_dir, fit, probes)
    return show(
        options,
        pushes.numbers() | units.numbers(),
        lambda: text(pushes, units),
        lambda: figure(pushes.pushes),
    )


def _draw(options: Options, study_dir: Path) -> None:
    """Let the policy answer before training. Raises UserError: the sweep that does it failed."""
    words = [
        *("-m", "experiments.sweep", "experiment=base", f"study={study_dir.name}"),
        *(f"policy={options.policy}", f"task={options.task}", f"trainer={options.trainer}"),
        *(f"runs_dir={options.runs_dir}", "sweep.report=false"),
    ]
    typed = f"python {' '.join(words)}"
    say(f"The policy answers before training: {typed}")
    if subprocess.run([sys.executable, *words], check=False).returncode:
        raise UserError(f"There are no rollouts of the policy to forecast from. Type {typed}")


if __name__ == "__main__":
    sys.exit(main())
