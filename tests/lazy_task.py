"""A task of any size whose rows exist only while somebody looks at them: sums, with one check each.

A test puts its `TASK` under a name into ``study.tasks.TASKS``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from study.config.schema import Task
from study.rows import Missing, Row, RuleTruth, Truth, make_row
from study.tasks.kind import TaskKind

DOMAINS = ("math", "qa", "code")
LOST = "the grader is gone"
MADE: list[int] = []
"""Place of every row that was made."""
ASKED: list[list[str | None]] = []
"""The answers of every batch of truths."""


class Sums(Sequence[Row]):
    """What is the sum of k and k? For k from 0; every third is of one domain."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place):  # ty: ignore[invalid-method-override]
        assert isinstance(place, int), "a lazy sequence need not know slices"
        if not 0 <= place < self.size:
            raise IndexError(place)
        MADE.append(place)
        row = make_row(
            ({"role": "user", "content": f"What is {place} plus {place}?"},),
            spec={"sum": 2 * place},
        )
        return replace(row, dataset="sums", domain=DOMAINS[place % 3], item=f"sums:test:{place}")


@functools.cache
def _places(size: int) -> dict[str, int]:
    return {row.prompt_id: place for place, row in enumerate(Sums(size))}


class Lazy(TaskKind):
    def rows(self, options: Task, split: str) -> Sums:
        return Sums(options.train_rows if split == "train" else options.eval_rows)

    def truths(self, rows: Sequence[Row], answers: Sequence[str | None]) -> list[RuleTruth]:
        """Right is the sum and nothing else; an answer that says so has no truth, or no rule."""
        ASKED.append(list(answers))
        special: dict[str | None, RuleTruth] = {"lost": Missing(LOST), "no rule": None}
        return [
            special[answer]
            if answer in special
            else Truth(float(answer == str(row.spec["sum"])), (answer == str(row.spec["sum"]),))
            for row, answer in zip(rows, answers, strict=True)
        ]

    def lookup(self, options: Task) -> Callable[[str], Row | None]:
        every = Sums(options.train_rows)
        places = _places(options.train_rows)
        return lambda prompt_id: every[places[prompt_id]] if prompt_id in places else None


TASK = Lazy()
