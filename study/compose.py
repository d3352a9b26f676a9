"""Judges and tasks by the names of their YAML files in ``conf/``: ``load_judge("qwen3-32b")``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from study.errors import UserError
from study.schema import Judge, Task, freeze, register
from study.secrets import redact, refuse_config

CONF = Path(__file__).resolve().parent.parent / "conf"


def preset_names(group: str) -> list[str]:
    """The presets of a config group."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def load_presets(
    judge: str, task: str = "instruct-mini", overrides: Sequence[str] = ()
) -> tuple[Judge, Task]:
    """A judge and a task by the names of their presets, with further settings as Hydra takes them.
    Raises UserError: an unknown preset, an override that the schema does not take, a value that is
        missing, or one that looks like a key."""
    for group, name in (("judge", judge), ("task", task)):
        if name.startswith("["):
            raise UserError(f"{group}={name} has brackets. Type {group}={name.strip('[] ')}.")
        if name not in preset_names(group):
            raise UserError(
                f"{group}={name} is not a preset. The presets are"
                f" {', '.join(preset_names(group))}. For a new one, write conf/{group}/NAME.yaml."
            )
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    register()
    chosen = [f"+judge={judge}", f"+task={task}"]
    in_sweep = GlobalHydra.instance().is_initialized()  # Hydra lets nobody initialise it twice
    try:
        with nullcontext() if in_sweep else initialize_config_dir(str(CONF), version_base="1.3"):
            composed = compose(overrides=[*chosen, *overrides])
        data: Any = plain(composed, f"judge={judge}")
    except (HydraException, OmegaConfBaseException) as problem:
        raise UserError(
            f"The settings do not fit: {redact(' '.join(str(problem).split()))} The names and"
            " defaults of all settings are in study/schema.py."
        ) from problem
    refuse_config(data)
    return freeze(Judge, data["judge"]), freeze(Task, data["task"])


def plain(composed: DictConfig, what: str) -> dict[str, Any]:
    """A composed config as a plain dict. Raises UserError: a value is missing, without which
    ``what`` does not work."""
    try:
        data = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as problem:
        key = getattr(problem, "full_key", None) or "a value"
        raise UserError(
            f"{key} has no value and {what} does not work without one. Type it on the command"
            f" line: {key}=VALUE"
        ) from problem
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items()}


def load_judge(name: str, *overrides: str) -> Judge:
    """A judge by the name of its preset: ``load_judge("sim-verbose", "judge.sampling.votes=3")``.
    Raises UserError: as `load_presets`."""
    return load_presets(name, overrides=overrides)[0]
