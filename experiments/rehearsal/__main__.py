"""Rehearses a study of full size on this machine: rehearsal, simulated judges.

    python -m experiments.rehearsal experiment=judge-families
    python -m experiments.rehearsal experiment=mixed-full judge=qwen3-32b,qwq-plus prompts=1,2,3

Plan, cells, prompts, gradings, store, records, tracking, launch and report are the study's own.
Each judge is replaced by a local endpoint with its latencies, lengths, limits and failures, the
policy by a tiny one whose answers are as long, and all times are divided by one factor. Three sizes
of a step are run and the rest is read from them: hours, dollars, tokens, disk, memory and files
beside the plan's figures, and what broke. Killed and typed again, it goes on. Any setting of
experiments.sweep can be typed.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.rehearsal.figures import figures
from experiments.rehearsal.page import show
from experiments.rehearsal.profiles import profile_of, read_profiles
from experiments.rehearsal.run import run_sizes
from experiments.rehearsal.scale import Scale, check_scale, endpoint_models, full_study, settle
from study.cli import command, option, overrides, preset
from study.config.bounds import Number
from study.config.marks import field_types
from study.config.schema import Study
from study.errors import UserError
from study.system import locks, stopping

OURS = ("plan", "device", "shadow_judges", "study", "runs_dir", "tracking", "store")
"""Fields of a study that are no settings of its rehearsal."""
SETTINGS = tuple(name for name in field_types(Study) if name not in OURS)


@dataclass(frozen=True)
class Options:
    """Options of `experiments.rehearsal`: the study, and how much of it is rehearsed."""

    experiment: str = preset("experiment")
    prompts: list[int] = option(
        "prompts a step of each rehearsed size", [1, 2, 4], Number(low=1, high=10_000)
    )
    steps: int = option("steps of each cell", 2, Number(low=1, high=10_000))
    seeds: int = option("seeds of each arm that are rehearsed", 1, Number(low=1, high=1000))
    factor: float = option(
        "what latencies, time-outs and waits are divided by", 200.0, Number(low=1, high=100_000)
    )
    profiles: Path | None = option("TOML file of further profiles of judges")
    runs_dir: Path = option(
        "folder of rehearsals, apart from the folder of studies", Path("runs/rehearsals")
    )
    settings: list[str] = overrides(
        *SETTINGS, about="any setting of experiments.sweep, for the study that is rehearsed"
    )

    @property
    def folder(self) -> Path:
        """The absolute folder of this rehearsal."""
        return (self.runs_dir / self.experiment).absolute()


def work(options: Options) -> int:
    """Rehearse. Raises UserError: all that can be known to be wrong before anything is run."""
    scale = Scale(tuple(options.prompts), options.steps, options.seeds, options.factor)
    full = full_study(options.experiment, options.settings)
    check_scale(full, scale)
    profiles = read_profiles(options.profiles)
    for model in (model for cell in full.cells for model in endpoint_models(cell)):
        profile_of(model, profiles)
    settle(options.folder, full, scale)
    if (lock := locks.take(options.folder / ".lock")) is None:
        raise UserError(
            f"Another process rehearses in {options.folder}. Wait for it to end, or type another"
            " runs_dir=FOLDER."
        )
    with lock:
        sizes = run_sizes(full, scale, options.folder, profiles)
    every = figures(full, sizes, profiles)
    print(f"Page: {show(every, scale, profiles, options.folder)}")
    return 1 if any(size.rollouts < size.expected for size in sizes) else 0


@command("experiments.rehearsal experiment=judge-families", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 all was rehearsed, 1 a cell is not done, 2 a user's error, 130 stopped."""
    os.umask(0o077)
    stopping.take_signals()
    return work(options)


if __name__ == "__main__":
    sys.exit(main())
