"""Tasks that read a JSONL or Parquet file of prompts: ``verinstruct``, ``healthbench``, ...

A row is ``{prompt, rubrics?, reference?, split?}``: ``prompt`` is a text or a list of chat turns,
``rubrics`` a list of ``{criterion, points?, tags?}``, ``reference`` a right answer. verl's
``reward_model.rubrics`` is read as well, and with ``form: verif`` the checkers and functions of its
``ground_truth`` (`study.tasks.verif`).
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from study.config import bounds
from study.config.schema import Task, task_options
from study.errors import UserError
from study.rows import Criterion, Row, Rule, Truth, make_row
from study.tasks import files, verif
from study.tasks.files import refuse, short
from study.tasks.kind import RuledTask
from study.tasks.lessons import MOST_ROWS, Lessons, of_references
from study.tasks.where import task_path
from study.truth import qa
from study.truth.score import LONGEST

ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")
ROLES = ("system", "developer", "user", "assistant", "tool")
SPLITS = {"train": "train", "eval": "eval", "val": "eval", "validation": "eval", "test": "eval"}
PROMPT, RUBRICS = ("prompt", "query"), ("rubrics", "rubric")
"""Columns by preference; the second name is the one that ResearchQA has."""
CRITERION = ("criterion", "text", "rubric_item")
USED = (
    *(*PROMPT, *RUBRICS, "rules", "checkers", "functions", "reward_model", "extra_info", "split"),
    "reference",
)


@dataclass(frozen=True)
class Options:
    """``task.options`` of a task that reads a file."""

    max_prompt_chars: int | None = bounds.number(None, low=1)
    """Longer prompts are left out, and counted."""
    eval_share: float = bounds.number(0.1, low=0, below=1)
    """Without a ``split`` field, this share of all groups is set aside by a hash of the group."""
    group_key: str = ""
    """Field (of the row or its extra_info) whose value makes rows one group; empty: the prompt."""
    form: str = bounds.choice("rubric", "rubric", "verif")
    """rubric, or verif: checkers and functions."""
    needs: str = bounds.choice("nothing", "nothing", "criteria", "rules")
    """What every row must have: nothing, criteria (gradable by a rubric) or rules."""
    on_unfit: str = bounds.choice("error", "error", "drop")
    """What a row without it is: error, or drop, which counts it."""


OPTIONS = Options()


@dataclass(frozen=True)
class Prompts:
    """What a file gave: distinct rows in file order, and what happened to the others."""

    rows: tuple[Row, ...]
    read: int
    merged: int
    """Rows whose prompt had come before; their criteria were added to it."""
    dropped: int
    """Rows longer than ``max_prompt_chars``."""
    unfit: int = 0
    """Rows that lack what ``needs`` asks for, where ``on_unfit`` drops them."""


def has_reference(row: Row) -> bool:
    """Whether the row says what is right."""
    return bool((row.reference or "").strip())


def same(answer: str, reference: str) -> bool:
    """Whether two texts are the same, or the same span in SQuAD's normal form: case, articles and
    punctuation do not count. A text of more than `LONGEST` characters is not read."""
    if len(answer) > LONGEST:
        return False
    if answer.strip() == reference.strip():
        return True
    wanted = qa.normalised(reference)
    return bool(wanted) and qa.normalised(qa.span(answer)) == wanted


def load(options: Task) -> Prompts:
    """All rows of the file behind ``options``; what was merged or dropped is logged once.
    Raises UserError: see `rows`."""
    path = _path(options)
    stat = path.stat()
    return _load(path, stat.st_mtime_ns, stat.st_size, task_options(options, Options))


@functools.lru_cache(maxsize=4)
def _load(path: Path, mtime: int, size: int, options: Options) -> Prompts:
    rows_by_id: dict[str, Row] = {}
    read = merged = dropped = unfit = 0
    limit = options.max_prompt_chars
    for number, (where, record) in enumerate(records(path, options.group_key)):
        read += 1
        row = parse(record, f"{path}, {where}", options, number)
        problem = fault(row, options.needs)
        if problem:
            if options.on_unfit == "error":
                remedy = "correct or remove it, or type task.options.on_unfit=drop to leave it out"
                refuse(f"{path}, {where}", f"a row that has {problem}", remedy)
            unfit += 1
        elif limit is not None and len(row.prompt_text()) > limit:
            dropped += 1
        elif row.prompt_id in rows_by_id:
            merged += 1
            rows_by_id[row.prompt_id] = _merge(rows_by_id[row.prompt_id], row)
        else:
            rows_by_id[row.prompt_id] = row
    if not read:
        raise UserError(f"task.path={path} holds no rows. Give one JSON object per line.")
    if merged or dropped or unfit:
        logging.getLogger(__name__).warning(
            "%s: %d rows, %d distinct prompts; %d repeated ones merged, %d longer than %s"
            " characters dropped, %d unfit for needs=%s dropped",
            *(path, read, len(rows_by_id), merged, dropped, limit, unfit, options.needs),
        )
    return Prompts(tuple(rows_by_id.values()), read, merged, dropped, unfit)


def fault(row: Row, needs: str) -> str:
    """What a row lacks of ``needs``, in one clause; empty where it lacks nothing."""
    if needs == "rules" and not row.rules:
        return "no rule"
    if needs == "nothing":
        return ""
    texts = [item.text.strip() for item in row.criteria]
    if needs == "criteria" and not texts:
        return "no criteria"
    if len(set(texts)) < len(texts):
        repeated = next(text for place, text in enumerate(texts) if text in texts[:place])
        return f"the criterion {short(repeated)} twice"
    if texts and not any(item.points > 0 for item in row.criteria):
        return "no criterion with positive points"
    return ""


def parse(
    record: Mapping[str, Any], where: str, options: Options = OPTIONS, number: int = 0
) -> Row:
    """One row of the file as a Row; lists may also be numpy arrays. ``where`` is file and line, for
    messages; ``number`` is the place of the row in its file, which names its rules.
    Raises UserError: a missing or malformed field."""
    messages = _messages(record, where)
    labels = verif.checkers if options.form == "verif" else _rubric
    criteria, rules = labels(record, where, number)
    row = make_row(messages, criteria, reference=_reference(record, where), rules=rules)
    name = verif.plain(record.get("split"))
    if name is None:
        address = int(_group(record, where, options.group_key) or row.prompt_id, 16)
        return replace(row, split="eval" if address < options.eval_share * 16**16 else "train")
    if name not in SPLITS:
        refuse(where, f"split={name!r}", f"legal are {', '.join(SPLITS)}")
    return replace(row, split=SPLITS[name])


def _reference(record: Mapping[str, Any], where: str) -> str | None:
    reference = record.get("reference")
    if reference is not None and not isinstance(reference, str):
        refuse(
            where, f"the reference {short(reference)}", "a reference is one right answer, a text"
        )
    return reference


def _group(record: Mapping[str, Any], where: str, key: str) -> str:
    """16 hex digits of the row's group; empty where no key is asked for."""
    if not key:
        return ""
    extra = record.get("extra_info")
    holders = [record, extra] if isinstance(extra, Mapping) else [record]
    value = next((holder[key] for holder in holders if holder.get(key) is not None), None)
    if value is None:
        refuse(where, f"no {key}, which task.options.group_key names", "every row needs one")
    return hashlib.blake2b(str(value).encode(), digest_size=8).hexdigest()


