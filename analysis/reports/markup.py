"""Fragments of the report's HTML. Every text is escaped: completions are written by a policy."""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.files import read_yaml

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.statistics.estimate import Estimate

TEXTS: dict[str, Any] = read_yaml(Path(__file__).with_name("texts.yaml"))
"""Titles, captions and sentences of the report, with ``{names}`` to be filled in."""
MISSING = "\u2013"
"""What stands in a table where there is no number."""
LONG = 40
"""Characters beyond which a cell is broken into lines."""


def said(part: str, name: str, /, **values: Any) -> str:
    """The sentence ``name`` of a part of `TEXTS`, its ``{names}`` filled in."""
    return TEXTS[part][name].format(**values)


def number(value: float | None, sign: bool = False) -> str:
    """Three significant digits; a missing number is an en dash, never a 0."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "\u221e" if value > 0 else "-\u221e"
    if abs(value) < 1e-9:  # what rounding leaves of an exact zero
        return "0"
    if value == int(value) and abs(value) < 1e6 and not sign:
        return f"{int(value)}"
    return f"{value:+.3g}" if sign else f"{value:.3g}"


def bracket(low: float, high: float) -> str:
    """An interval as ``[low, high]``, or nothing where there is none."""
    return "" if math.isnan(low) or math.isnan(high) else f"[{number(low)}, {number(high)}]"


def estimate(mean: float, low: float, high: float, sign: bool = True) -> str:
    """A number with its interval, or the number alone where there is none."""
    return f"{number(mean, sign)} {bracket(low, high)}".strip()


def with_interval(each: Estimate) -> str:
    """``0.12 [0.1, 0.14]``"""
    return estimate(each.value, each.low, each.high, sign=False)


def signed(each: Estimate) -> str:
    """``+0.12 [0.1, 0.14]``: of a change or a difference."""
    return estimate(each.value, each.low, each.high)


def p_value(p: float) -> str:
    """A p value to two digits, bounded below at .001."""
    if math.isnan(p):
        return MISSING
    return "<.001" if p < 0.001 else f"{p:.2g}"


def sentences(lines: Iterable[str]) -> str:
    """A list of sentences."""
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def table(frame: pd.DataFrame) -> str:
    """A frame as an HTML table; floats get three digits, missing values a dash.

    What stands in a column ``arm`` leads to that arm's runs, see `anchor`.
    """
    if frame.empty:
        return paragraph("Nothing is on record for this table.")
    names = [str(name) for name in frame.columns]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = ("".join(map(_cell, names, row)) for row in frame.itertuples(index=False, name=None))
    body = "".join(f"<tr>{cells}</tr>" for cells in rows)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def anchor(arm: str) -> str:
    """Name of the place in the page that lists an arm's runs."""
    return "arm-" + hashlib.blake2b(arm.encode(), digest_size=5).hexdigest()


def _cell(column: str, value: Any) -> str:
    if column == "arm":
        return f'<td><a href="#{anchor(str(value))}">{escape(str(value))}</a></td>'
    if isinstance(value, bool) or value is None or isinstance(value, str):
        text = "" if value is None else str(value)
        wraps = ' class="note"' if column in ("note", "error") or len(text) > LONG else ""
        return f"<td{wraps}>{escape(text)}</td>"
    return f'<td class="number">{escape(number(float(value)))}</td>'


def figure(drawn: Figure, caption: str) -> str:
    """A figure as an embedded PNG; the caption is its text for those who cannot see it."""
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=144)
    data = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def samples(frame: pd.DataFrame) -> str:
    """Sample completions side by side, one card per arm, as `drift.sample_completions` gives them.

    The prompt stands once above the cards where all arms were given the same one.
    """
    parts = []
    for _, cards in frame.groupby(["when", "rank"], observed=True, sort=True):
        when, rank = cards[["when", "rank"]].iloc[0]
        steps = ", ".join(str(step) for step in sorted(cards["step"].unique()))
        prompts = [f'<p class="prompt">{escape(str(prompt))}</p>' for prompt in cards["prompt"]]
        shared = cards["prompt"].nunique() == 1
        parts.append(f"<h4>{escape(str(when))} step ({steps}), prompt {rank + 1} of that step</h4>")
        parts.append(prompts[0] if shared else "")
        rows = zip(cards.to_dict("records"), prompts, strict=True)
        divs = "".join(_card(row, "" if shared else prompt) for row, prompt in rows)
        parts.append(f'<div class="cards">{divs}</div>')
    return "".join(parts)


def _card(row: dict[str, Any], prompt: str) -> str:
    scores = ", ".join(
        f"{label} {'missing' if math.isnan(row[key]) else number(row[key])}"
        for label, key in (("judge", "judge_score"), ("truth", "truth"), ("reward", "reward"))
    )
    text = row["completion"] if isinstance(row["completion"], str) else ""
    return (
        f'<div class="card"><b>{escape(str(row["arm"]))}</b>{prompt}'
        f"<pre>{escape(text) or '(empty)'}</pre>"
        f"<small>{escape(scores)}<br>{escape(str(row['cell']))} {escape(str(row['rollout_id']))}"
        f"</small></div>"
    )
