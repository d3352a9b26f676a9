"""Which judge would teach a policy what, before it is trained.

    judgedrift forecast judges=sim-verbose,sim-fair policy=tiny task=instruct-mini
    judgedrift forecast study=NAME base=base-tiny-instruct-mini
    judgedrift forecast study=NAME base=base-tiny-instruct-mini k=4

Without a study the policy answers some prompts many times (`experiment=base`, once), the judges
score these answers, and the fit that ships says what training would make of it. With ``k=`` the
forecast of a judge also reads the first updates of its first run, and is scored on its other runs.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from analysis.display.printed import show
from analysis.forecast.display import figure
from analysis.forecast.judges import check_named, forecast
from study.cli import FigureOptions, command, option, preset
from study.config.bounds import Name, Number


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
    k: int = option(
        "updates that are seen of each judge's first run, whose other runs are forecast",
        0,
        Number(low=0),
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
        else:
            check_named(self.judges, self.probes, self.k)


@command("analysis.forecast study=quickstart judges=sim-fair,sim-verbose", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    result = forecast(
        judges=options.judges,
        study=options.folder if options.study else None,
        policy=options.policy,
        task=options.task,
        trainer=options.trainer,
        base=options.base,
        fit=options.fit,
        probes=options.probes or None,
        k=options.k,
        runs_dir=options.runs_dir,
    )
    return show(
        options,
        result.numbers(),
        lambda: str(result),
        lambda: figure(result.pushes.pushes, result.units.shifts),
    )


if __name__ == "__main__":
    sys.exit(main())
