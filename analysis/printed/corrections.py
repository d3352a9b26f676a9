"""What `analysis.knockout` and `analysis.interventions` print."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.arm.interventions import Interventions
from analysis.arm.knockout import Knockout, sentence
from analysis.printed import with_problems
from analysis.reports.corrections import bought_table, knockout_table
from analysis.reports.markup import TEXTS
from study.screen import visible


def knockout_text(told: Sequence[Knockout], problems: list[str]) -> str:
    """A column for each behaviour that was taken out, and what that says."""
    lines = [_turned(knockout_table(told)), "", *map(sentence, told)]
    return with_problems([*lines, "", TEXTS["paragraphs"]["knockout"].strip()], problems)


def interventions_text(told: Interventions, problems: list[str]) -> str:
    """A column for each arm."""
    legend = TEXTS["paragraphs"]["interventions"].strip()
    return with_problems([_turned(bought_table(told)), "", legend], problems)


def _turned(table: pd.DataFrame) -> str:
    """A table of few rows and long cells, its columns as rows."""
    shown = table.map(lambda cell: visible(str(cell)))
    blocks = []
    for row in shown.to_dict("records"):
        blocks.append("\n".join(f"{name:>28}  {cell}" for name, cell in row.items()))
    return "\n\n".join(blocks)
