"""The arms of a study in the order, the colours and the markers of its report."""

from __future__ import annotations

from analysis.answers.reading import Answers
from analysis.display.figures import MARKERS, looks, looks_of
from analysis.drift.estimate import arms_in_order, usable_cells
from analysis.interventions.estimate import base_of
from analysis.records.frames import read_config
from study.cell.folder import CellFolder
from study.config.identity import identifying

MARKS = dict(zip(MARKERS, "\u25cf\u25a0\u25b2\u25c6\u25bc\u271a\u2716", strict=True))
"""What stands in a text for a marker of the report's figures."""


def arm_looks(answers: Answers) -> dict[str, dict[str, str]]:
    """``color`` and ``mark`` of each arm, in the report's order; arms of no name come last."""
    from matplotlib.colors import to_hex

    used_cells = {*usable_cells(answers.runs)}
    settings = [
        (each.arm, each.seed, identifying(read_config(CellFolder(each.folder), [])))
        for each in answers.sources
        if each.cell in used_cells and not each.held_out
    ]
    base = base_of(answers.runs[answers.runs["cell"].isin(used_cells)], settings)
    ordered = arms_in_order(answers.runs, base)
    arms = list(dict.fromkeys([*ordered, *(each.arm for each in answers.sources)]))
    with looks_of(ordered):
        return {
            arm: {"color": to_hex(look["color"]), "mark": MARKS[look["marker"]]}
            for arm, look in looks(arms).items()
        }