def _messages(record: Mapping[str, Any], where: str) -> tuple[dict[str, str], ...]:
    form = "`prompt` is a text, or a list of chat turns {role, content} that ends with the user's"
    prompt = verif.plain(_first(record, PROMPT))
    if prompt is None:
        refuse(where, f"no field 'prompt' (it has {', '.join(map(str, record)) or 'none'})", form)
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(turns, list) or not turns:
        refuse(where, f"a prompt that is {short(prompt)}", form)
    for turn in turns:
        if not isinstance(turn, Mapping) or turn.get("role") not in ROLES:
            refuse(where, f"the turn {short(turn)}", f"{form}; roles are {', '.join(ROLES)}")
        if not isinstance(turn.get("content"), str):
            refuse(where, f"a turn whose content is {short(turn.get('content'))}", form)
    if turns[-1]["role"] != "user" or not turns[-1]["content"].strip():
        refuse(where, f"a prompt that ends with {short(turns[-1])}", form)
    return tuple({"role": turn["role"], "content": turn["content"]} for turn in turns)


def _rubric(
    record: Mapping[str, Any], where: str, number: int
) -> tuple[tuple[Criterion, ...], tuple[Rule, ...]]:
    """What a judge is asked about, and the items that name a rule instead."""
    form = "`rubrics` is a list of {criterion, points}: a text and, if you like, a number"
    items = verif.plain(rubrics(record))
    if items is None:
        return (), ()
    if not isinstance(items, list):
        refuse(where, f"rubrics that are {short(items)}", form)
    criteria: list[Criterion] = []
    rules: list[Rule] = []
    for place, item in enumerate(items):
        text = _first(item, CRITERION) if isinstance(item, Mapping) else None
        if not isinstance(text, str) or not text.strip():
            refuse(where, f"the rubric {short(item)}", form)
        points = 1.0 if item.get("points") is None else item["points"]
        is_number = isinstance(points, int | float) and not isinstance(points, bool)
        if not is_number or not math.isfinite(points):
            refuse(where, f"a rubric worth {short(points)} points", form)
        tags = _tags(verif.plain(item.get("tags")), where)
        if tags.get("verifier") == "rule":
            rules.append(verif.tagged_rule(f"{number}:{place}", text, float(points), tags, where))
        else:
            criteria.append(Criterion(text, float(points), tags))
    return tuple(criteria), (*rules, *verif.plain_rules(record.get("rules"), where, number))


