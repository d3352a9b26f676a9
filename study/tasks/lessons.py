"""What a task brings for the tiny policy to learn from before RL: words, rows, a teacher's answers.

A task brings them by `TaskKind.lessons`. `of_references` makes them of any rows that
have a reference answer.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from study.rows import Row

MOST_WORDS = 2048
"""Different words that a policy knows as one token each, the most frequent ones first; every other
word is spelt in bytes."""
MOST_ROWS = 4096
"""Rows that lessons are drawn from."""
WRONG = 0.3
"""How often a teacher who has references alone gives that of another row."""


@dataclass(frozen=True)
class Lessons:
    """Everything that a policy learns of a task before RL.

    Attributes:
        texts: makes texts in which every word stands that prompts and answers are written with, as
            often as it counts; see `MOST_WORDS`.
        rows: (seed of the warm-up) -> rows to train on; none that is held out is among them.
        answer: (row, generator) -> what the teacher answers: right as a rule, and not always, so
            that RL has something to choose from.
        files: of the code and words behind these three. A change in one makes another policy.
        key: what else decides them, such as a hash of the rows.
    """

    texts: Callable[[], Iterable[str]]
    rows: Callable[[int], Sequence[Row]]
    answer: Callable[[Row, random.Random], str]
    files: tuple[str, ...]
    key: str = ""


def model_answer(lessons: Lessons | None, row: Row) -> str | None:
    """The one answer of a task's teacher to ``row`` that others are compared with, by a draw of the
    row's own: as right as the teacher's mostly are. None without lessons."""
    return None if lessons is None else lessons.answer(row, random.Random(row.prompt_id))


def of_references(rows: Sequence[Row], *files: str) -> Lessons | None:
    """Lessons whose teacher gives a row's reference, or, `WRONG` of the time, that of any row.
    None where no row has a reference. ``files`` are those of the task's own code."""
    pairs = [(row, row.reference) for row in rows if row.reference and row.reference.strip()]
    if not pairs:
        return None
    taught, references = [row for row, _ in pairs], [reference for _, reference in pairs]
    digest = hashlib.blake2b(digest_size=16)
    for row, reference in pairs:
        data = reference.encode()
        digest.update(f"{row.prompt_id} {len(data)} ".encode() + data)

    def answer(row: Row, draw: random.Random) -> str:
        right = row.reference or ""
        return draw.choice(references) if draw.random() < WRONG else right

    def texts() -> list[str]:
        prompts = [turn["content"] for row in taught for turn in row.messages]
        return [*prompts, *references]

    return Lessons(texts, lambda seed: taught, answer, (__file__, *files), digest.hexdigest())
