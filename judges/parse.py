"""Reads stored replies again, with no endpoint: ``python -m judges.parse grading=... replies=...``.

The replies go through the very code that reads them while a study runs, so "the judge changed"
and "the parser changed" can be told apart.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from judges.grading import GRADINGS
from judges.grading.base import Grading
from judges.grading.rubric import Rubric
from study.completions import sound_records
from study.errors import UserError
from study.files import write_text
from study.rows import Criterion, make_row
from study.verdict import Outcome, Parsed, Reply, Request

USAGE = (
    "python -m judges.parse grading=rubric_batch vocabulary=present replies=FILE.jsonl"
    " out=FILE.jsonl [clip=zero] [partial=none]"
)
HELP = """
replies  JSONL of {id, text}; optional: criteria ([{points}], in the order the judge was shown),
         reasoning, finish_reason. Without criteria there are as many as the largest number in the
         reply's verdict, of 1 point each; a verdict that is cut is not scored then.
out      JSONL of {id, outcome, labels, score}, written when all is read. The score is the points
         of the met criteria / all positive points; null where it is missing, never 0 instead.
clip     zero (default): scores below 0 become 0; none: they stay.
partial  none (default): a label that is missing makes the score missing; renormalise: the score is
         over the criteria whose label is known.
"""
READABLE = ("rubric_batch", "rubric_chunk", "rubric_item", "verif", "binary", "likert")
"""Gradings whose verdict on an answer is all in one text."""
OPTIONS = {"vocabulary": ("rubric", "verif"), "clip": ("rubric",), "partial": ("rubric",)}
"""Option -> beginnings of the names of the gradings that have it."""


@dataclass(frozen=True)
class Command:
    """The command line, read."""

    grading: str
    replies: Path
    out: Path
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """One stored reply."""

    id: Any
    reply: Reply
    points: tuple[float, ...] | None
    """Of each criterion; None where nobody kept them."""


def read_command(arguments: Sequence[str]) -> Command:
    """Read ``key=value`` arguments.

    Raises:
        UserError: something else than key=value, an unknown key or grading, or a missing one.
    """
    values: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not value or key not in ("grading", "replies", "out", *OPTIONS):
            raise UserError(f"{argument!r} is no argument of judges.parse. Type {USAGE}")
        values[key] = value
    missing = [key for key in ("grading", "replies", "out") if key not in values]
    if missing:
        raise UserError(f"judges.parse needs {missing[0]}=. Type {USAGE}")
    if values["grading"] not in READABLE:
        raise UserError(
            f"grading={values['grading']} is none whose verdict stands in one reply. Give"
            f" {', '.join(READABLE)}; type {USAGE}"
        )
    replies, out = Path(values["replies"]), Path(values["out"])
    if not replies.is_file():
        raise UserError(f"replies={replies} is no file. Type {USAGE}")
    if out.is_dir() or out.resolve() == replies.resolve():
        raise UserError(
            f"out={out} is {'a folder' if out.is_dir() else 'the file of the replies'}. Give"
            " another name, for example out=labels.jsonl."
        )
    options = {key: values[key] for key in OPTIONS if key in values}
    for key in options:
        if not values["grading"].startswith(OPTIONS[key]):
            raise UserError(
                f"{key}={options[key]} means nothing for grading={values['grading']}; leave it out."
            )
    return Command(values["grading"], replies, out, options)


def read_records(data: bytes) -> tuple[list[Record], int]:
    """All sound records of a JSONL file, and how many are lost (see `importers.sound_records`)."""
    found, lost = sound_records(data, _record)
    return [record for _, record in found], lost


def _record(piece: bytes) -> Record | None:
    """The record in a line, if it is one."""
    try:
        data = json.loads(piece.decode("utf-8-sig"))
        reply = Reply(
            _text(data["text"]),
            reasoning=_text(data.get("reasoning")),
            finish_reason=_text(data.get("finish_reason")) or "stop",
        )
        given = data.get("criteria")
        points = None if given is None else tuple(_points(item) for item in given)
        return Record(data["id"], reply, points)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None


def _text(value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value or ""


def _points(item: Any) -> float:
    points = item.get("points", 1.0)
    if isinstance(points, bool) or not isinstance(points, int | float) or not math.isfinite(points):
        raise TypeError
    return float(points)


def read_reply(grading: Grading, reply: Reply, points: Sequence[float] | None) -> Parsed:
    """What a grading reads in one stored reply about criteria of these points."""
    if not isinstance(grading, Rubric):
        return grading.parse(reply)
    count, cut = grading.count(reply) if points is None else (len(points), False)
    worth = [1.0] * count if points is None else list(points)
    request = Request(criteria=tuple(range(len(worth))))
    parsed = grading.parse(reply, request)
    if not worth:
        return parsed
    criteria = tuple(Criterion(f"criterion {place}", value) for place, value in enumerate(worth))
    whole = grading.combine(make_row((), criteria), [(request, parsed)])
    if cut and whole.outcome is Outcome.scored:
        reason = "the reply is cut, and nobody kept how many criteria there were"
        return Parsed(Outcome.unparsed, whole.labels, reason=reason)
    return whole


def build(command: Command) -> Grading:
    """The grading, with its options spelled as this command line spells them.

    Raises:
        UserError: an option that it does not take.
    """
    try:
        return GRADINGS[command.grading](command.options)
    except UserError as problem:
        said = str(problem).replace("+judge.grading.options.", "")
        raise UserError(said.replace("judge.grading.options.", "")) from None


def run(command: Command) -> str:
    """Read the replies and write what was found; the summary.

    Raises:
        UserError: an option that the grading does not take, or a file that cannot be written.
    """
    grading = build(command)
    try:
        records, lost = read_records(command.replies.read_bytes())
    except OSError as problem:
        raise UserError(f"replies={command.replies} cannot be read: {problem.strerror}.") from None
    lines, outcomes = [], Counter[str]()
    for record in records:
        parsed = read_reply(grading, record.reply, record.points)
        outcomes[parsed.outcome.value] += 1
        line = {
            "id": record.id,
            "outcome": parsed.outcome.value,
            "labels": list(parsed.labels),
            "score": parsed.score,
        }
        lines.append(json.dumps(line) + "\n")
    try:
        write_text(command.out, "".join(lines))
    except OSError as problem:
        raise UserError(
            f"out={command.out} cannot be written: {problem.strerror}. Give another name, for"
            " example out=labels.jsonl."
        ) from None
    counted = "".join(f", {number} {outcome}" for outcome, number in sorted(outcomes.items()))
    return f"{len(records)} replies read{counted}; {lost} lost records. Wrote {command.out}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 2 for what the user can put right."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if any(argument in ("-h", "--help") for argument in given):
        print(f"{__doc__}\n{USAGE}\n{HELP}")
        return 0
    try:
        print(run(read_command(given)))
    except UserError as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
