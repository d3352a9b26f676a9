"""What every section of the report is made of: a title, numbered figures, numbered tables.

Their texts stand in ``texts.yaml`` under the same names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate

import pandas as pd
from markupsafe import Markup

from analysis.display import markup
from analysis.display.figures import looks_of
from analysis.display.markup import TEXTS, render_text
from analysis.report.evidence import Evidence

Section = Callable[Concatenate[Evidence, ...], list[str]]
_NOT_A_NAME = re.compile(r"[^a-z0-9_-]+")


def section(write: Section) -> Section:
    """A section in which every arm looks as it does in the whole report."""

    @wraps(write)
    def written(evidence: Evidence, *settings: Any) -> list[str]:
        with looks_of(evidence.arms):
            return write(evidence, *settings)

    return written


def title(name: str) -> Markup:
    """The heading of a section, which stands in the list of contents."""
    return markup.heading(TEXTS["titles"][name], 2, name)


def picture(name: str, draw: Callable[..., Any], *data: Any, **named: Any) -> Markup:
    """A figure with the caption of that name; nothing where nothing can be drawn."""
    drawn = draw(*data)
    return (
        Markup() if drawn is None else markup.figure(drawn, render_text("captions", name, **named))
    )


def sheet(
    name: str,
    frame: pd.DataFrame,
    data: pd.DataFrame | None = None,
    of: str = "",
    **named: Any,
) -> Markup:
    """A table with the title of that name, and the columns that ``texts.yaml`` has it lead with.

    Args:
        name: of the title, and of the file beside the page; ``mixture-rates`` is titled by
            ``rates`` under ``mixture``.
        frame: what is shown.
        data: what the file holds, where that is more.
        of: what tells tables of one name apart, such as a behaviour.
        named: fills in the title and the names of the leading columns.
    """
    part, _, key = name.rpartition("-")
    called = TEXTS[part][key] if part else render_text("tables", name, **named)
    lead = [column.format(**named) for column in TEXTS["leading"].get(name, ())]
    file = _NOT_A_NAME.sub("-", f"{name} {of}".strip().lower().replace("_", "-"))
    return markup.table(frame, file.strip("-"), called, lead, data)
