"""Makes gradings of one request and gradings of several look alike to those who ask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from judges.grading.base import Ask, Grading, OneAsk, Reading
from study.errors import UserError
from study.rows import Row
from study.verdict import Outcome, Parsed, Reply


@dataclass(frozen=True)
class Bound:
    """One request of a verdict as the client knows it: what it carries, and how to read it."""

    grading: Reading
    ask: Ask

    def body(self) -> dict[str, Any]:
        """What the request carries beside messages and sampling."""
        return self.grading.body(self.ask)

    def parse(self, reply: Reply) -> Parsed:
        """Read the reply to this request."""
        return self.grading.parse(reply, self.ask)


class Whole:
    """A grading of one request in terms of asks."""

    def __init__(self, grading: OneAsk) -> None:
        self._grading = grading
        self.name = grading.name
        self.version = grading.version
        self.prompt_sha = grading.prompt_sha

    def problem(self, row: Row) -> str:
        """What the grading says of the row, if it minds anything."""
        found = getattr(self._grading, "problem", None)
        return found(row) if found is not None else ""

    def asks(self, row: Row, answer: str) -> tuple[Ask, ...]:
        """The one request; none where the row has a problem."""
        return () if self.problem(row) else (Ask(self._grading.messages(row, answer)),)

    def body(self, ask: Ask) -> dict[str, Any]:
        """What the one request carries."""
        return self._grading.body()

    def parse(self, reply: Reply, ask: Ask) -> Parsed:
        """Read the one reply."""
        return self._grading.parse(reply)

    def narrow(self, row: Row, answer: str, ask: Ask, parsed: Parsed) -> Ask | None:
        """Nothing is left out by halves."""
        return None

    def combine(self, row: Row, parts: Sequence[tuple[Ask, Parsed]]) -> Parsed:
        """The one part; ``unparsed`` where nothing was asked."""
        if parts:
            return parts[0][1]
        return Parsed(Outcome.unparsed, reason=f"{self.problem(row)}: nothing was asked")


def is_group(grading: Any) -> bool:
    """Whether a grading judges the answers of a group against each other."""
    return hasattr(grading, "group_asks")


def in_asks(grading: Any) -> Grading:
    """A grading of single answers, in terms of asks."""
    return grading if hasattr(grading, "asks") else Whole(grading)


def check_rows(grading: Any, rows: Iterable[Row], group_size: int | None = None) -> None:
    """Find out before any training whether a task can feed a grading.

    Args:
        grading: as ``build_grading`` gives it.
        rows: the rows that will be judged.
        group_size: ``trainer.group_size``, where there is a trainer.

    Raises:
        UserError: the grading needs a group and there is none, or a row that it cannot grade.
    """
    if is_group(grading):
        if group_size is not None:
            check_group(grading.name, group_size)
        return
    for row in rows:
        check_row(grading, row)


def check_group(name: str, size: int) -> None:
    """Refuse a group that has nobody to compare with.

    Raises:
        UserError: the group is smaller than two.
    """
    if size < 2:
        raise UserError(
            f"The grading {name} needs a group; trainer.group_size is {size}. Give 2 or more, for"
            " example trainer.group_size=8, or a grading of single answers, for example"
            " judge.grading.name=likert."
        )


def check_row(grading: Any, row: Row) -> None:
    """Refuse a row that the grading cannot turn into a score.

    Raises:
        UserError: with the row's prompt id and what is wrong with it.
    """
    problem = in_asks(grading).problem(row)
    if problem:
        raise UserError(
            f"The grading {grading.name} cannot grade the row with prompt_id={row.prompt_id}:"
            f" {problem}. Mend or drop the row in the task's data, or choose another grading, for"
            " example judge.grading.name=likert."
        )
