"""What a task is: its rows, what its rules say of answers, and what it may bring besides.

A kind of task is a subclass of `TaskKind`, or of one of the two below it, which have the truths of
one answer at a time (`RuledTask`) or the scores of a grader (`GradedTask`).
"""

from __future__ import annotations

import atexit
import functools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from study import truth as rules
from study.config.schema import Task, freeze
from study.rows import Missing, Row, RuleTruth, Truth
from study.tasks.drawing import Drawing
from study.tasks.lessons import Lessons


class TaskKind(ABC):
    """One kind of task; the options of a study's task are given to each method."""

    waits = True
    """Whether `truths` waits for other processes, so that no event loop may call it."""

    @abstractmethod
    def rows(self, options: Task, split: str) -> Sequence[Row]:
        """The rows of a split, train or eval. What is no list or tuple is read row by row, when a
        row is wanted. Raises UserError: they cannot be had."""

    @abstractmethod
    def truths(self, rows: Sequence[Row], answers: Sequence[str | None]) -> Sequence[RuleTruth]:
        """What the rules say of each answer, in one batch: a ``Truth``, ``Missing`` where something
        failed that should have told it, None where no rule can tell. An answer of None was cut off
        while it was thinking."""

    def lookup(self, options: Task) -> Callable[[str], Row | None]:
        """Prompt id -> the row of either split; None for a prompt that is not in the task."""
        return _index(self, json.dumps(asdict(options), sort_keys=True)).get

    def order(self, options: Task, seed: int) -> Drawing | None:
        """The order of the task's own in which a run of ``seed`` draws its rows; None where it has
        none."""
        return None

    def runs_code(self, options: Task) -> bool:
        """Whether answers may be programs, which are run to score them."""
        return False

    def tells_truth(self, rows: Sequence[Row]) -> bool:
        """Whether a rule knows the truth of answers to any of these rows."""
        return True

    def lessons(self, options: Task) -> Lessons | None:
        """What the tiny policy learns the task from before RL; None where it brings nothing."""
        return None


@functools.lru_cache(maxsize=8)
def _index(kind: TaskKind, task_json: str) -> dict[str, Row]:
    task = freeze(Task, json.loads(task_json))
    return {row.prompt_id: row for split in ("train", "eval") for row in kind.rows(task, split)}


class RuledTask(TaskKind):
    """A task whose rules are plain functions, which tell the truth at once."""

    waits = False

    @abstractmethod
    def truth(self, row: Row, answer: str) -> Truth | None:
        """What the rules say of one answer; None where no rule can tell."""

    def truths(self, rows: Sequence[Row], answers: Sequence[str | None]) -> list[Truth | None]:
        """`truth` of each answer; one that was cut off is worth as much as nothing."""
        return [self.truth(row, answer or "") for row, answer in zip(rows, answers, strict=True)]


class GradedTask(TaskKind):
    """A task of items of verifiable sets, whose answers one grader of the process scores."""

    def scores(
        self, rows: Sequence[Row], answers: Sequence[str | None]
    ) -> list[rules.Score | None]:
        """What the rules say of each answer in full; None where that could not be had."""
        if not _GRADERS:
            _GRADERS[""] = rules.Grader()
            atexit.register(_GRADERS[""].close)
        return rules.score([row.spec["item"] for row in rows], answers, _GRADERS[""])

    def truths_of(
        self,
        rows: Sequence[Row],
        answers: Sequence[str | None],
        scores_N: Sequence[rules.Score | None],
    ) -> list[RuleTruth]:
        """Scores as truths of one check; None of a program that no test can check."""
        return [
            Truth(float(score.correct), (score.correct,))
            if score is not None
            else Missing(_GRADERS[""].lost.get(row.item, "the grader failed"))
            if row.domain != "code" or row.spec["item"].tests.strip()
            else None
            for row, score in zip(rows, scores_N, strict=True)
        ]

    def truths(self, rows: Sequence[Row], answers: Sequence[str | None]) -> list[RuleTruth]:
        """Whether each answer is right."""
        return self.truths_of(rows, answers, self.scores(rows, answers))


@contextmanager
def grading(unsafe: bool = False) -> Generator[rules.Grader]:
    """Within the block, one grader scores the answers of every `GradedTask`, and is ended with it.
    Outside, one is made when it is needed and ends with the process."""
    before = dict(_GRADERS)
    with rules.Grader(unsafe=unsafe) as grader:
        _GRADERS[""] = grader
        try:
            yield grader
        finally:
            _GRADERS.clear()
            _GRADERS.update(before)


_GRADERS: dict[str, rules.Grader] = {}
"""The grader of this process, under the empty name, where there is one."""
