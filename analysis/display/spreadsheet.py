"""A frame as the text of a CSV file, in which no text is a formula or moves a terminal."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

from study.screen import CONTROLS, FORMULA

if TYPE_CHECKING:
    import pandas as pd

NUMBER = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?\Z")


def csv(frame: pd.DataFrame) -> str:
    """The frame as CSV: nine digits, no index."""
    safe = frame.map(_inert).rename(columns=_inert)
    buffer = io.StringIO()
    safe.to_csv(buffer, index=False, float_format="%.9g", lineterminator="\n")
    return buffer.getvalue()


def _inert(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.translate(CONTROLS)
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.match(text) else text
