"""What `analysis.field` prints: a table for each measure that the study has."""

from __future__ import annotations

from textwrap import fill

from analysis.display.markup import TEXTS
from analysis.display.printed import NO_RUN, WIDTH, as_text
from analysis.field.display import meaning, tables
from analysis.field.estimate import Field
from study.screen import visible


def lines(field: Field) -> list[str]:
    """Every table that has rows, and what it says under it."""
    text: list[str] = []
    for name, table in tables(field).items():
        text_below = fill(visible(meaning(name, field)), WIDTH)
        text += ["", TEXTS["field"][name], as_text(table), text_below]
    return text or [NO_RUN]
