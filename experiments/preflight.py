"""All that is checked before a sweep trains anything: names, inputs, places, judges, launcher."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException

from experiments.arms import check_arms, check_study
from experiments.track.store import tracking_uri
from judges.budget import check_limits
from judges.grading import GRADINGS
from judges.grading.checks import check_rows
from judges.identity import build_grading, judge_id
from judges.session import Session
from study import storage
from study.cells import Cell
from study.compose import CONF
from study.errors import UserError
from study.identity import flatten
from study.marks import under
from study.rewards.checks import check_reward, for_judge
from study.rewards.formulas import REWARDS
from study.rows import Row
from study.sandbox import tiers
from study.scaffold import check as check_scaffold
from study.schema import Judge, Study, Trainer
from study.tasks import TASKS
from study.verify import say_problems


def check(todo: Sequence[Cell], launcher: Sequence[str] = ()) -> None:
    """All that can be checked without touching disk or network much; writes nothing.

    Args:
        todo: the cells of a sweep.
        launcher: the arguments that choose another launcher than Hydra's own.

    Raises:
        UserError: the first thing that is not as it must be.
    """
    config, study_dir = todo[0].config, todo[0].dir.parent
    for cell in todo:
        check_names(cell.config)
    check_factors(todo)
    check_arms(todo, config.factors)
    runs_dir = study_dir.parent
    if any(
        path.exists() and not path.is_dir() for path in (study_dir, runs_dir, *runs_dir.parents)
    ):
        raise _unwritable(runs_dir, "a part of it is a file")
    check_study(study_dir, todo, config.factors)
    for cell in todo:
        check_limits(cell.config.cost, (cell.config.judge, *cell.config.shadow_judges))
    if config.tracking.enabled:
        tracking_uri(config.tracking, study_dir.parent)
    check_inputs(todo)
    if launcher:
        check_launcher(launcher)
    say_problems(study_dir, todo)


def check_factors(todo: Sequence[Cell]) -> None:
    """Every declared factor is a key of the config.

    Raises:
        UserError: one is not, so nothing could differ in it.
    """
    keys = {key for cell in todo for key in flatten(cell.data)}
    for factor in todo[0].config.factors:
        if not any(under(key, [factor]) for key in keys):
            raise UserError(
                f"factors={','.join(todo[0].config.factors)} names {factor}, which is not a key "
                "of the config, so no arm can differ in it. To see every key, type: python -m "
                "experiments.sweep --cfg job"
            )


def check_names(config: Study) -> None:
    """Names that are looked up later are refused now, with the legal ones, and so are numbers that
    do not go together.

    Raises:
        UserError: naming the key.
    """
    for key, name, legal in (
        ("task.name", config.task.name, TASKS),
        ("reward.name", config.reward.name, REWARDS),
        ("judge.grading.name", config.judge.grading.name, GRADINGS),
    ):
        if name not in legal:
            raise UserError(
                f"{key}={name} is not known. Legal are {', '.join(sorted(legal))}. "
                f"Type for example: {key}={next(iter(legal))}"
            )
    check_batch(config.trainer)


def check_inputs(todo: Sequence[Cell]) -> None:
    """The prompts can be read, every grading can grade them, and the policy is there.

    Raises:
        UserError: from the task or the grading, or naming the policy's folder.
    """
    gradable: set[str] = set()
    rows_of: dict[str, list[Row]] = {}
    for cell in todo:
        config = cell.config
        task, size = config.task, config.trainer.group_size
        key = json.dumps(cell.data["task"])
        if key not in rows_of:
            rows_of[key] = TASKS[task.name].rows(task, "train")
        rows = rows_of[key]
        check_reward(config.reward, config.judge, rows, config.trainer.max_completion_length)
        check_scaffold(config.scaffold, rows)
        asked = [for_judge(row, config.reward.rules) for row in rows]
        for judge in judges_of([cell]):
            grading = dataclasses.asdict(judge.grading)
            pair = json.dumps([cell.data["task"], config.reward.rules, grading, size])
            if pair not in gradable:
                check_rows(build_grading(judge), asked, size)
                gradable.add(pair)
    sandboxed(todo)
    for policy in {cell.config.policy.path: cell.config.policy for cell in todo}.values():
        path = Path(policy.path)
        is_folder = len(path.parts) > 2 or path.is_absolute()  # a hub id is owner/name
        if is_folder and not (path / "config.json").exists():
            raise UserError(
                f"policy={policy.name} wants its model in {path}, where there is no config.json. "
                f"To make it, type: python -m experiments.models get {policy.name}; to use "
                "another one, type: policy.path=FOLDER or policy.path=OWNER/NAME"
            )


def sandboxed(todo: Sequence[Cell]) -> None:
    """Find out now whether rule functions can be isolated here.

    Raises:
        UserError: an unknown ``sandbox``, or nothing that isolates.
    """
    ruled = [cell.config.sandbox for cell in todo if cell.config.reward.rules == "run"]
    for name in {cell.config.sandbox for cell in todo}:
        if name not in ("auto", "unsafe"):
            raise UserError(
                f"sandbox={name} is not known. Type sandbox=auto, which refuses to run rule"
                " functions without isolation, or sandbox=unsafe."
            )
    if ruled:
        tiers.find(unsafe=all(name == "unsafe" for name in ruled))


def writable(runs_dir: Path) -> None:
    """The runs folder exists and takes files."""
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        probe = runs_dir / f".write-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        if trouble := storage.explained(error, runs_dir):
            raise trouble from error
        raise _unwritable(runs_dir, error.strerror) from error


def _unwritable(runs_dir: Path, why: str | None) -> UserError:
    return UserError(
        f"The runs folder {runs_dir} cannot be written ({why}). It must be a folder that you may "
        "write to. Type another one: runs_dir=PATH"
    )


def preflight(todo: Sequence[Cell]) -> None:
    """Every judge of the sweep answers, with its key, before anything is trained."""
    for judge in {judge_id(judge): judge for judge in judges_of(todo)}.values():
        if judge.endpoint.url.startswith("http"):
            with Session(judge, None) as session:
                session.check()


def judges_of(todo: Sequence[Cell]) -> list[Judge]:
    """Every judge that the cells ask, acting and shadow, as often as it is asked."""
    return [j for cell in todo for j in (cell.config.judge, *cell.config.shadow_judges)]


def check_launcher(arguments: Sequence[str]) -> None:
    """The launcher that was asked for is installed and takes its settings.

    Args:
        arguments: those of the command line that choose it.

    Raises:
        UserError: with the extra to install.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.plugins import Plugins
    from hydra.errors import HydraException
    from hydra.plugins.launcher import Launcher
    from hydra.utils import get_class

    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            composed = compose("sweep", overrides=list(arguments), return_hydra_config=True)
        get_class(composed.hydra.launcher._target_)
    except (HydraException, OmegaConfBaseException, ImportError) as error:
        found = sorted(
            launcher.__module__.removeprefix("hydra_plugins.hydra_").partition("_launcher")[0]
            for launcher in Plugins.instance().discover(Launcher)
            if launcher.__module__.startswith("hydra_plugins.")
        )
        wanted = next((text for text in arguments if text.startswith("hydra/launcher=")), "")
        extra = "ray" if "ray" in wanted else "launchers"
        raise UserError(
            f"{' '.join(arguments)} cannot be used here ({' '.join(str(error).split())}). "
            f"Launchers installed beside Hydra's own: {', '.join(found) or 'none'}. To have more, "
            f"type: pip install -e .[{extra}]; to run the cells on this machine, leave it out."
        ) from error


def check_batch(trainer: Trainer) -> None:
    """Numbers of the trainer that do not go together.

    Raises:
        UserError: the micro-batch does not divide the P * G rollouts of a step, or the schedule
            cannot end at the learning rate.
    """
    rollouts = trainer.prompts_per_step * trainer.group_size
    if rollouts % trainer.micro_batch:
        raise UserError(
            f"trainer.micro_batch={trainer.micro_batch} does not divide the {rollouts} rollouts "
            f"of a step (prompts_per_step={trainer.prompts_per_step} x "
            f"group_size={trainer.group_size}). Type a divisor, for example: "
            f"trainer.micro_batch={trainer.group_size}"
        )
    if trainer.lr_scheduler == "polynomial" and trainer.learning_rate <= 1e-7:
        raise UserError(
            f"trainer.learning_rate={trainer.learning_rate} is not above the 1e-7 at which "
            "trainer.lr_scheduler=polynomial ends. Type trainer.lr_scheduler=linear"
        )
