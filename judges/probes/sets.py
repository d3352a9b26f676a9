"""Where probes come from: the built-in task, another task's references, or a JSONL of slots.

A line of the file is ``{prompt, responses: {slot: text}, reference?, spec? | rubrics?}``; slots
without text are empty and are filled by rules where a text to start from is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from judges.probes import mini
from judges.probes.biasset import author, check_made, slot_lines
from judges.probes.variants import BASES, SLOTS, Source
from study.answers import answer_of
from study.config.schema import Task
from study.errors import UserError
from study.rows import Row, RuleTruth
from study.tasks import kind_of
from study.tasks.files import short
from study.tasks.kind import TaskKind
from study.tasks.prompts import Options, parse

BUILT_IN = "instruct-mini"
CONTENTS = {slot: base for base, slot in BASES.items()}
"""Slots of a file that are contents: what is edited, and not an edit."""
MOST_AWAY = 2048
"""Training prompts that the selection keeps away from, at most."""


@dataclass(frozen=True)
class ProbeSet:
    """Prompts that can be probed, and what should be kept away from."""

    sources: list[Source]
    away: list[str]
    """Training prompts of the same task."""
    notes: list[str]
    """What was left out, and why."""


def is_file(name: str) -> bool:
    """Whether a set is a file of slots rather than a task."""
    return name.endswith(".jsonl")


def load_set(name: str, task: Task | None = None, seed: int = 0) -> ProbeSet:
    """The set called ``name``: a path that ends in ``.jsonl``, or the composed ``task``; ``seed``
    is that of the built-in task's contents.
    Raises UserError: an unreadable file, a line that is not of the form, or nothing to probe."""
    if is_file(name):
        return read_slots(Path(name).expanduser())
    assert task is not None, "a set is a file or a task"

    kind = kind_of(task)
    rows: Sequence[Row] = kind.rows(task, "eval")
    away = [row.prompt_text() for row in islice(kind.rows(task, "train"), MOST_AWAY)]
    is_built_in = task.name == BUILT_IN
    sources = [
        Source(
            row,
            mini.contents(row, seed) if is_built_in else {"correct": row.reference or ""},
            stratum=mini.stratum(row) if is_built_in else _stratum(row),
            truth=partial(_truth, kind, row),
        )
        for row in rows
        if is_built_in or row.reference
    ]
    if not sources:
        raise UserError(
            f"set={name}: none of the {len(rows)} eval prompts of the task {task.name} has a"
            " reference answer to make variants of. Give a file of slots, set=FILE.jsonl, whose"
            " lines are {prompt, responses: {ycorrect: ...}}, or set=instruct-mini."
        )
    without = len(rows) - len(sources)
    notes = [f"{without} of {len(rows)} prompts have no reference answer"] if without else []
    return ProbeSet(sources, away, notes)


def _truth(kind: TaskKind, row: Row, text: str) -> RuleTruth:
    return kind.truths([row], [text])[0]


def read_slots(path: Path) -> ProbeSet:
    """A file of slots.
    Raises UserError: no such file, a line that is not of the form, a prompt twice, or no prompt
        with any text to start from."""
    if not path.is_file():
        raise UserError(
            f"set={path} is not a file (looked in {Path.cwd()}). Give a .jsonl of"
            " {prompt, responses}, or set=instruct-mini."
        )
    sources: dict[str, Source] = {}
    lost: list[str] = []
    failed: Counter[str] = Counter()
    for number, (place, record) in enumerate(slot_lines(path), start=1):
        where = f"{path}, {place}"
        _check(record, where)
        source = _source(record, where, number, failed)
        if not source.contents:
            lost.append(f"{place} has no answer in any slot")
        elif source.row.prompt_id in sources:
            raise UserError(f"{where}: the prompt is in the file twice. Remove one of the two.")
        else:
            sources[source.row.prompt_id] = source
    if not sources:
        raise UserError(
            f"set={path} holds no prompt with a text to start from{': ' if lost else ''}"
            f"{'; '.join(lost[:3])}. Fill responses.ycorrect or responses.ypolicy_raw, or give a"
            " reference."
        )
    lost += [f"{count} x {why}" for why, count in sorted(failed.items())]
    return ProbeSet(list(sources.values()), [], lost)


def _check(record: Mapping[str, Any], where: str) -> None:
    for key in ("spec", "meta"):
        if not isinstance(record.get(key) or {}, dict):
            raise UserError(
                f"{where}: found {key} that is {short(record[key])}, which is not an object."
            )
    if not isinstance(record.get("reference"), str | None):
        raise UserError(
            f"{where}: found reference {short(record['reference'])}, which is not text."
        )
    check_made(record.get("made") or {}, where)
    responses = record.get("responses", {})
    slots = sorted({*CONTENTS, *SLOTS})
    if not isinstance(responses, dict) or not all(
        isinstance(text, str | None) for text in responses.values()
    ):
        raise UserError(
            f"{where}: found no object with `responses`: {{slot: text}}. Slots are"
            f" {', '.join(slots)}."
        )
    if strange := sorted(responses.keys() - slots):
        raise UserError(
            f"{where}: responses has the slot {strange[0]!r}. Slots are {', '.join(slots)}."
        )


def _source(record: Mapping[str, Any], where: str, number: int, failed: Counter[str]) -> Source:
    """The prompt of a line; a variant that failed a check when it was written is left out, and
    counted in ``failed``."""
    spec = record.get("spec") or {}
    meta = record.get("meta") or {}
    form = "verif" if spec.get("checkers") is not None else "rubric"
    prompt = meta.get("prompt_messages") or record.get("prompt")
    fields = {"rubrics": record.get("rubrics"), **spec, "prompt": prompt}
    row = replace(
        parse(fields, where, Options(form=form), number), dataset=str(record.get("source") or "")
    )
    texts = {"ycorrect": record.get("reference")}
    texts |= {slot: text for slot, text in (record.get("responses") or {}).items() if text}
    answers = {slot: answer for slot, text in texts.items() if text and (answer := answer_of(text))}
    contents = {base: answers[slot] for slot, base in CONTENTS.items() if slot in answers}
    authors = {slot: author(record, slot) for slot in answers}
    slot_texts = {}
    for slot in SLOTS:
        wrong = [
            name for name, ok in authors.get(slot, {}).get("checks", {}).items() if ok is False
        ]
        if wrong:
            failed[f"{slot}: left out, it failed its check of {wrong[0]}"] += 1
        elif slot in answers:
            slot_texts[slot] = (answers[slot], str(authors[slot].get("how") or "set"))
    return Source(
        row,
        contents,
        slot_texts,
        stratum=_stratum(row),
        by={
            slot: (str(e["author"]), str(e.get("family") or "")) for slot, e in authors.items() if e
        },
        bases={
            slot: CONTENTS[start]
            for slot, e in authors.items()
            if (start := e.get("from")) and start in CONTENTS
        },
    )


def _stratum(row: Row) -> str:
    """Prompts of one length, to a factor of four, and with or without criteria."""
    length = len(row.prompt_text()).bit_length() // 2
    return f"{'criteria' if row.criteria else 'free'} {length}"