def _tags(tags: Any, where: str) -> dict[str, object]:
    """Tags as a dict: they also come as a list of ``key:value``, and a lone key is True."""
    if tags is None:
        return {}
    if isinstance(tags, Mapping):
        return {str(key): verif.plain(value) for key, value in tags.items() if value is not None}
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        refuse(where, f"the tags {short(tags)}", "tags are an object, or a list of key:value")
    pairs = (tag.partition(":") for tag in tags)
    return {key: value.strip() if colon else True for key, colon, value in pairs}


def rubrics(record: Mapping[str, Any]) -> Any:
    """Rubrics of the row itself, else where verl's data keep them."""
    extra = record.get("extra_info")
    inner = extra.get("reward_model") if isinstance(extra, Mapping) else None
    for holder in (record, record.get("reward_model"), inner):
        if isinstance(holder, Mapping) and (rubric := _first(holder, RUBRICS)) is not None:
            return rubric
    return None


def _first(record: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The value of the first of ``names`` that is there."""
    return next((record[name] for name in names if record.get(name) is not None), None)


def _merge(first: Row, again: Row) -> Row:
    """The first row with the criteria, or the reference, that only the other has; eval wins over
    train."""
    added = tuple(item for item in again.criteria if item not in first.criteria)
    split = "eval" if "eval" in (first.split, again.split) else "train"
    texts = {rule.text for rule in first.rules}
    rules = first.rules + tuple(rule for rule in again.rules if rule.text not in texts)
    reference = first.reference or again.reference
    criteria = first.criteria + added
    return replace(first, criteria=criteria, rules=rules, split=split, reference=reference)


def records(path: Path, also: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(line or row, fields) of each row of a .jsonl, .jsonl.gz or .parquet file; ``also`` is a
    column to read besides those that `parse` looks at.
    Raises UserError: the file cannot be read, or a line is not an object."""

    def columns(names: list[str]) -> list[str]:
        # Where the prompt is missing, all columns are read, so that the message names them.
        whole = not set(PROMPT) & set(names)
        return [name for name in names if whole or name in (*USED, also)]

    return files.records(path, columns, "task.path")


def _path(options: Task) -> Path:
    path = task_path(options)
    if not path.is_file():
        raise UserError(
            f"task.path={path} is not a file (looked in {Path.cwd()}). Give a {', '.join(ENDINGS)}"
            " file of prompts."
        )
    if not path.name.endswith(ENDINGS):
        raise UserError(f"task.path={path} does not end in {', '.join(ENDINGS)}.")
    return path


def _draw(row: Row, options: Task) -> bytes:
    return hashlib.blake2b(f"{options.seed} {row.prompt_id}".encode(), digest_size=8).digest()


class PromptFile(RuledTask):
    """Rows of a file of prompts; a rule can tell where a row has a reference."""

    def tells_truth(self, rows: Sequence[Row]) -> bool:
        """Whether any of the rows has a reference."""
        return any(map(has_reference, rows))

    def rows(self, options: Task, split: str) -> list[Row]:
        """At most ``train_rows`` or ``eval_rows`` rows of a split, in file order.

        Where there are more, ``options.seed`` chooses which stay.
        Raises UserError: no readable file at ``options.path``, a row that is not of the form (file
            and line named), an unknown option, or no training row at all."""
        candidates = [row for row in load(options).rows if row.split == split]
        if split == "train" and not candidates:
            raise UserError(
                f"task.path={options.path} leaves no prompt to train on. Check its split column,"
                " task.options.eval_share and task.options.max_prompt_chars."
            )
        limit = options.train_rows if split == "train" else options.eval_rows
        sampled = sorted(candidates, key=lambda row: _draw(row, options))[:limit]
        sampled_ids = {row.prompt_id for row in sampled}
        return [row for row in candidates if row.prompt_id in sampled_ids]

    def truth(self, row: Row, answer: str) -> Truth | None:
        """Whether ``answer`` is the row's reference, as `same` compares; None where there is none:
        no rule can tell how good an answer to a free prompt is."""
        if not has_reference(row):
            return None
        right = same(answer, row.reference or "")
        return Truth(float(right), (right,))

    def lessons(self, options: Task) -> Lessons | None:
        """Lessons from the rows to train on that have a reference; None where none has.
        Raises UserError: see `rows`."""
        return of_references(self.rows(options, "train")[:MOST_ROWS], __file__)


TASK = PromptFile()
