"""What is prepared: the rows of one set, or one's own, and where the manifest says they come from.

One's own rows are ``{problem, answer, type}``, one JSON object a line. ``type`` is math, code or
qa. Of code, ``answer`` is a right program and ``tests`` are the assert statements that check one;
``entry_point`` may name the function. ``context`` and an ``id`` that is no number may stand in any
row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from study.config import bounds
from study.config.compose import preset_names
from study.errors import UserError
from study.system.files import read_json, sha256
from study.tasks.datasets import code, prompt, sets
from study.tasks.datasets.fields import address, field
from study.tasks.datasets.preset import DOWNLOADED, SOURCE, Data
from study.tasks.datasets.sets import SETS
from study.tasks.datasets.table import File, Source
from study.tasks.files import records, refuse
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


TYPES = ("math", "code", "qa")
ENDINGS = (".jsonl", ".jsonl.gz")
SPLIT = "train"
"""The official split of all registered rows: they are one file, and are cut."""


def registered_parts(path: Path) -> list[Part]:
    """One part for each type of the file's rows, under the file's name; where it has several types,
    each with its type behind it.
    Raises UserError: no such file, a name that is taken or not plain, or a row that is not of the
        form."""
    if not path.is_file() or not path.name.endswith(ENDINGS):
        raise UserError(
            f"path={path} is not a file that ends in {' or '.join(ENDINGS)}. Give one with a JSON"
            " object {problem, answer, type} in each line."
        )
    stem = stem_of(path)
    reserved = (*SETS, *preset_names("data"), DOWNLOADED.name)
    bounds.check("the name of the file", stem, bounds.Name(reserved=reserved))
    types = list(dict.fromkeys(kind for _, kind, _ in _typed(path)))
    if not types:
        raise UserError(f"path={path} holds no rows. Give one JSON object per line.")
    names = {kind: stem if len(types) == 1 else f"{stem}-{kind}" for kind in types}
    repeats = _repeats(path)
    return [_part(path, kind, names[kind], repeats) for kind in sorted(types)]


def stem_of(path: Path) -> str:
    """The name of a file without its ending."""
    return path.name.partition(".jsonl")[0]


def _part(path: Path, kind: str, name: str, repeats: frozenset[int]) -> Part:
    return Part(
        name=name,
        domain=kind,
        licence="unknown",
        origin=path.name,
        paths={SPLIT: path},
        cut_from=SPLIT,
        test=(),
        prompts=prompt.hashes("registered"),
        items=lambda: _items(path, kind, name),
        fate=lambda item: "merged" if int(item.id.rpartition(":")[2]) in repeats else "",
    )


def _typed(path: Path) -> Iterator[tuple[str, str, dict]]:
    """(file and row, type, record) of every row."""
    for line, record in records(path):
        where = f"{path}, {line}"
        kind = field(record, "type", str, "registered", where)
        if kind not in TYPES:
            refuse(where, f"type {kind!r}", f"type is one of {', '.join(TYPES)}")
        yield where, kind, dict(record)


def _items(path: Path, kind: str, name: str) -> Iterator[tuple[str, Item]]:
    for row, (where, other, record) in enumerate(_typed(path)):
        if other == kind:
            yield where, _item(record, kind, name, row, where)


def _item(record: dict, kind: str, name: str, row: int, where: str) -> Item:
    def text(key: str) -> str:
        return field(record, key, str, "registered", where, empty=True, default="")

    problem = field(record, "problem", str, "registered", where)
    answer, context, tests = _answer(record, where), text("context"), text("tests")
    function = text("entry_point")
    if tests and not function:
        function = code.called(answer, [tests], where)
    return Item(
        id=f"{name}:{SPLIT}:{row}",
        dataset=name,
        domain=kind,
        split=SPLIT,
        group_key=f"{name}:{function or address(problem)}",
        prompt=prompt.render("registered", question=f"{context}\n\n{problem}".lstrip("\n")),
        question=problem,
        context=context or None,
        answers=() if kind == "code" else (answer,),
        entry_point=function,
        tests=tests,
        reference=answer if kind == "code" else "",
        alias="" if _own_id(record, where).isdecimal() else _own_id(record, where),
    )


def _answer(record: dict, where: str) -> str:
    """The gold answer as text; a number may stand without quotes."""
    value = record.get("answer")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    answer = field(record, "answer", str, "registered", where, empty=True)
    if not answer.strip():
        refuse(where, "a gold without an answer", "answer is a text or a number")
    return answer


def _own_id(record: dict, where: str) -> str:
    value = record.get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return field(record, "id", str, "registered", where, empty=True, default="")


def _repeats(path: Path) -> frozenset[int]:
    """The rows whose problem has come before with the same answer.
    Raises UserError: it has come before with another one, or an id stands twice."""
    first_of: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {}
    ids: dict[str, str] = {}
    repeats = set()
    for row, (where, kind, record) in enumerate(_typed(path)):
        item, line = _item(record, kind, "registered", row, where), where.rpartition(", ")[2]
        own = _own_id(record, where)
        if own and ids.setdefault(own, line) != line:
            refuse(where, f"the id {own} of {ids[own]} again", "ids differ")
        key = (kind, address(f"{item.context or ''}\n{item.question}"))
        answer = " ".join(_answer(record, where).lower().split())
        right = (item.reference, item.tests) if kind == "code" else (answer,)
        before, right_before = first_of.setdefault(key, (line, right))
        if right_before != right:
            legal = "a problem has one answer, and of code the same tests"
            refuse(where, f"the problem of {before} with another answer", legal)
        if before != line:
            repeats.add(row)
    return frozenset(repeats)
