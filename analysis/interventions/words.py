"""What `analysis.knockout` and `analysis.interventions` print."""

from __future__ import annotations

from analysis.display.markup import TEXTS
from analysis.display.printed import turned, with_problems
from analysis.interventions.display import bought_table
from analysis.interventions.estimate import Interventions


def interventions_text(interventions: Interventions, problems: list[str]) -> str:
    """A column for each arm."""
    legend = TEXTS["paragraphs"]["interventions"].strip()
    return with_problems([turned(bought_table(interventions)), "", legend], problems)
