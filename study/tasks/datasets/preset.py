"""Which sets are prepared and how they are split: the presets of ``conf/data``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from study.config import bounds
from study.config import override_errors as causes
from study.config.compose import preset_names
from study.config.presets import no_preset, preset_file
from study.config.schema import freeze, schema
from study.errors import UserError, chain
from study.tasks.datasets.sets import SETS
from study.tasks.mixture import DOMAINS
from study.tasks.where import data_folder

DOWNLOADED = Path("data") / "raw"
"""Where `experiments.data download` lays the official files, below the working folder."""
SOURCE = ".source.json"
"""Ending of the file beside those of a set that says where they were downloaded from; it is written
when all of them are there."""


@dataclass(frozen=True)
class Data:
    """What becomes train, validation and test rows."""

    name: str = bounds.name("official")
    datasets: list[str] = field(
        default_factory=lambda: ["gsm8k", "math", "squad2", "hotpotqa", "humaneval", "mbpp"],
        metadata=bounds.each(*SETS),
    )
    root: str | None = None
    """Folder of the official files. Null: what was downloaded, else the data folder."""
    cut: list[int] = field(
        default_factory=list, metadata={"legal": bounds.Number(low=1, high=1_000_000)}
    )
    """Empty keeps the official test rows. [5,1] cuts the train file, or what is there, into five
    parts of train and one of test, by a hash of the group."""
    validation_share: float = bounds.number(0.05, low=0, below=1)
    """Share of the train rows that are set aside, by a hash of the group."""
    mbpp: str = bounds.choice("full", "full", "sanitised")
    """All 974 tasks of MBPP, or the 427 of its sanitised half."""
    domains: dict[str, float] = field(
        default_factory=lambda: dict(DOMAINS),
        metadata={"legal": bounds.Number(low=0)},
    )
    """Weights of the domains where rows are drawn; the sets of a domain share its weight."""
    max_prompt_chars: int | None = bounds.number(None, low=1)
    """Train rows with a longer prompt are left out, and counted."""
    choose: int | None = bounds.number(None, low=1, high=4096)
    """At most so many train rows of each set stay: those that facility location chooses, so that
    they spread over what is asked."""
    seed: int = bounds.seed(0)
    """Salt of the hashes."""

    def folder(self, name: str) -> Path:
        """The data folder of one set: ``root``, else what was downloaded, else the data folder."""
        if self.root is not None:
            return Path(self.root).expanduser()
        first = next(iter(SETS[name].files.values()))[0]
        source = (DOWNLOADED / first).with_name(f"{name}{SOURCE}")
        return DOWNLOADED if source.is_file() else data_folder()


def load_data(name: str, overrides: Sequence[str] = (), datasets: Sequence[str] = ()) -> Data:
    """A preset of ``conf/data`` with settings ``data.KEY=VALUE`` over it; ``datasets``, where there
    are any, in place of its own.
    Raises UserError: an unknown preset, key or set, a value that is not legal, or a data.root that
        is no folder."""
    if name not in preset_names("data"):
        raise UserError(no_preset("data", name))
    try:
        composed = OmegaConf.merge(
            OmegaConf.structured(schema(Data)),
            OmegaConf.load(preset_file("data", name)),
            OmegaConf.from_dotlist([text.partition("data.")[2] for text in overrides]),
        )
        values: Any = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        refused = next((link for link in chain(error) if isinstance(link, UserError)), None)
        if refused is not None:
            raise refused from None
        raise UserError(
            f"The settings do not fit: {causes.own_words(error, overrides)} The names and defaults"
            " of all settings are in study/tasks/datasets/preset.py."
        ) from error
    values["datasets"] = list(dict.fromkeys(datasets or values["datasets"]))
    data: Data = freeze(Data, values, "data.")
    if data.root is not None and not Path(data.root).expanduser().is_dir():
        raise UserError(
            f"data.root={data.root} is not a folder. Give one that holds files such as"
            " gsm8k/test.jsonl, or leave data.root= out."
        )
    if not data.datasets:
        bounds.refuse("data.datasets", "[]", "the names of one set or more, such as [gsm8k,math]")
    for domain in data.domains:
        bounds.check("data.domains", domain, bounds.Choice(tuple(DOMAINS)))
    if not any(data.domains.values()):
        bounds.refuse("data.domains", data.domains, "a weight above 0 for one domain or more")
    if len(data.cut) not in (0, 2):
        bounds.refuse("data.cut", data.cut, "empty, or two numbers such as [5,1]")
    return data
