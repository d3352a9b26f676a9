"""The settings of the experiments at full size beside those that were published: what is run here
as it was described, what is not, and why.

    print(markdown())    # the tables of docs/published.md

`experiments/config/published.toml` has the rows and says what stands in them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from study.system.tables import table

TABLE = table(__file__)
SOURCES: dict[str, str] = TABLE["sources"]
"""Name of a source -> what it is."""


@dataclass(frozen=True)
class Setting:
    """One row: a setting of some presets, as it was published and as it is here.

    Attributes:
        presets: names of conf/experiment, each with the words that are typed behind it.
        key: of the composed config, or, with a blank in it, words for what is no setting here.
        where: names of `SOURCES`, with what they say.
        why: the two differ; empty where they do not.
    """

    title: str
    presets: tuple[str, ...]
    key: str
    published: Any
    where: str
    ours: Any
    why: str = ""


SETTINGS = [
    Setting(group["title"], tuple(group["presets"]), **row)
    for group in TABLE["groups"]
    for row in group["settings"]
]
PRESETS = list(dict.fromkeys(name for row in SETTINGS for name in row.presets))
"""Every preset that has a row."""
EXPERIMENTS = list(dict.fromkeys(preset.split()[0] for preset in PRESETS))


def markdown(experiment: str = "") -> str:
    """The rows, of one experiment or all, as tables with a heading for each group, and the sources
    that they name."""
    rows = [
        row
        for row in SETTINGS
        if not experiment or experiment in {preset.split()[0] for preset in row.presets}
    ]
    n_same = sum(row.ours == row.published for row in rows)
    lines = [
        f"Of {len(rows)} rows {n_same} are as published, and {len(rows) - n_same} differ for the"
        " reason that is given.",
        *("", "| source | what it is |", "|---|---|"),
    ]
    lines += [
        f"| {name} | {about} |"
        for name, about in SOURCES.items()
        if any(name in row.where for row in rows)
    ]
    for (title, presets), group in itertools.groupby(rows, lambda row: (row.title, row.presets)):
        lines += ["", f"### {title}", ", ".join(f"`{preset}`" for preset in presets), ""]
        lines += ["| setting | published | where | here | why |", "|---|---|---|---|---|"]
        lines += [_line(row) for row in group]
    return "\n".join(lines) + "\n"


def _line(row: Setting) -> str:
    key = row.key if " " in row.key else f"`{row.key}`"
    ours = "the same" if row.ours == row.published else shown(row.ours)
    return f"| {key} | {shown(row.published)} | {row.where} | {ours} | {row.why} |"


def shown(value: Any) -> str:
    """A value as it is typed; a list is what a preset sweeps over."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(shown, value)) or "all"
    return str(value).lower() if isinstance(value, bool) else f"{value}"
