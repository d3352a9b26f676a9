"""What is prepared: the rows of one set, and what the manifest says of where they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from study.errors import UserError
from study.system.files import read_json, sha256
from study.tasks.datasets import prompt, sets
from study.tasks.datasets.preset import SOURCE, Data
from study.tasks.datasets.table import File, Source
from study.truth.item import Item

SANITISED = Path(sets.__file__).with_name("mbpp_sanitised.txt")


@dataclass(frozen=True)
class Part:
    """One set of a prepared folder.

    Attributes:
        paths: its files by official split.
        cut_from: the official split whose file is cut; empty where official test rows are kept.
        test: the official splits that are tested on, where nothing is cut.
        items: (file and row, item) of every row.
        fate: why a row is left out before rows are split; empty where it is not.
    """

    name: str
    domain: str
    licence: str
    origin: str
    paths: dict[str, Path]
    cut_from: str
    test: tuple[str, ...]
    prompts: dict[str, str]
    items: Callable[[], Iterator[tuple[str, Item]]]
    fate: Callable[[Item], str] = lambda item: ""

    def described(self) -> Source:
        """What the manifest says of the set before a row is read.
        Raises UserError: a file that cannot be read."""
        files = {
            split: File(name=f"{path.parent.name}/{path.name}", sha256=_hash(path))
            for split, path in self.paths.items()
        }
        some = next(iter(self.paths.values()))
        hub = read_json(some.with_name(f"{self.name}{SOURCE}"))
        own = "+".join(entry["sha256"][:12] for entry in files.values())
        return {
            "domain": self.domain,
            "licence": self.licence,
            "origin": str(hub.get("repository") or self.origin),
            "revision": str(hub.get("revision") or f"sha256:{own}"),
            "files": files,
            "cut_from": self.cut_from or None,
            "prompts": self.prompts,
        }


def _hash(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error


def part(name: str, data: Data) -> Part:
    """A set as a preset takes it.
    Raises UserError: the data folder has no file of it, or none of the split that it needs."""
    source, root = sets.source(name), data.folder(name)
    paths = sets.located(name, root)
    here = [split for split in source.files if split in paths]
    cut_from = next((split for split in source.cut if split in paths), "") if data.cut else ""
    if cut_from:
        here = [cut_from]
    elif not {"all", *source.test} & set(here):
        files = ", ".join(file for split in source.test for file in source.files[split])
        raise UserError(
            f"{root} has no test split of {name}: none of {files}, with or without .gz. Add it,"
            f" or leave {name} out: datasets=..."
        )
    files_of_split = {
        split: path for split, path in paths.items() if split in here or split in source.beside
    }
    ids = sanitised() if name == "mbpp" and data.mbpp == "sanitised" else None

    def items() -> Iterator[tuple[str, Item]]:
        for split in here:
            yield from sets.read(name, split, files_of_split)

    return Part(
        name=name,
        domain=source.domain,
        licence=source.licence,
        origin=source.origin,
        paths=files_of_split,
        cut_from=cut_from,
        test=tuple(source.test),
        prompts=prompt.hashes(name),
        items=items,
        fate=lambda item: "" if ids is None or item.meta["task_id"] in ids else "not_sanitised",
    )


def sanitised() -> set[int]:
    """The task_ids of MBPP's sanitised half."""
    ids: set[int] = set()
    for span in SANITISED.read_text(encoding="utf-8").split():
        low, _, high = span.partition("-")
        ids |= set(range(int(low), int(high or low) + 1))
    return ids
