"""All that is checked when a sweep is planned: names, inputs, places, launcher. Nothing here asks a
judge; `experiments.launch.ready` does. Each check is as `study.finding` says."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from itertools import pairwise
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException

from experiments.monitor.notify import check_notify, command_of
from experiments.plan.memory import check_memory, fitting
from experiments.plan.needs import HERE, check_engine
from experiments.policies.load import check_policy
from experiments.tracking.store import artifacts_of, tracking_uri
from experiments.trainer.processes import check_batch, processes_of
from experiments.trainer.vllm import check_installed, check_options
from experiments.workflow.check import check_world
from judges.ask.budget import check_limits
from judges.ask.identity import build_grading
from judges.ask.replies import place
from judges.endpoint.address import check_address
from judges.grading import GRADINGS
from judges.grading.base import check_rows
from study.cell import exchange
from study.cell.cells import Cell, executors_of, judges_of, models_of
from study.cell.folder import study_cells
from study.cell.study_file import base, read_study
from study.cell.verify import check_records
from study.config import override_errors as causes
from study.config.compose import hydra_presets
from study.config.identity import flatten, left_out
from study.config.marks import under
from study.config.presets import nearest
from study.config.schema import Judge, Study
from study.finding import Finding, as_notes, problem
from study.programs.rewards import FORMULAS
from study.rewards.checks import check_reward, for_judge
from study.rewards.corrections.checks import check_audit, check_correction
from study.rewards.formulas import REWARDS
from study.rows import Row
from study.sandbox import tiers
from study.system import storage
from study.system.installed import install
from study.system.machine import usable_gpus
from study.tasks import TASKS, checked, kind_of, nominal_mix, order_of
from study.tasks.scaffold import check as check_scaffold


def check_sweep(todo: Sequence[Cell], launcher: Sequence[str] = ()) -> Iterator[Finding]:
    """The stage of a plan: all that can be found wrong without touching disk or network much. A
    plan only says what a sweep refuses for lack of memory, or of what vLLM needs.

    Args:
        todo: the cells of a sweep.
        launcher: the arguments that choose another launcher than Hydra's own.
    """
    config, study_dir = todo[0].config, todo[0].folder.study_dir
    yield from check_configs(todo)
    yield from check_engine(todo, launcher)
    here = not launcher and config.sweep.engine in HERE
    if here:
        yield from check_device(todo)
    yield from check_once(todo)
    yield from check_inputs(todo)
    if launcher:
        yield from check_launcher(launcher)
    new = [cell for cell in todo if cell.folder.state() not in ("done", "running")]
    yield from as_notes(check_installed(new, elsewhere=not here), config.plan)
    if here:
        yield from as_notes(check_memory(new), config.plan)
    yield from check_records(study_dir, todo)


def check_configs(todo: Sequence[Cell]) -> Iterator[Finding]:
    """Refuse what is wrong in the settings alone, whether or not the rows are there already."""
    config, study_dir = todo[0].config, todo[0].folder.study_dir
    for cell in todo:
        yield from check_names(cell.config)
        check_limits(cell.config.cost, [*judges_of([cell]), *executors_of([cell])])
    source = "sweep.notify_env" if config.sweep.notify_env else "sweep.notify"
    check_notify(command_of(config.sweep), source)
    yield from check_factors(todo)
    yield from check_arms(todo, config.factors)
    runs_dir = study_dir.parent
    if any(
        path.exists() and not path.is_dir() for path in (study_dir, runs_dir, *runs_dir.parents)
    ):
        yield _unwritable(runs_dir, "a part of it is a file")
    yield from check_study(study_dir, todo, config.factors)
    yield from check_looks(study_dir, config.sweep.looks)
    if "$" not in os.path.expandvars(config.store.dir):  # else a variable of the nodes
        place(runs_dir, config.store)
    if config.tracking.enabled:
        tracking_uri(config.tracking, runs_dir)
        artifacts_of(config.tracking)


def check_device(todo: Sequence[Cell]) -> Iterator[Finding]:
    """Refuse a device or GPUs that are not there, or several devices, before anything is fetched or
    trained."""
    devices = list(dict.fromkeys(cell.config.device for cell in todo))
    if len(devices) > 1:
        yield problem(
            "device",
            f"device= is one value for all cells of a sweep, but {','.join(devices)} are given."
            " Type one of them, and run another sweep for the other cells.",
        )
    fitting(usable_gpus(devices[0]), todo)


def check_factors(todo: Sequence[Cell]) -> Iterator[Finding]:
    """Refuse a declared factor that is not a key of the config: nothing could differ in it."""
    keys = {key for cell in todo for key in flatten(cell.data)}
    factors = todo[0].config.factors
    for factor in factors:
        if not any(under(key, [factor]) for key in keys):
            yield problem(
                "factors",
                f"factors={','.join(factors)} names {factor}, which is not a key of the config, so "
                "no arm can differ in it. To see every key, type: python -m experiments.sweep "
                "--cfg job",
            )


def check_once(todo: Sequence[Cell]) -> Iterator[Finding]:
    """Refuse a cell that appears twice.

    It would count twice in the plan; and where the combinations differ in a label, or in what does
    not reach the training, one of them would be reported under the name of another.
    """
    counts = Counter(cell.folder for cell in todo)
    for folder in [folder for folder in counts if counts[folder] > 1]:
        if differing := undeclared(
            [flatten(cell.data) for cell in todo if cell.folder == folder], ()
        ):
            yield problem(
                "cells",
                f"Several combinations of this sweep are one cell, {folder.name}: they differ only"
                f" in {_describe_differences(differing)}, which does not change the training. If"
                " the arms already set a typed setting, such as judge=, leave it out; otherwise"
                " type one value of each difference.",
            )
        yield problem(
            "cells",
            f"The cell {folder.name} appears twice: a value is repeated, such as seed=0,0. Type"
            " each value once.",
        )


def undeclared(
    flats: Sequence[Mapping[str, object]], factors: Sequence[str]
) -> dict[str, list[object]]:
    """Keys outside the declared factors that differ between flat configs, with their values."""
    differing: dict[str, list[object]] = {}
    for key in sorted({key for flat in flats for key in flat if not under(key, factors)}):
        values: list[object] = []
        for flat in flats:
            if (value := flat.get(key, left_out(key))) not in values:
                values.append(value)
        if len(values) > 1:
            differing[key] = values
    return differing


def check_arms(todo: Sequence[Cell], factors: Sequence[str]) -> Iterator[Finding]:
    """Refuse arms that differ in more than the declared factors."""
    differences = undeclared([cell.identity for cell in todo], factors)
    if differences:
        yield problem(
            "arms",
            f"The arms of this sweep differ in {_describe_differences(differences)}, which is not a"
            f" declared factor (declared: {', '.join(factors)}). A comparison of judges must not"
            " change anything else. To declare it, type: "
            f"'factors=[{','.join([*factors, *differences])}]' study=NEW_NAME",
        )


def check_study(study_dir: Path, todo: Sequence[Cell], factors: Sequence[str]) -> Iterator[Finding]:
    """Refuse a study folder that was started with other factors or another base config."""
    started = read_study(study_dir)
    if not started:
        return
    name = study_dir.name
    if sorted(started["factors"]) != sorted(factors):
        yield problem(
            "study",
            f"The study {name} in {study_dir} declared the factors "
            f"{', '.join(started['factors'])}; this command declares {', '.join(factors)}. "
            f"A study keeps its factors. Type another name, for example: study={name}-2",
        )
    bases = [base(cell, factors) for cell in todo]
    differences = undeclared([started.get("base", bases[0]), *bases], factors)
    if differences:
        yield problem(
            "study",
            f"The study {name} in {study_dir} was started with another config: "
            f"{_describe_differences(differences)} (first value: the study's). Its declared factors"
            f" are {', '.join(factors)}; anything else must stay. Type another name, for example: "
            f"study={name}-2",
        )


MOST_SEEDS = 1000
"""At the last look."""


def check_looks(study_dir: Path, looks: Sequence[int]) -> Iterator[Finding]:
    """Refuse looks that do not grow, and others than a study with results was declared with."""
    if not looks:
        return
    if looks[-1] > MOST_SEEDS or any(few >= more for few, more in pairwise([1, *looks])):
        yield problem(
            "looks",
            f"sweep.looks={[*looks]} are no looks: legal are growing numbers of seeds, from 2 to"
            f" {MOST_SEEDS}. Type for example: sweep.looks=[3,4,6]",
        )
    before = read_study(study_dir).get("looks", [])
    if [*looks] != before and any(folder.is_done() for folder in study_cells(study_dir)):
        declared = f"the looks {before}" if before else "no looks"
        yield problem(
            "looks",
            f"The study {study_dir.name} in {study_dir} was begun with {declared} and has results;"
            f" this command declares sweep.looks={[*looks]}. Looks that are chosen with results at"
            " hand keep no error. Leave sweep.looks out, or type another name, for example:"
            f" study={study_dir.name}-2",
        )


def _describe_differences(differences: Mapping[str, Sequence[object]]) -> str:
    return "; ".join(
        f"{key} = {' | '.join(map(str, values))}" for key, values in differences.items()
    )


def check_names(config: Study) -> Iterator[Finding]:
    """Refuse unknown names, with the legal ones, a judge without one, and numbers that do not go
    together."""
    for key, name, legal in (
        ("task.name", config.task.name, TASKS),
        ("reward.name", config.reward.name, {**REWARDS, **FORMULAS}),
        ("judge.grading.name", config.judge.grading.name, GRADINGS),
    ):
        if name not in legal:
            yield problem(
                "names",
                f"{key}={name} is not known. Legal are {', '.join(sorted(legal))}. "
                f"Type for example: {key}={next(iter(legal))}",
            )
    processes = processes_of(config).count
    check_batch(config.trainer, processes)
    yield from check_options(config, processes)
    if not config.judge.name:
        yield problem(
            "names",
            "There is no judge: judge.name is empty. Type judge=PRESET, one that"
            " `judgedrift presets judge` lists, for example judge=sim-fair",
        )


def check_inputs(todo: Sequence[Cell]) -> Iterator[Finding]:
    """Refuse prompts that cannot be read or graded, and a policy whose folder has no model."""
    for model in models_of(todo):
        inside = model.computed if isinstance(model, Judge) else model.simulated is not None
        for url in (model.endpoint.url, *model.endpoint.replicas):
            check_address(url, model.role, in_process=inside)
    yield from check_policies(todo)
    gradable: set[str] = set()
    evaluable: set[str] = set()
    rows_of: dict[str, Sequence[Row]] = {}
    for cell in todo:
        config, size = cell.config, cell.config.trainer.group_size
        task = json.dumps(cell.data["task"])
        if task not in rows_of:
            rows_of[task] = checked(kind_of(config.task).rows(config.task, "train"))
        rows = rows_of[task]
        mix, length = nominal_mix(order_of(config), rows), config.trainer.max_completion_length
        check_reward(config.reward, config.judge, rows, length, mix)
        domains = {*mix, *(row.domain for row in rows)}
        kind = kind_of(config.task)
        check_correction(config, kind.tells_truth(rows), domains)
        has_rule = bool(config.truth.audit) and all(kind.tells_truth([row]) for row in rows)
        check_audit(config, has_rule)
        yield from check_world(config, rows)
        check_scaffold(config.scaffold, rows)
        evaluation = json.dumps([task, cell.data["trainer"], config.sweep.accelerate])
        if evaluation not in evaluable:
            yield from check_held_out(config)
            evaluable.add(evaluation)
        judged_rows = [for_judge(row, config.reward.rules) for row in rows]
        for judge in judges_of([cell]):
            grading = dataclasses.asdict(judge.grading)
            pair = json.dumps([task, config.reward.rules, grading, size])
            if pair not in gradable:
                check_rows(build_grading(judge), judged_rows, size)
                gradable.add(pair)
    sandboxed(todo)


def check_policies(todo: Sequence[Cell]) -> Iterator[Finding]:
    """Refuse a policy whose folder has no model, and the tiny one on a task it cannot learn."""
    for cell in todo:
        check_policy(cell.config.policy, cell.config.task)
    for policy in {cell.config.policy.path: cell.config.policy for cell in todo}.values():
        path = Path(policy.path)
        is_folder = len(path.parts) > 2 or path.is_absolute()  # a hub id is owner/name
        if is_folder and not (path / "config.json").exists():
            yield problem(
                "policy",
                f"policy={policy.name} needs its model in {path}, which has no config.json. To"
                f" make it, type: python -m experiments.models get {policy.name}; to use another"
                " one, type: policy.path=FOLDER or policy.path=OWNER/NAME",
            )


def check_held_out(config: Study) -> Iterator[Finding]:
    """Refuse evaluations of held-out rows that there are not, or that no rule can score, and kept
    policies of steps that are not evaluated."""
    every, task, samples = config.trainer.eval_steps, config.task, config.trainer.eval_samples
    off = "trainer.eval_steps=0" + (" trainer.eval_samples=0" if samples else "")
    if samples and not every:
        yield problem(
            "held-out rows",
            f"trainer.eval_samples={samples} draws more answers to the held-out rows of evaluated"
            " steps, but trainer.eval_steps=0 evaluates none. Type for example"
            f" trainer.eval_steps={config.trainer.steps}, or trainer.eval_samples=0",
        )
    if config.trainer.keep_steps and not every:
        yield problem(
            "held-out rows",
            "trainer.keep_steps=true keeps the policies of evaluated steps, but"
            " trainer.eval_steps=0 evaluates none. Type for example trainer.eval_steps=10",
        )
    if every and (kind := processes_of(config).kind) in ("FSDP", "DEEPSPEED"):
        yield problem(
            "held-out rows",
            f"trainer.eval_steps={every} needs a policy whose weights are in one process, but"
            f" {kind} spreads them. Type {off}",
        )
    if not every:
        return
    held_out = kind_of(task).rows(task, "eval")
    if not len(held_out):
        yield problem(
            "held-out rows",
            f"trainer.eval_steps={every} scores held-out rows, but task={task.name} has none with"
            f" task.eval_rows={task.eval_rows}. Type task.eval_rows=64, or {off}",
        )
    if not samples and not kind_of(task).tells_truth(held_out):
        yield problem(
            "held-out rows",
            f"trainer.eval_steps={every} scores held-out rows by rule, but task={task.name} has no"
            " rule truth: none of its rows has a reference answer. Type trainer.eval_samples=4,"
            " so that the judges score them too, or trainer.eval_steps=0",
        )


def sandboxed(todo: Sequence[Cell]) -> None:
    """Refuse rule functions, and answers that are programs, that cannot be isolated here."""
    ruled = {
        config.sandbox
        for config in (cell.config for cell in todo)
        if config.reward.rules == "run"
        or kind_of(config.task).runs_code(config.task)
        or config.world == "workflow"
    }
    if ruled:
        tiers.find(unsafe=ruled == {"unsafe"})


def check_writable(runs_dir: Path) -> Iterator[Finding]:
    """The runs folder exists and takes files."""
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        probe = runs_dir / f".write-{os.getpid()}"
        probe.touch()
        probe.unlink()
        exchange.check(runs_dir)
    except OSError as error:
        if trouble := storage.explained(error, runs_dir):
            raise trouble from error
        yield _unwritable(runs_dir, error.strerror)


def _unwritable(runs_dir: Path, why: str | None) -> Finding:
    return problem(
        "runs folder",
        f"The runs folder {runs_dir} cannot be written ({why}). It must be a folder that you can"
        " write to. Type another one: runs_dir=PATH",
    )


LAUNCHERS = {
    "joblib": "hydra-joblib-launcher",
    "submitit_local": "hydra-submitit-launcher",
    "submitit_slurm": "hydra-submitit-launcher",
}
"""Launcher of Hydra -> its package, which the extra ``launchers`` brings."""
HERE_INSTEAD = "To run the cells on this machine, leave it out."


def check_launcher(arguments: Sequence[str]) -> Iterator[Finding]:
    """Refuse a launcher, chosen by these arguments, that is not installed or does not take its
    settings."""
    from hydra import compose
    from hydra.errors import HydraException
    from hydra.utils import get_class

    launcher = next((text for text in arguments if text.startswith("hydra/launcher=")), "")
    name = launcher.partition("=")[2].strip()
    try:
        with hydra_presets():
            composed = compose("sweep", overrides=list(arguments), return_hydra_config=True)
        get_class(composed.hydra.launcher._target_)
    except (HydraException, OmegaConfBaseException, ImportError) as error:
        yield problem("launcher", f"{_no_launcher(name, arguments, error)} {HERE_INSTEAD}")


def _no_launcher(name: str, arguments: Sequence[str], error: Exception) -> str:
    """Why another launcher cannot be used, and what to type."""
    if name.startswith("ray"):
        return f"hydra/launcher={name} is not used here. To run on Ray, type sweep.engine=ray."
    if name in LAUNCHERS and not any(metadata.distributions(name=LAUNCHERS[name])):
        return (
            f"hydra/launcher={name} needs the package {LAUNCHERS[name]}, which is not installed"
            f" here. Type {install('launchers')}."
        )
    if name and name not in (*LAUNCHERS, "basic"):
        near = nearest(name, LAUNCHERS)
        guess = f" Did you mean hydra/launcher={near[0]}?" if near else ""
        legal = ", ".join(LAUNCHERS)
        return (
            f"hydra/launcher={name} is not known.{guess} Legal are {legal}, of the extra launchers:"
            f" {install('launchers')}."
        )
    return f"{' '.join(arguments)} cannot be used here ({causes.own_words(error)})."
