"""What Hydra reads, chooses and merges is remembered for all tests of a process.

A composition takes a fifth of a second, nearly all of it for files, choices and merges that some
test before asked for, too. These come from memory here, as copies; what is typed beside the choice
of presets is set by Hydra each time.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

COPIES: dict[Any, bytes] = {}
"""What is remembered, pickled."""
SCHEMAS: dict[tuple[str | None, str], object] = {}
"""What Hydra's store has: group and name -> schema."""


@contextmanager
def remembered() -> Iterator[None]:
    """Within the block, schemas are stored, presets read, chosen and merged once."""
    from hydra._internal import config_loader_impl, defaults_list
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_repository import ConfigRepository
    from hydra.core.config_store import ConfigStore

    store, read = ConfigStore.store, ConfigRepository.load_config
    choose = config_loader_impl.create_defaults_list
    merge = ConfigLoaderImpl._compose_config_from_defaults_list
    list_choices = defaults_list._create_interpolation_map

    def store_once(self: Any, name: str, node: Any, group: str | None = None, **more: Any) -> None:
        if SCHEMAS.get((group, name)) is not node:
            SCHEMAS[group, name] = node
            store(self, name=name, node=node, group=group, **more)

    def read_once(self: Any, config_path: str) -> Any:
        return _copy((*_folders(self), config_path), lambda: read(self, config_path))

    def choose_once(
        repo: Any, config_name: str, overrides_list: Any, prepend_hydra: bool, skip_missing: bool
    ) -> Any:
        values = defaults_list.Overrides(repo, overrides_list).config_overrides
        set_later = {id(value) for value in values}
        choices = [
            word
            for word in overrides_list
            if id(word) not in set_later and not word.is_sweep_override()
        ]
        how = (config_name, prepend_hydra, skip_missing)
        key = (*_folders(repo), how, *(word.input_line for word in choices))
        made = _copy(key, lambda: choose(repo, config_name, choices, prepend_hydra, skip_missing))
        return dataclasses.replace(made, config_overrides=values)

    def merge_once(self: Any, defaults: Any, repo: Any) -> Any:
        key = (*_folders(repo), *(str(vars(default)) for default in defaults))
        return _copy(key, lambda: merge(self, defaults, repo))

    def list_where_asked(overrides: Any, chosen: Any, self_added: bool) -> Any:
        """Hydra lists at each preset what is chosen so far, for those that refer to a choice."""
        if any(not each.is_self() and each.is_interpolation() for each in chosen):
            return list_choices(overrides, chosen, self_added)
        return None

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(defaults_list, "_create_interpolation_map", list_where_asked)
        patched.setattr(ConfigStore, "store", store_once)
        patched.setattr(ConfigRepository, "load_config", read_once)
        patched.setattr(config_loader_impl, "create_defaults_list", choose_once)
        patched.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", merge_once)
        yield


def _copy(key: Any, make: Callable[[], Any]) -> Any:
    """A copy of what was made under a key, or is made now; what is not there may come later."""
    if key not in COPIES:
        made = make()
        if made is None:
            return None
        COPIES[key] = pickle.dumps(made)
    return pickle.loads(COPIES[key])


def _folders(repository: Any) -> list[str]:
    """Where a repository reads presets."""
    return [f"{source.scheme()}{source.path}" for source in repository.get_sources()]
