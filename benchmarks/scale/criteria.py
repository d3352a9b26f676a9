"""The quickstart's prompts with as many criteria as are asked for: a task of any cost.

``task.options.criteria=8`` repeats the criteria of a row, numbered, until there are eight. The
benchmark puts it into `study.tasks.TASKS`; it is no task of the product.
"""

from __future__ import annotations

from dataclasses import replace

from study.config.schema import Task
from study.rows import Row
from study.tasks import instruct_mini
from study.tasks.lessons import Lessons

NAME = "criteria"


def _plain(options: Task) -> Task:
    return replace(options, options={})


def _repeated(row: Row, wanted: int) -> Row:
    optional = [name for name in ("forbid", "order", "format") if row.spec[name]]
    names = ["contents", "count", *optional, "noise"]
    places = [place % len(names) for place in range(wanted)]
    spec = row.spec | {"checks": [names[place] for place in places]}
    criteria = [row.criteria[place] for place in places]
    for place in range(len(names), wanted):  # a rubric that says one thing twice is not asked
        criteria[place] = replace(criteria[place], text=f"{criteria[place].text} ({place + 1})")
    return replace(row, criteria=tuple(criteria), spec=spec)


class Criteria(instruct_mini.InstructMini):
    """The quickstart's task with ``options.options["criteria"]`` criteria for each row."""

    def rows(self, options: Task, split: str) -> list[Row]:
        """The rows."""
        wanted = options.options["criteria"]
        return [_repeated(row, wanted) for row in super().rows(_plain(options), split)]

    def lessons(self, options: Task) -> Lessons:
        """Those of the quickstart."""
        return instruct_mini.TASK.lessons(_plain(options))


TASK = Criteria()
