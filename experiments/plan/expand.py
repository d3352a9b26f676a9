"""The configs of a sweep: those of Hydra's multirun, composed once per choice of presets.

Hydra's parser reads the arguments and its sweeper multiplies them; `study.config.composer` composes
each cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from study.config.compose import hydra_presets
from study.config.composer import NAME, Composer, NeedsHydra, check_usual

Enqueue = Callable[[Sequence[str], DictConfig], None]
"""Takes the arguments of a cell and its config."""


def expand(arguments: Sequence[str], enqueue: Enqueue) -> None:
    """Call ``enqueue`` with every cell of a sweep with these arguments, in Hydra's order.

    Raises:
        NeedsHydra: perhaps after some cells.
        HydraException, OmegaConfBaseException: as Hydra does, for a choice or a key that is not
            there and a value that does not fit.
    """
    if any(text.lstrip("+~").startswith(("-", "hydra")) for text in arguments):
        raise NeedsHydra
    HydraConfig.instance().cfg = None
    with hydra_presets():
        composer = Composer(GlobalHydra.instance().config_loader())
        for text in arguments:
            composer.read(text)
        whole = composer.loader.load_configuration(NAME, list(arguments), RunMode.MULTIRUN).hydra
        check_usual(whole)
        params = [f"{key}={value}" for key, value in (whole.sweeper.params or {}).items()]
        parser = OverridesParser.create(config_loader=composer.loader)
        typed = parser.parse_overrides([*params, *arguments])
        for batch in BasicSweeper.split_arguments(typed, whole.sweeper.max_batch_size):
            for overrides in batch:
                try:
                    enqueue(overrides, composer.composed(overrides))
                except OmegaConfBaseException as error:
                    if "HydraConfig was not set" in str(error):
                        raise NeedsHydra from error
                    raise
