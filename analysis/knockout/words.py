"""What `analysis.knockout` prints."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.display.markup import TEXTS
from analysis.display.printed import turned, with_problems
from analysis.knockout.display import knockout_table
from analysis.knockout.estimate import Knockout, sentence


def knockout_text(knockouts: Sequence[Knockout], problems: list[str]) -> str:
    """A column for each behaviour that was taken out, and what that says."""
    lines = [turned(knockout_table(knockouts)), "", *map(sentence, knockouts)]
    return with_problems([*lines, "", TEXTS["paragraphs"]["knockout"].strip()], problems)
