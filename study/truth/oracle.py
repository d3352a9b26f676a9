"""The rows of a task by prompt, and what its rules say of answers: in batches, and remembered.

The trainer and every simulated judge of a run ask one `Oracle`, so that each answer is checked
once. Any thread may ask; who asks while another is answered waits, and then finds what that one
was told.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from itertools import islice

from study.rows import Missing, Row, RuleTruth, prompt_id

MOST = 65_536
"""Answers whose truth is remembered; the oldest goes first."""
Key = tuple[str, bytes]
"""Prompt id, and hash of the answer; empty for an answer of None."""


class Oracle:
    """What is known of the prompts of a task, and what its rules say of answers to them.

    Args:
        row_of: prompt id -> its row; None for a prompt that is not in the task.
        truths: (N rows, N answers without thinking) -> what the rules say of each. An answer of
            None was cut off while it was thinking, which an empty one was not.
        waits: whether ``truths`` waits for other processes, so that no event loop may call it.
        teacher: the task's `study.tasks.lessons.model_answer` to a row; None where it has none.
    """

    def __init__(
        self,
        row_of: Callable[[str], Row | None],
        truths: Callable[[Sequence[Row], Sequence[str | None]], Sequence[RuleTruth]],
        waits: bool = False,
        teacher: Callable[[Row], str | None] = lambda row: None,
    ) -> None:
        self.row_of = row_of
        self.teacher = teacher
        self.waits = waits
        self._truths = truths
        self._memo: dict[Key, RuleTruth] = {}
        self._lock = threading.Lock()

    def __call__(self, prompt_text: str, answer: str | None) -> RuleTruth:
        """What the rules say of one answer; None for a prompt that is not in the task."""
        row = self.row_of(prompt_id(prompt_text))
        return None if row is None else self.truths([row], [answer])[0]

    def truths(self, rows: Sequence[Row], answers: Sequence[str | None]) -> list[RuleTruth]:
        """What the rules say of each of N answers, its thinking already stripped.

        A missing truth is asked for again the next time, all others once.
        """
        keys = _keys(rows, answers)
        with self._lock:
            questions = zip(keys, rows, answers, strict=True)
            todo = {key: (row, answer) for key, row, answer in questions if key not in self._memo}
            fresh: dict[Key, RuleTruth] = {}
            if todo:
                new_rows = [row for row, _ in todo.values()]
                new_answers = [answer for _, answer in todo.values()]
                fresh = dict(zip(todo, self._truths(new_rows, new_answers), strict=True))
            truths = [fresh[key] if key in fresh else self._memo[key] for key in keys]
            self._keep(fresh)
        return truths

    def remember(
        self, rows: Sequence[Row], answers: Sequence[str | None], truths: Sequence[RuleTruth]
    ) -> None:
        """Take in what the rules were heard to say of each of N answers, so that they are not asked
        again; a missing truth still is."""
        with self._lock:
            self._keep(dict(zip(_keys(rows, answers), truths, strict=True)))

    def _keep(self, fresh: dict[Key, RuleTruth]) -> None:
        self._memo |= {key: v for key, v in fresh.items() if not isinstance(v, Missing)}
        for key in list(islice(self._memo, max(0, len(self._memo) - MOST))):
            del self._memo[key]

    def remembered(
        self, rows: Sequence[Row], answers: Sequence[str | None]
    ) -> list[RuleTruth] | None:
        """As `truths`, without waiting for anybody; None where one of them is not known yet."""
        memo = self._memo
        try:
            return [memo[key] for key in _keys(rows, answers)]
        except KeyError:
            return None


def _keys(rows: Sequence[Row], answers: Sequence[str | None]) -> list[Key]:
    return [
        (row.prompt_id, b"" if answer is None else _hash(answer))
        for row, answer in zip(rows, answers, strict=True)
    ]


def _hash(answer: str) -> bytes:
    return hashlib.blake2b(answer.encode("utf-8", "surrogatepass")).digest()
