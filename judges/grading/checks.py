"""Finds out before any training whether a grading can judge the rows of a task."""

from __future__ import annotations

from collections.abc import Iterable

from judges.grading.base import AnswerGrading, GroupGrading
from study.errors import UserError
from study.rows import Row


def check_rows(
    grading: AnswerGrading | GroupGrading, rows: Iterable[Row], group_size: int | None = None
) -> None:
    """Find out before any training whether a task can feed a grading.
    Raises UserError: the grading needs a group and there is none, or a row that it cannot grade."""
    if isinstance(grading, GroupGrading):
        if group_size is not None:
            check_group(grading.name, group_size)
        return
    for row in rows:
        if problem := grading.problem(row):
            raise UserError(
                f"The grading {grading.name} cannot grade the row with prompt_id={row.prompt_id}:"
                f" {problem}. Mend or drop the row in the task's data, or choose another grading,"
                " for example judge.grading.name=likert."
            )


def check_group(name: str, size: int) -> None:
    """Refuse a group that has nobody to compare with.
    Raises UserError: the group is smaller than two."""
    if size < 2:
        raise UserError(
            f"The grading {name} needs a group; trainer.group_size is {size}. Give 2 or more, for"
            " example trainer.group_size=8, or a grading of single answers, for example"
            " judge.grading.name=likert."
        )
