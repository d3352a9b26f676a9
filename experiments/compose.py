"""A config as Hydra composed it, read as a cell; lists where one value is due are refused."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from study import cells
from study.cells import Cell
from study.compose import load_judge
from study.errors import UserError
from study.schema import GROUPS, Study, freeze
from study.secrets import refuse_config


def resolve(config: DictConfig) -> Cell:
    """A composed config as a cell, the shadow judges filled in.

    Raises:
        UserError: a value that must be given is missing, is not legal, or looks like a secret.
    """
    try:
        data = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key = getattr(error, "full_key", None) or "a value"
        raise UserError(
            f"{key} has no value and this experiment cannot run without one. "
            f"Type it on the command line: {key}=VALUE"
        ) from error
    assert isinstance(data, dict)
    plain: dict[str, Any] = {str(key): value for key, value in data.items()}
    refuse_config(plain)
    freeze(Study, plain)  # names of presets among it, which are looked up next
    plain["shadow_judges"] = [_preset(name) for name in plain["shadow"]]
    refuse_config(plain)
    return cells.make_cell(plain)


@functools.cache
def _preset(judge: str) -> dict[str, Any]:
    return dataclasses.asdict(load_judge(judge))


def refuse_lists(overrides: Sequence[str]) -> None:
    """Refuse brackets around the values of a sweep: Hydra would merge the presets of
    ``judge=[a,b]`` into one judge."""
    for text in overrides:
        key, equals, value = text.partition("=")
        name = key.strip().lstrip("+~").partition("@")[0]
        value = value.strip().strip("\"'").strip()
        if equals and value.startswith("[") and _is_single(name.replace("/", ".")):
            inner = ",".join(word.strip() for word in value.strip("[]").split(",")) or "VALUE"
            raise UserError(
                f"{name}={value} gives one list where one value is due. To sweep over several, "
                f"type them side by side without brackets: {name}={inner}"
            )


def _is_single(name: str) -> bool:
    """Whether the schema has no list under ``name``; True for the groups of presets."""
    kind: Any = Study
    for word in name.split("."):
        members = (kind, *typing.get_args(kind))
        schema = next((member for member in members if dataclasses.is_dataclass(member)), None)
        kinds = typing.get_type_hints(schema) if schema is not None else {}
        if word not in kinds:
            return name in ("profile", "experiment", "debug")
        kind = kinds[word]
    return name in GROUPS or not any(word in str(kind) for word in ("list", "dict", "Any"))
