"""Rows of the official files as items, where the data folder has them."""

import contextlib
import functools
import itertools
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from study.errors import UserError
from study.sandbox.calls import Call, Limits, Result
from study.sandbox.grader import CANDIDATE
from study.sandbox.pool import Pool
from study.tasks.datasets.sets import reported
from study.tasks.where import data_folder
from study.truth import mathematics
from study.truth.code import programs
from study.truth.item import Item

NUMBERS = itertools.count()


def item(dataset: str, domain: str, **fields: Any) -> Item:
    """An item with what a rule reads, and an id of its own."""
    return Item(f"{dataset}:test:{next(NUMBERS)}", dataset, domain, "test", "", "", "", **fields)


@functools.cache
def official(dataset: str) -> list[Item]:
    """The rows of a set that a result is reported on; the test is skipped where they are not
    there."""
    try:
        return reported(dataset, data_folder())
    except UserError as error:
        pytest.skip(str(error))


class Kept(mathematics.Comparer):
    """A process that compares, and is put by for the next grader if it is sound."""

    sound = True

    def __init__(self, spare: list["Kept"]) -> None:
        super().__init__()
        self.spare = spare

    def call(self, comparison: mathematics.Comparison) -> Result:
        try:
            return super().call(comparison)
        except BaseException:
            self.sound = False
            raise

    def close(self) -> None:
        if self.sound and self.worker.process.poll() is None:
            self.spare.append(self)
        else:
            super().close()


@contextlib.contextmanager
def kept_comparers() -> Generator[None]:
    """Graders within the block take on processes that compare mathematics from those before them:
    each takes more than a second of CPU to start."""
    spare: list[Kept] = []

    def taken() -> Kept:
        with contextlib.suppress(IndexError):  # another thread may take the last one
            return spare.pop()
        return Kept(spare)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mathematics, "Comparer", taken)
        yield
    for comparer in spare:
        mathematics.Comparer.close(comparer)


def together(
    items: Sequence[Item], answers: Sequence[str], pool: Pool, limits: Limits = CANDIDATE
) -> list[bool]:
    """Whether the tests pass where they share a process with the candidate, as they always did:
    a second opinion on honest code, and no protection from any other."""
    calls = []
    for row, answer in zip(items, answers, strict=True):
        check = f"\ncheck({row.entry_point})" if row.dataset == "humaneval" else ""
        source = "\n".join([*programs(row, answer)[0], row.setup, row.tests + check])
        calls.append(Call(source + "\ndef passed(): return True", "passed", (), limits))
    return [result.value is True for result in pool.run(calls)]
