"""Says on one screen whether this machine is ready for a study, and what to type where it is not.

    python -m experiments.doctor
    python -m experiments.doctor judge=NAME,NAME
    python -m experiments.doctor experiment=NAME endpoints=true

It needs no network. Named judges are looked at too: their keys, by name only, and whether what they
ask on this machine answers; endpoints elsewhere are asked with endpoints=true. Of an experiment it
also says whether vLLM can draw its policy's completions here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.doctor import machine, models, packages
from study.cli import command, option
from study.config.schema import Model
from study.finding import Finding, print_findings
from study.screen import plural


@dataclass(frozen=True)
class Options:
    """Options of the doctor: which models to look at, and where studies are kept."""

    judge: list[str] = option("presets of the judges to check", [])
    executor: list[str] = option("presets of the executors of workflow programs to check", [])
    experiment: str | None = option("preset of an experiment whose models to check")
    endpoints: bool = option("also check endpoints on other machines", False)
    runs_dir: Path = option("folder that holds the studies", Path("runs"))


@command("experiments.doctor judge=smollm2-135m", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 nothing is wrong, 1 something is, 2 for a user's error."""
    if problems := print_findings(findings(options)):
        print(f"\n{plural(problems, 'problem')}; each line ends with what to type.")
        return 1
    options_given = [("experiment", options.experiment or ""), ("judge", ",".join(options.judge))]
    arguments = "".join(f" {key}={value}" for key, value in options_given if value)
    print(f"\nReady. To see what would run, type: judgedrift plan{arguments}")
    return 0


def findings(options: Options) -> list[Finding]:
    """All that is looked at, in the order of the screen.
    Raises UserError: a preset that is not there."""
    models_named: list[Model] = [models.load("judge", name) for name in options.judge]
    models_named += [models.load("executor", name) for name in options.executor]
    lacking: list[Finding] = []
    if options.experiment is not None:
        asked, lacking = models.of_experiment(options.experiment)
        models_named += asked
    models_named = models.distinct(models_named)
    here = packages.installed()
    return [
        machine.python(),
        packages.versions(here),
        packages.torch(here),
        machine.gpus(packages.torch_build(here)),
        packages.vllm(here, models.served_here(models_named)),
        models.composed(options.judge[0] if options.judge else "", options.experiment),
        *lacking,
        machine.processors(),
        machine.main_memory(),
        machine.disk(options.runs_dir),
        machine.sandbox(),
        machine.store(here, options.runs_dir),
        models.keys(models_named),
        *models.endpoints(models_named, options.endpoints),
    ]


if __name__ == "__main__":
    sys.exit(main())
