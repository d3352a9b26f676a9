"""Reads stored replies again, with no endpoint: ``python -m judges.parse grading=... replies=...``.

The code is the one that reads replies while a study runs, so a change of the judge and a change of
the parser can be told apart.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from judges.grading import GRADINGS
from judges.grading.base import Grading
from judges.grading.rubric import Rubric
from study.cell.completions import json_object, sound_records
from study.cli import command, option, writes
from study.config.bounds import Choice
from study.errors import UserError
from study.rows import Criterion, make_row
from study.system.files import write_text
from study.verdict import Outcome, Parsed, Reply, Request

READABLE = ("rubric_batch", "rubric_chunk", "rubric_item", "verif", "binary", "likert")
"""Gradings whose verdict on an answer is all in one text."""
OPTIONS = {"vocabulary": ("rubric", "verif"), "clip": ("rubric",), "partial": ("rubric",)}
"""Option -> beginnings of the names of the gradings that have it."""


@dataclass(frozen=True)
class Options:
    """The recorded replies, and the grading that reads them."""

    grading: str = option("grading that reads the replies", required=True, legal=Choice(READABLE))
    replies: Path = option(
        "JSONL of {id, text}; optional: criteria ([{points}], in the order the judge was shown),"
        " reasoning, finish_reason. Without criteria there are as many as the largest number in the"
        " reply's verdict, of 1 point each; a truncated verdict then has no score",
        required=True,
    )
    out: Path = option(
        "JSONL of {id, outcome, labels, score}, written once all replies are read. The score is"
        " the points of the met criteria / all positive points; null where it is missing, never 0"
        " instead",
        required=True,
    )
    vocabulary: str | None = option("words of the grading's labels")
    clip: str | None = option("zero (default): scores below 0 become 0; none: they stay")
    partial: str | None = option(
        "none (default): a label that is missing makes the score missing; renormalise: the score is"
        " over the criteria whose label is known"
    )

    @property
    def grading_options(self) -> dict[str, str]:
        """Options of the grading that were given."""
        return {key: value for key in OPTIONS if (value := getattr(self, key)) is not None}

    def check(self) -> None:
        """Refuse files that cannot be, and options that the grading does not have."""
        if not self.replies.is_file():
            raise UserError(f"replies={self.replies} is not a file.")
        if self.out.is_dir() or self.out.resolve() == self.replies.resolve():
            wrong = "a folder" if self.out.is_dir() else "the file of the replies"
            raise UserError(f"out={self.out} is {wrong}. Give another name, such as labels.jsonl.")
        for key, value in self.grading_options.items():
            if not self.grading.startswith(OPTIONS[key]):
                raise UserError(
                    f"{key}={value} has no meaning with grading={self.grading}. Leave it out."
                )


@dataclass(frozen=True)
class Record:
    """One stored reply."""

    id: Any
    reply: Reply
    points: tuple[float, ...] | None
    """Points of each criterion; None if they were not kept."""


def read_records(data: bytes) -> tuple[list[Record], int]:
    """All sound records of a JSONL file, and how many are lost; see `completions.sound_records`."""
    records, lost = sound_records(data, _record)
    return [record for _, record in records], lost


def _record(piece: bytes) -> Record | None:
    """The record in a line, if it is one."""

    def text(value: Any) -> str:
        if not isinstance(value, str | None):
            raise TypeError("not a text")
        return value or ""

    def number(value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise TypeError("not a finite number")
        return float(value)

    data = json_object(piece)
    if data is None:
        return None
    try:
        finish = text(data.get("finish_reason")) or "stop"
        reply = Reply(text(data["text"]), text(data.get("reasoning")), finish)
        points = None
        if data.get("criteria") is not None:
            points = tuple(number(item.get("points", 1.0)) for item in data["criteria"])
        return Record(data["id"], reply, points)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


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
        reason = "the reply is truncated and its number of criteria is unknown"
        return Parsed(Outcome.unparsed, whole.labels, reason=reason)
    return whole


def run(options: Options) -> str:
    """Read the replies and write what was found; the summary.
    Raises UserError: an option that the grading does not take, or a file that cannot be written."""
    try:
        grading = GRADINGS[options.grading](options.grading_options)
    except UserError as problem:  # the options as this command line spells them
        words = str(problem).replace("+judge.grading.options.", "")
        raise UserError(words.replace("judge.grading.options.", "")) from None
    try:
        records, lost = read_records(options.replies.read_bytes())
    except OSError as problem:
        raise UserError(f"replies={options.replies} cannot be read: {problem.strerror}.") from None
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
    with writes("out", options.out):
        write_text(options.out, "".join(lines))
    summary = "".join(f", {number} {outcome}" for outcome, number in sorted(outcomes.items()))
    return f"{len(records)} replies read{summary}; {lost} lost records. Wrote {options.out}"


@command(
    "judges.parse grading=rubric_batch vocabulary=present replies=replies.jsonl out=labels.jsonl",
    __doc__,
    Options,
)
def main(options: Options) -> int:
    """Exit codes: 0 written, 2 for a user's error."""
    print(run(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
