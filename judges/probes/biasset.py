"""The bias set: prompts of HealthBench and VerInstruct, each with seven slots for answers to it.

A file of it is JSONL, one prompt a line: ``{id, source, split, ability, prompt, spec, meta,
response_types, responses, notes}``. A slot that nobody has tried to fill is "", one that could not
be had is null. What was filled has an entry under ``made``: ``{author, family, how, from, sha256,
checks}``, or ``{author, missing}`` with the reason.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from study.answers import answer_of
from study.errors import UserError
from study.rows import Row
from study.screen import writable
from study.system.files import sha256, write_text
from study.tasks import files, prompts, verif
from study.tasks.where import FILES, VARIABLE, data_folder

POLICY, CORRECT = "ypolicy_raw", "ycorrect"
VARIANTS = ("yshort", "yverbose", "ystructured", "ysycophant", CORRECT, "yconfident_wrong")
TYPES = (*VARIANTS, POLICY)
_ORDER = (CORRECT, *(slot for slot in TYPES if slot != CORRECT))
"""Slots as the published file has them in ``responses``."""
_ID = re.compile(r"(healthbench|verinstruct_verif):val:(0|[1-9][0-9]{0,8})")
_MADE = ("author", "family", "how", "sha256")
"""Texts of an entry of ``made``."""
_KEYS = ("id", "source", "split", "prompt", "spec", "meta", "responses")
FORM = (
    'Legal is one prompt a line: {"id": "healthbench:val:ROW" or "verinstruct_verif:val:ROW",'
    " source, split, prompt, spec, meta: {row_index, prompt_messages}, responses: {slot: text}}."
    " Build such a file: python -m experiments.data biasset n=250 seed=0 out=FILE"
)


Made = TypedDict(
    "Made",
    {
        "author": str,
        "family": str,
        "how": str,  # rule, model or policy
        "missing": str,  # why there is no text; then nothing else is said of one
        "from": str | None,  # the slot whose text was rewritten
        "from_sha256": str | None,
        "sha256": str,  # of the text
        "checks": dict[str, bool | None],
        "settings": Mapping[str, object],  # how a policy was asked
    },
    total=False,
)
"""How the text of a slot came about."""


class Meta(TypedDict):
    """Where a prompt is from, and its chat turns."""

    row_index: int
    prompt_messages: list[dict[str, str]]


class Item(TypedDict):
    """One line of the file."""

    id: str
    source: str
    split: str
    prompt: str
    spec: dict[str, object]
    """Its criteria, or its checkers and their functions."""
    meta: Meta
    responses: dict[str, str | None]
    """Slot -> its text; empty where nobody has tried, None where it could not be had."""
    ability: NotRequired[str]
    response_types: NotRequired[list[str]]
    notes: NotRequired[str]
    made: NotRequired[dict[str, Made]]
    """Slot -> how it was made."""


class SlotCounts(TypedDict):
    """How often a slot is filled and by whom, missing and why, and which checks failed."""

    filled: int
    missing: int
    by: dict[str, int]
    reasons: dict[str, int]
    failed_checks: dict[str, int]


class Summary(TypedDict):
    """Counts of a file."""

    path: str
    sha256: str
    sources: dict[str, int]
    slots: dict[str, SlotCounts]


@dataclass(frozen=True)
class Origin:
    """Where the prompts of a source are from."""

    task: str
    form: str
    offset: int
    """What is added to the seed of the draw."""


ORIGINS = {
    "healthbench": Origin("healthbench", "rubric", 101),
    "verinstruct_verif": Origin("verinstruct-verif", "verif", 202),
}


def drawn(count: int, k: int, seed: int) -> list[int]:
    """The first ``k`` of ``count`` places after a shuffle: Fisher and Yates from the end, by the
    linear congruential generator of Numerical Recipes (32 bits)."""
    mask = 0xFFFFFFFF
    state = (seed ^ 0x9E3779B9) & mask
    places = list(range(count))
    for last in range(count - 1, 0, -1):
        state = (1664525 * state + 1013904223) & mask
        other = state % (last + 1)
        places[last], places[other] = places[other], places[last]
    return places[:k]


def build(n: int, seed: int) -> list[Item]:
    """``n`` prompts of each source in drawn order, with empty slots.
    Raises UserError: a source has no file, a damaged one, or fewer than ``n`` rows."""
    items = []
    for source, origin in ORIGINS.items():
        rows = _rows(source)
        if n > len(rows):
            raise UserError(
                f"n={n} prompts of {source} cannot be drawn: its file has {len(rows)} rows. Type"
                f" n={len(rows)} or less."
            )
        places = drawn(len(rows), n, seed + origin.offset)
        for place in places:
            where, record = rows[place]
            items.append(_item(source, place, where, record))
    return items


def _rows(source: str) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """(file and row, fields) of every row of a source.
    Raises UserError: the data folder has no such file, or a damaged one."""
    path = data_folder() / FILES[ORIGINS[source].task]
    if not path.is_file():
        raise UserError(
            f"The bias set draws its prompts from {FILES[ORIGINS[source].task]}, but the folder"
            f" {data_folder()} does not hold it. Set {VARIABLE} to a folder that does."
        )
    return _read(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=len(ORIGINS))
def _read(path: Path, mtime: int) -> Sequence[tuple[str, Mapping[str, Any]]]:
    return [(f"{path}, {where}", record) for where, record in files.records(path, key="data")]


def _item(source: str, place: int, where: str, record: Mapping[str, Any]) -> Item:
    form = ORIGINS[source].form
    messages = _messages(record, where, form)
    if form == "verif":
        checkers, functions = verif.lists(record, where)
        spec: dict[str, object] = {"checkers": checkers, "functions": functions}
    else:
        spec = {"rubrics": prompts.rubrics(record) or []}
    extra = record.get("extra_info") or {}
    beside = {key: extra[key] for key in ("index", "original_id", "split") if key in extra}
    meta = {"row_index": place, "prompt_messages": messages, **beside}
    return {
        "id": f"{source}:val:{place}",
        "source": source,
        "split": "val",
        "ability": str(record.get("ability") or ""),
        "prompt": "\n\n".join(f"{turn['role']}:\n{turn['content']}" for turn in messages),
        "spec": spec,
        "meta": cast(Meta, meta),
        "response_types": list(TYPES),
        "responses": dict.fromkeys(_ORDER, ""),
        "notes": "",
    }


def _messages(record: Mapping[str, Any], where: str, form: str) -> list[dict[str, str]]:
    return list(prompts.parse(record, where, prompts.Options(form=form)).messages)


def read(path: Path) -> list[Item]:
    """The prompts of a file, in its order. Raises UserError: no bias set, NUL bytes, an id twice,
    or a row that the data do not have; with the line."""
    items, lines = [], dict[str, str]()
    for where, record in slot_lines(path):
        item = _checked(record, f"{path}, {where}")
        if item["id"] in lines:
            raise UserError(
                f"{path}, {where}: the id {item['id']} is also on {lines[item['id']]}. Remove one"
                " of the two lines."
            )
        lines[item["id"]] = where
        items.append(item)
    if not items:
        raise UserError(f"{path} holds no prompt, so it is no bias set. {FORM}")
    for source in ORIGINS:
        _compare(path, source, [item for item in items if item["source"] == source], lines)
    return items


def slot_lines(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """(line, object) of a JSONL file of slots.
    Raises UserError: no such file, NUL bytes, or a line that is no JSON object."""
    if not path.is_file():
        raise UserError(f"{path} is not a file (looked in {Path.cwd()}). {FORM}")
    data = path.read_bytes()
    if (first := data.find(b"\0")) >= 0:
        count, line = data.count(b"\0"), data.count(b"\n", 0, first) + 1
        raise UserError(
            f"{path}, line {line}: {count} NUL bytes where text should be: a writer was cut off,"
            " or a disk lost a block, and the text there is lost. Use a complete copy, or remove"
            " the bytes: tr -d '\\000' <FILE >WHOLE"
        )
    return list(files.records(path))


def _checked(record: Mapping[str, Any], where: str) -> Item:
    """The item of a line. Raises UserError: what it lacks, or what does not fit in it."""

    def refuse(problem: str) -> None:
        raise UserError(f"{where}: {problem}. {FORM}")

    if lacking := [key for key in _KEYS if key not in record]:
        refuse(f"the line is not of a bias set, for it has no {', '.join(lacking)}")
    name = record["id"] if isinstance(record["id"], str) else ""
    address = _ID.fullmatch(name)
    if address is None:
        refuse(f"found the id {files.short(record['id'])}")
    assert address is not None
    meta, responses = record["meta"], record["responses"]
    for key, value in (("spec", record["spec"]), ("meta", meta), ("responses", responses)):
        if not isinstance(value, dict):
            refuse(f"found {key} that are {files.short(value)}")
    if strange := sorted(map(str, responses.keys() - {*TYPES})):
        refuse(f"responses has the slot {strange[0]!r}; legal slots are {', '.join(TYPES)}")
    if wrong := [slot for slot, text in responses.items() if not isinstance(text, str | None)]:
        refuse(f"the slot {wrong[0]} holds {files.short(responses[wrong[0]])} and no text")
    check_made(record.get("made", {}), where)
    if record["source"] != address[1] or meta.get("row_index") != int(address[2]):
        refuse(f"the id {name} is of another source or row than source and meta.row_index")
    if record["split"] != "val":
        refuse(f"found split={files.short(record['split'])}, but the rows are of val")
    if not isinstance(meta.get("prompt_messages"), list):
        refuse("meta.prompt_messages is not a list of chat turns")
    _messages({"prompt": meta["prompt_messages"]}, where, "rubric")
    return cast(Item, {**record, "responses": dict.fromkeys(_ORDER, "") | responses})


def check_made(made: object, where: str) -> None:
    """Refuse a ``made`` that cannot be read. Raises UserError: with the line and the entry."""
    for entry in made.values() if isinstance(made, dict) else [made]:
        if not (
            isinstance(entry, dict)
            and "author" in entry
            and all(isinstance(entry.get(key, ""), str) for key in _MADE)
            and isinstance(entry.get("from"), str | None)
            and isinstance(entry.get("checks", {}), dict)
        ):
            raise UserError(
                f"{where}: found {files.short(entry)} under `made`. Legal is an object with one"
                f" entry a slot: {{{', '.join(_MADE)} and from: texts, of which author is required,"
                " checks: {name: true, false or null}}. Correct it, or leave `made` out."
            )


def _compare(path: Path, source: str, items: Sequence[Item], lines: Mapping[str, str]) -> None:
    """Refuse prompts that are not those of the data; without the data nothing can be compared.
    Raises UserError: with the line, and what the data have."""
    try:
        rows = _rows(source) if items else []
    except UserError:
        return
    for item in items:
        place, where = item["meta"]["row_index"], f"{path}, {lines[item['id']]}"
        if place >= len(rows):
            raise UserError(
                f"{where}: the id {item['id']} names a row that the data do not have: {source} has"
                f" {len(rows)} rows, from 0 on. Remove the line, or name the data that it is from"
                " in JUDGEDRIFT_DATA."
            )
        set_name, record = rows[place]
        if _messages(record, set_name, ORIGINS[source].form) != item["meta"]["prompt_messages"]:
            raise UserError(
                f"{where}: the prompt of {item['id']} is not that of row {place} of the data"
                f" ({set_name}). Remove the line, or name the data that it is from in"
                " JUDGEDRIFT_DATA."
            )


def write(path: Path, items: Sequence[Item]) -> None:
    """Replace the file by these prompts."""
    lines = (writable(json.dumps(item, ensure_ascii=False)) + "\n" for item in items)
    write_text(path, "".join(lines))


def row_of(item: Item, where: str = "") -> Row:
    """The prompt with its criteria and rules, as a judge is asked about it."""
    spec, form = item.get("spec") or {}, ORIGINS[item["source"]].form
    fields = {**spec, "prompt": item["meta"]["prompt_messages"]}
    return prompts.parse(fields, where or item["id"], prompts.Options(form=form))


def answer(item: Item, slot: str) -> str | None:
    """The text of a slot without thinking; None where there is none."""
    text = item["responses"].get(slot)
    return (answer_of(text) or None) if text else None


def digest(text: str) -> str:
    """Hex SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def author(record: Mapping[str, Any], slot: str) -> Made:
    """The entry of ``made`` that says who wrote the text of a slot; empty where nothing does, or
    where the text was changed since."""
    text = (record.get("responses") or {}).get(slot)
    entry = (record.get("made") or {}).get(slot) or {}
    return {**entry} if text and entry.get("sha256") == digest(text) else {}


def summary(path: Path, items: Sequence[Item]) -> Summary:
    """Counts of a file, for the screen."""
    slots: dict[str, SlotCounts] = {}
    for slot in TYPES:
        by = Counter(
            author(item, slot).get("author", "unknown") for item in items if item["responses"][slot]
        )
        reasons = Counter(
            (item.get("made") or {}).get(slot, {}).get("missing", "")
            for item in items
            if item["responses"][slot] is None
        )
        failed = Counter(
            name
            for item in items
            for name, passed in author(item, slot).get("checks", {}).items()
            if passed is False
        )
        slots[slot] = {
            "filled": sum(by.values()),
            "missing": sum(reasons.values()),
            "by": dict(by),
            "reasons": dict(reasons),
            "failed_checks": dict(failed),
        }
    sources = dict(Counter(item["source"] for item in items))
    return {"path": str(path), "sha256": sha256(path), "sources": sources, "slots": slots}
