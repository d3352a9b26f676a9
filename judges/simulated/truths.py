"""What a simulated judge knows of a question: the row behind its prompt, and the rule truths.

Truths that other processes must find are asked for in a thread, so that the judge's event loop goes
on. What is asked while a batch is under way goes together into the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from study.rows import Row, RuleTruth, prompt_id
from study.truth.oracle import Oracle

Single = Callable[[str, str], RuleTruth]
"""(prompt text, answer) -> the rule truth; None for an unknown prompt."""


class Truths:
    """Asks an `Oracle`, or any function of a prompt and an answer, for a judge's event loop."""

    def __init__(self, oracle: Oracle | Single) -> None:
        self._oracle = oracle
        self._waiting: list[tuple[Row, Sequence[str], asyncio.Future[list[RuleTruth]]]] = []
        self._work: asyncio.Task[None] | None = None

    async def of(self, prompt: str, answers: Sequence[str]) -> tuple[Row | None, list[RuleTruth]]:
        """The row behind a prompt, None where it is not known, and what the rules say of each
        answer to it."""
        if not isinstance(self._oracle, Oracle):
            return None, [self._oracle(prompt, answer) for answer in answers]
        row = self._oracle.row_of(prompt_id(prompt))
        if row is None:
            return None, [None] * len(answers)
        rows = [row] * len(answers)
        if not self._oracle.waits:
            return row, self._oracle.truths(rows, answers)
        if (truths := self._oracle.remembered(rows, answers)) is not None:
            return row, truths
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((row, answers, future))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._ask(self._oracle))
        return row, await future

    async def _ask(self, oracle: Oracle) -> None:
        """Answer who waits, batch by batch."""
        while self._waiting:
            batch, self._waiting = self._waiting, []
            rows = [row for row, answers, _ in batch for _ in answers]
            all_answers = [answer for _, answers, _ in batch for answer in answers]
            try:
                truths = iter(await asyncio.to_thread(oracle.truths, rows, all_answers))
            except Exception as error:
                for _, _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for _, answers, future in batch:
                results = [next(truths) for _ in answers]
                if not future.done():
                    future.set_result(results)
