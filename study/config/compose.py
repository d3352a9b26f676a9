"""Judges and tasks by the names of their presets: ``load_judge("qwen3-32b")``."""

from __future__ import annotations

import functools
import typing
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from study.config import override_errors as causes
from study.config.marks import dataclass_of, field_types
from study.config.presets import SHIPPED, folders, no_preset
from study.config.presets import preset_names as preset_names
from study.config.schema import Executor, Judge, Study, Task, Trainer, freeze, register
from study.errors import UserError
from study.system.secrets import refuse_config

if TYPE_CHECKING:
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.plugins.plugin import Plugin

WITHOUT = "correction.without"
LISTS = {"judge.without": WITHOUT, WITHOUT: WITHOUT, "correction.debias": "correction.debias"}
"""Lists of features whose brackets may be left out -> how Hydra knows them."""

SHARD, ENGINE = "shard=", "sweep.engine="


def load_presets(
    judge: str, task: str = "instruct-mini", overrides: Sequence[str] = ()
) -> tuple[Judge, Task]:
    """A judge and a task by the names of their presets, with further settings as Hydra takes them.
    Raises UserError: an unknown preset, an override that the schema does not take, a value that is
        missing, or one that looks like a key."""
    data = _composed({"judge": judge, "task": task}, overrides)
    return freeze(Judge, data["judge"]), freeze(Task, data["task"])


def load_executor(
    executor: str, task: str = "workflow-mini", overrides: Sequence[str] = ()
) -> tuple[Executor, Task]:
    """An executor and a task, as `load_presets`."""
    data = _composed({"executor": executor, "task": task}, overrides)
    return freeze(Executor, data["executor"]), freeze(Task, data["task"])


def load_trainer(trainer: str) -> Trainer:
    """A trainer by the name of its preset. Raises UserError: an unknown one."""
    return freeze(Trainer, _composed({"trainer": trainer}, ())["trainer"])


def _composed(presets: dict[str, str], overrides: Sequence[str]) -> dict[str, object]:
    """The settings of a preset of each group. Raises UserError: as `load_presets`."""
    for group, name in presets.items():
        if name.startswith("["):
            raise UserError(f"{group}={name} has brackets. Type {group}={name.strip('[] ')}.")
        if name not in preset_names(group):
            raise UserError(no_preset(group, name))
    from hydra import compose
    from hydra.errors import HydraException

    if wrong := causes.unknown_key(overrides):
        raise _unfit(wrong)
    register()
    choices = [f"+{group}={name}" for group, name in presets.items()]
    try:
        with causes.nothing_below_null(overrides), hydra_presets():
            composed = compose(overrides=[*choices, *opened(overrides)])
        return plain(composed, " ".join(f"{group}={name}" for group, name in presets.items()))
    except (HydraException, OmegaConfBaseException) as problem:
        if wrong := causes.reason(problem, overrides):
            raise UserError(wrong) from problem
        raise _unfit(causes.own_words(problem, overrides)) from problem


@contextmanager
def hydra_presets() -> Generator[None]:
    """Within the block Hydra composes what `study.config.presets.folders` hold; within a sweep it
    already does."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    if GlobalHydra.instance().is_initialized():  # Hydra lets nobody initialise it twice
        yield
        return
    add_folders()
    with initialize_config_dir(str(SHIPPED), version_base="1.3"):
        yield


def add_folders() -> None:
    """Have Hydra look for presets in all of `study.config.presets.folders`, where it is told of
    those that ship."""
    from hydra.core.plugins import Plugins

    Plugins.instance().register(_folders_plugin())


@functools.cache
def _folders_plugin() -> type[Plugin]:
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class Folders(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            """Called by Hydra with every path that it makes, those of other programs too."""
            if _ships(search_path):
                for folder in folders()[:-1]:
                    search_path.prepend("presets", f"file://{folder}", "main")

    return Folders


def _ships(search_path: ConfigSearchPath) -> bool:
    paths = [source.path.removeprefix("file://") for source in search_path.get_path()]
    return str(SHIPPED) in paths


def _unfit(words: str) -> UserError:
    return UserError(
        f"The settings do not fit: {words} The names and defaults of all settings are in"
        " study/config/schema.py."
    )


def respelled(overrides: Sequence[str]) -> list[str]:
    """The settings with ``correction.without=a,b`` as ``correction.without=[a],[b]``: one list for
    each cell. ``judge.without`` is the same, for a judge keeps its identity whatever is taken out
    of its scores. ``shard=1/2`` is the engine and its setting."""
    short = [text for text in overrides if text.startswith(SHARD)]
    engine = [] if any(text.startswith(ENGINE) for text in overrides) else [f"{ENGINE}shard"]
    spelled = [f"sweep.{text}" if text in short else _respelled(text) for text in overrides]
    return [*spelled, *(engine if short else [])]


def _respelled(override: str) -> str:
    key, equals, value = override.partition("=")
    if key not in LISTS or not equals:
        return override
    if "[" not in value and "(" not in value:
        value = ",".join(f"[{name.strip()}]" for name in value.split(","))
    return f"{LISTS[key]}={value}"


def opened(overrides: Sequence[str]) -> list[str]:
    """The settings with ``++`` before each key of a free table, such as ``judge.grading.options``:
    so that it is typed as any other, whether or not the preset has it."""
    return [f"++{text}" if _in_free_table(text) else text for text in overrides]


def _in_free_table(override: str) -> bool:
    kind: Any = Study
    for name in override.partition("=")[0].strip().split("."):
        part = dataclass_of(kind)
        if part is None:
            return typing.get_origin(kind) is dict
        if name not in field_types(part):
            return False
        kind = field_types(part)[name]
    return False


def plain(composed: DictConfig, what: str) -> dict[str, Any]:
    """A composed config as a plain dict, without a secret. Raises UserError: it holds one, also
    where nothing is resolved yet; or a value is missing, without which ``what`` does not work."""
    data = OmegaConf.to_container(composed, resolve=False)
    refuse_config(data)
    if _is_open(data):
        data = _resolved(composed, what)
        refuse_config(data)
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items()}


def _is_open(value: Any) -> bool:
    """Whether a value of a config refers to another or is missing: most configs have none such,
    and OmegaConf takes long to resolve one."""
    if isinstance(value, dict):
        return any(map(_is_open, value.values()))
    if isinstance(value, list):
        return any(map(_is_open, value))
    return isinstance(value, str) and ("${" in value or value == "???")


def _resolved(composed: DictConfig, what: str) -> Any:
    """Raises UserError: as `plain`."""
    try:
        return OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as problem:
        key = getattr(problem, "full_key", None) or "a value"
        raise UserError(f"{key} has no value, and {what} needs one. Type {key}=VALUE") from problem


def load_judge(name: str, *overrides: str) -> Judge:
    """A judge by the name of its preset: ``load_judge("sim-verbose", "judge.sampling.votes=3")``.
    Raises UserError: as `load_presets`."""
    return load_presets(name, overrides=overrides)[0]


@functools.cache
def load_judge_once(name: str) -> Judge:
    """`load_judge` for a sweep of many cells, which composes each shadow judge once. Launchers send
    it to other processes, by its name here."""
    return load_judge(name)
