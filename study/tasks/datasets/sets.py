"""The sets by name: where their files lie, and their rows as items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TypedDict

from study.config import bounds
from study.errors import UserError
from study.system.tables import table
from study.tasks.datasets import choice, code, gsm8k, hotpotqa, math, squad2
from study.truth.item import Item

FAMILIES: dict[str, ModuleType] = {
    "gsm8k": gsm8k,
    "math": math,
    "squad2": squad2,
    "hotpotqa": hotpotqa,
    "code": code,
    "choice": choice,
}


class Hub(TypedDict):
    """What the hub has of a set."""

    repository: str
    configs: list[str | None]
    splits: dict[str, str]
    """Our name of a split -> the hub's."""


@dataclass(frozen=True)
class Source:
    """One set as `sets.toml` describes it; the meaning of each field stands there."""

    name: str
    domain: str
    family: str
    licence: str
    origin: str
    files: dict[str, list[str]]
    train: list[str]
    test: list[str]
    cut: list[str]
    hub: Hub
    beside: dict[str, list[str]] = field(default_factory=dict)


SETS = {name: Source(name=name, **entry) for name, entry in table(__file__).items()}


def source(name: str) -> Source:
    """The set called ``name``. Raises UserError: there is no such set."""
    return bounds.pick("datasets", name, SETS, "gsm8k,math")


def located(name: str, root: Path) -> dict[str, Path]:
    """File of each split, and files beside them, that a data folder holds of a set; each is the
    first that is there. Raises UserError: the folder holds none of its splits."""
    described = source(name)
    paths: dict[str, Path] = {}
    for key, names in {**described.files, **described.beside}.items():
        for candidate in (root / f"{file}{end}" for file in names for end in ("", ".gz")):
            if candidate.is_file():
                paths[key] = candidate
                break
    if not paths.keys() & described.files.keys():
        files = ", ".join(file for names in described.files.values() for file in names)
        raise UserError(
            f"{root} holds no file of {name}. Expected is one of {files}, each also with .gz. Type"
            " data.root=DIR for another folder, or download the set: python -m experiments.data"
            f" download datasets={name}"
        )
    return paths


def read(name: str, split: str, paths: dict[str, Path]) -> Iterator[tuple[str, Item]]:
    """(file and row, item) of each row of one file, which ``paths`` of `located` has for ``split``;
    rows of MBPP's one file are under ``all`` and say their split themselves.
    Raises UserError: no row, one that is not of the form, or two with the same own id."""
    seen: dict[str, str] = {}
    rows = False
    for where, item in FAMILIES[source(name).family].read(name, split, paths):
        label = item.alias or str(item.meta.get("task_id", ""))
        if label:
            if label in seen:
                raise UserError(
                    f"{where}: found the id {label} again, first in {seen[label]}. Ids are unique:"
                    " remove one of the rows."
                )
            seen[label] = where.rpartition(", ")[2]
        yield where, item
        rows = True
    if not rows:
        raise UserError(f"{paths[split]} holds no rows of {name}. Download the file again.")


def reported(name: str, root: Path) -> list[Item]:
    """The rows that a result is reported on, in official order: the official test split, or the
    dev split of a set whose test answers are not public. MBPP's are all 974, each with its split.
    Raises UserError: no file of them in ``root``, or a row that is not of the form."""
    described, paths = source(name), located(name, root)
    keys = [key for key in ("all", *described.test) if key in paths]
    if not keys:
        files = ", ".join(file for key in described.test for file in described.files[key])
        raise UserError(
            f"{root} has no test split of {name}: none of {files}, with or without .gz. Type"
            " data.root=DIR for a folder that has it."
        )
    return [item for key in keys for _, item in read(name, key, paths)]
