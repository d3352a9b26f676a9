"""Composes configs as Hydra does, each choice of presets once.

Hydra composes each config from nothing, which takes over a tenth of a second, in two parts:

1. The defaults list chooses presets and merges them. Of the arguments, only those that choose a
   preset of a group have a part in that (`hydra._internal.defaults_list.Overrides`).
2. All other arguments are set in that tree, one after the other
   (`ConfigLoaderImpl._apply_overrides_to_config`).

Here Hydra does the first part once per choice of presets, and its own function does the second on a
copy for each config. What is not one of these two parts is left to Hydra as a whole (`NeedsHydra`):
another sweeper, callbacks, variables or folders that are set for a job, and values that ask what
Hydra knows of the job.
"""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Sequence
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, IConfigRepository
from hydra._internal.defaults_list import Overrides
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from study.system.secrets import refuse_config

NAME = "sweep"
"""Of the file in ``conf/`` that a sweep is composed from."""
PARTS = "hydra._internal.core_plugins.basic_"
"""Where Hydra's own sweeper and launcher are."""


class NeedsHydra(Exception):
    """Hydra has to expand this command line itself, for one cell may differ from what it makes."""


class _ReadOnce(CachingConfigRepository):
    """Hydra's presets, each read from its file once for all compositions."""

    def __init__(self, delegate: IConfigRepository) -> None:
        super().__init__(delegate)
        self._read: dict[str, bytes] = {}

    def __deepcopy__(self, memo: object) -> _ReadOnce:
        """Each composition copies what it reads from."""
        return self

    def initialize_sources(self, config_search_path: Any) -> None:
        """Other folders, as hydra.searchpath says. Raises NeedsHydra."""
        raise NeedsHydra

    def load_config(self, config_path: str) -> ConfigResult | None:
        """A copy: a composition changes what it gets."""
        if config_path not in self._read:
            self._read[config_path] = pickle.dumps(self.delegate.load_config(config_path))
        return pickle.loads(self._read[config_path])


class Composer:
    """Composes cells; remembers every choice of presets, and how each argument reads."""

    def __init__(self, loader: Any) -> None:
        """``loader``: Hydra's, which stays as it is."""
        self.loader = copy.copy(loader)
        self.loader.repository = _ReadOnce(loader.repository)
        self._parser = OverridesParser.create()
        self.read = functools.cache(self._read)
        self.presets_tree = functools.cache(self._presets_tree)

    def composed(self, overrides: Sequence[str]) -> DictConfig:
        """The config of a cell. Raises UserError: what Hydra is set to holds a secret."""
        values = [value for value in map(self.read, overrides) if value is not None]
        presets = tuple(text for text in overrides if self.read(text) is None)
        config: DictConfig = pickle.loads(self.presets_tree(presets))  # faster than a deep copy
        ConfigLoaderImpl._apply_overrides_to_config(values, config)
        return config

    def _read(self, text: str) -> Override | None:
        """An argument that sets a value; None where it has a part in the defaults list."""
        typed = self._parser.parse_overrides([text])
        try:
            values = Overrides(self.loader.repository, typed).config_overrides
        except ValueError as error:  # such as judge=3
            raise ConfigCompositionException(f"{text}: {error}.") from error
        return values[0] if values else None

    def _presets_tree(self, presets: tuple[str, ...]) -> bytes:
        """The tree of these presets, pickled."""
        config = self.loader.load_configuration(NAME, list(presets), RunMode.RUN)
        check_usual(config.hydra)
        refuse_config(OmegaConf.to_container(config.hydra, resolve=False), "hydra")
        with read_write(config), open_dict(config):
            del config["hydra"]
        return pickle.dumps(config)


def check_usual(hydra: DictConfig) -> None:
    """Raises NeedsHydra: what Hydra is set to does more than expand and call."""
    parts = (hydra.sweeper._target_, hydra.launcher._target_)
    job = hydra.job
    if hydra.callbacks or job.chdir or job.env_set or not all(p.startswith(PARTS) for p in parts):
        raise NeedsHydra
