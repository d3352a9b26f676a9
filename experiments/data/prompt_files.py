"""A file of prompts, prepared once and verified later: every row in the plain short form with its
split, and beside it a manifest: hashes of source and rows, what was read, merged and left out, and
how far the splits overlap."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, cast

from study.config.schema import Task
from study.errors import UserError
from study.rows import Row
from study.system.files import read_json, sha256, write_json, write_text
from study.tasks import prompts
from study.tasks.prompts import Prompts
from study.tasks.rules import infeasible
from study.tasks.where import task_path

WORDS = 13
"""Words in a row that two prompts share to count as overlapping, as in GPT-3's decontamination."""
SHOWN = 5
MANIFEST = ".manifest.json"
_WORD = re.compile(r"\w+")


class Leakage(TypedDict):
    """How far rows repeat each other; see `leakage`."""

    near_duplicates: int
    eval_in_train: int
    eval_overlapping: int
    examples: list[str]


class Description(TypedDict):
    """Counts of a loaded task."""

    task: str
    options: dict[str, object]
    rows: dict[str, int]
    turns: dict[str, int]
    prompt_characters: dict[str, int]
    criteria: dict[str, float | None]
    rules: dict[str, object]
    items_per_row: dict[str, int]
    leakage: Leakage


class Manifest(Description):
    """What stands beside a prepared file."""

    source: dict[str, str]
    """Name and sha256."""
    sha256: str
    """Of the rows."""


def short_form(row: Row, form: str) -> dict[str, object]:
    """A row as one line of the prepared file; `prompts.parse` reads it back to the same row."""
    turns = [dict(turn) for turn in row.messages]
    if form == "verif":
        checkers = [f"[llm] {item.text}" for item in row.criteria]
        checkers += [f"[rule] {rule.text}" for rule in row.rules]
        functions = [""] * len(row.criteria) + [rule.source for rule in row.rules]
        return {
            "prompt": turns,
            "checkers": checkers,
            "functions": functions,
            "split": row.split,
        }
    rubrics = [
        {"criterion": item.text, "points": item.points, "tags": item.tags} for item in row.criteria
    ]
    keys = ("category", "text", "source", "points")
    rules = [{key: getattr(rule, key) for key in keys} for rule in row.rules]
    record = {"prompt": turns, "rubrics": rubrics, "split": row.split}
    return {**record, **({"rules": rules} if rules else {})}


def leakage(rows: Sequence[Row]) -> Leakage:
    """How far rows repeat each other, and how far the eval split has been seen in training.

    Returns:
        ``near_duplicates``: rows whose words another row has too; ``eval_in_train``: eval rows
        whose words a train row has; ``eval_overlapping``: eval rows that share 13 words in a row
        with a train row; and the ids of the first few.
    """
    words = {row.prompt_id: tuple(_WORD.findall(row.prompt_text().lower())) for row in rows}
    count = Counter(words.values())
    train = {words[row.prompt_id] for row in rows if row.split == "train"}
    grams = {gram for text in train for gram in _grams(text)}
    held_out = [row.prompt_id for row in rows if row.split == "eval"]
    same = [name for name in held_out if words[name] in train]
    overlapping = [name for name in held_out if not grams.isdisjoint(_grams(words[name]))]
    return {
        "near_duplicates": sum(number for number in count.values() if number > 1),
        "eval_in_train": len(same),
        "eval_overlapping": len(overlapping),
        "examples": list(dict.fromkeys([*same, *overlapping]))[:SHOWN],
    }


def _grams(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [words[start : start + WORDS] for start in range(len(words) - WORDS + 1)]


def description(task: Task, loaded: Prompts) -> Description:
    """Counts of a loaded task, for the screen and the manifest."""
    rows = loaded.rows
    criteria = [item for row in rows for item in row.criteria]
    rules = [rule for row in rows for rule in row.rules]
    sizes = [len(row.criteria) + len(row.rules) for row in rows]
    lengths = sorted(len(row.prompt_text()) for row in rows)
    return {
        "task": task.name,
        "options": dict(task.options),
        "rows": {
            "read": loaded.read,
            "distinct": len(rows),
            "merged": loaded.merged,
            "too_long": loaded.dropped,
            "unfit": loaded.unfit,
            **Counter(row.split for row in rows),
        },
        "turns": dict(sorted(Counter(str(len(row.messages)) for row in rows).items())),
        "prompt_characters": {
            "least": lengths[0],
            "median": lengths[len(lengths) // 2],
            "most": lengths[-1],
        },
        "criteria": {
            "n": len(criteria),
            "negative": sum(item.points < 0 for item in criteria),
            "least_points": min((item.points for item in criteria), default=None),
            "most_points": max((item.points for item in criteria), default=None),
        },
        "rules": {
            "n": len(rules),
            "rows": sum(bool(row.rules) for row in rows),
            "infeasible": sum(infeasible(rule.text) is not None for rule in rules),
            "categories": dict(sorted(Counter(rule.category for rule in rules).items())),
        },
        "items_per_row": {"least": min(sizes), "most": max(sizes)},
        "leakage": leakage(rows),
    }


def prepare(task: Task, out: Path) -> Manifest:
    """Write rows and manifest, and return the manifest. Raises UserError where ``out`` does not end
    in .jsonl or is the source, or the rows are not of the form."""
    source = task_path(task)
    if out.suffix != ".jsonl" or out.resolve() == source.resolve():
        raise UserError(f"out={out} must end in .jsonl and be another file than {source}.")
    loaded = prompts.load(task)
    form = str(task.options.get("form", "rubric"))
    lines = [json.dumps(short_form(row, form), ensure_ascii=False) + "\n" for row in loaded.rows]
    write_text(out, "".join(lines))
    manifest: Manifest = {
        **description(task, loaded),
        "source": {"name": source.name, "sha256": sha256(source)},
        "sha256": sha256(out),
    }
    write_json(out.with_suffix(MANIFEST), manifest)
    return manifest


def verify(path: Path) -> Manifest:
    """The manifest of a prepared file. Raises UserError where file or manifest is missing, or says
    something else than the other."""
    manifest_path = path.with_suffix(MANIFEST)
    manifest = read_json(manifest_path)
    if not path.is_file() or not manifest:
        raise UserError(
            f"path={path} is not a prepared file: its manifest {manifest_path.name} is missing."
            f" Type: python -m experiments.data prepare task=NAME out={path}"
        )
    digest = sha256(path)
    if digest != manifest["sha256"]:
        raise UserError(
            f"path={path} has the sha256 {digest[:16]}..., but its manifest says"
            f" {manifest['sha256'][:16]}...: it was changed later. Prepare it again."
        )
    form = manifest["options"].get("form", "rubric")
    task = Task(name=manifest["task"], path=str(path), options={"form": form})
    rows = manifest["rows"]
    again = description(task, prompts.load(task))["rows"]
    noted = {key: rows.get(key, 0) for key in ("distinct", "train", "eval")}
    if {key: again.get(key, 0) for key in noted} != noted:
        raise UserError(f"path={path} reads as {again}, but its manifest says {noted}.")
    return cast(Manifest, manifest)
