"""Runs the sizes of a rehearsal one after another, each as a sweep of its own."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from experiments import launch
from experiments.rehearsal.endpoint import (
    Pace,
    RehearsalEndpoint,
    Say,
    address,
    drawn_verdicts,
    table_executor,
)
from experiments.rehearsal.measure import (
    LOG,
    MEMORY,
    REPORT_TIME,
    Measured,
    MemoryWatch,
    measured,
    time_report,
)
from experiments.rehearsal.profiles import Profile, Profiles, profile_of
from experiments.rehearsal.scale import (
    Full,
    Scale,
    build_rehearsal_policy,
    endpoint_models,
    rehearsed_cells,
)
from study.config.compose import load_executor
from study.config.schema import Judge, Model
from study.finding import stop_at_problem
from study.tasks import oracle

KEY = "rehearsal-no-key"
"""In place of every API key: none is sent anywhere."""


def run_sizes(full: Full, scale: Scale, folder: Path, profiles: Profiles) -> list[Measured]:
    """Run every size to its end and measure it; those that are done stay as they are.
    Raises UserError: as the sweep of the study, or a model has no profile."""
    every_model = (model for cell in full.cells for model in endpoint_models(cell))
    models = list({address(model): model for model in every_model}.values())
    served = [(model, profile_of(model, profiles), _say(model, full)) for model in models]
    policy = build_rehearsal_policy(full, folder / "policy")
    every = []
    with dummy_keys(models):
        for prompts in scale.prompts:
            place = folder / f"prompts-{prompts}"
            place.mkdir(parents=True, exist_ok=True)
            every.append(_run(full, scale, prompts, place, policy, served))
    return every


def _run(
    full: Full,
    scale: Scale,
    prompts: int,
    runs_dir: Path,
    policy: Path,
    served: Sequence[tuple[Model, Profile, Say]],
) -> Measured:
    share = prompts / full.config.trainer.prompts_per_step
    with RehearsalEndpoint(served, Pace(scale.factor, share), runs_dir / LOG) as endpoint:
        todo = rehearsed_cells(full, scale, prompts, runs_dir, policy, endpoint.url)
        stop_at_problem(launch.check_sweep(todo))
        with MemoryWatch(todo, runs_dir / MEMORY):
            launch.run_study(todo, None)
    time_report(todo, runs_dir / REPORT_TIME)
    return measured(todo, full.cells, runs_dir)


def _say(model: Model, full: Full) -> Say:
    if isinstance(model, Judge):
        return drawn_verdicts(model)
    settings = load_executor("sim", full.config.task.name)[0].simulated
    assert settings is not None
    return table_executor(settings, model, oracle(full.config.task))


@contextmanager
def dummy_keys(models: Sequence[Model]) -> Generator[None]:
    """Within the block every variable that holds a key holds `KEY`."""
    names = {model.endpoint.api_key_env for model in models} - {None}
    before = {name: os.environ.get(name) for name in names if name}
    os.environ.update(dict.fromkeys(before, KEY))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
