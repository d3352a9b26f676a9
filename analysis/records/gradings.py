"""How each judge of a run graded: by what grading, and whether its prompt showed it the rubric."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from judges.grading import GRADINGS
from judges.grading.base import PROMPTS
from study.cell.folder import CellFolder
from study.cell.parts import read_part
from study.system.files import Damaged

SHOWN = ("rubric_batch", "rubric_chunk", "rubric_item", "verif")
"""Gradings that ask about the criteria themselves."""
WITHIN_GROUPS = ("pairwise", "listwise")
"""Gradings whose score says how an answer stands in its own group, and nothing of another's."""


def gradings(study_dir: Path, cell: str) -> dict[str, tuple[str, str]]:
    """Judge -> (grading, prompt's sha), of all that scored a run or replayed it.

    A replay stands under its judge's name and under its folder's. A folder whose first part cannot
    be read is left out: who reads its scores says so.
    """
    named: dict[str, tuple[str, str]] = {}
    for folder in (study_dir / cell, *sorted((study_dir / "replays").glob(f"*/{cell}"))):
        for part in CellFolder(folder).parts("verdicts")[:1]:
            try:
                table = read_part(part, _COLUMNS)
            except Damaged:
                continue
            if len(table.column_names) < len(_COLUMNS):  # verdicts that others gave
                continue
            columns = (table[name].to_pylist() for name in _COLUMNS)
            for judge, grading, prompt_sha in set(zip(*columns, strict=True)):
                named.setdefault(judge, (grading, prompt_sha))
                if folder.parent != study_dir:
                    named[folder.parent.name] = (grading, prompt_sha)
    return named


_COLUMNS = ("judge", "grading", "prompt_sha")


@cache
def shows_rubric(grading: str, prompt_sha: str) -> bool | None:
    """Whether the judge was shown the criteria; None where that is not known, as of a prompt that
    is not shipped."""
    if grading in SHOWN:
        return True
    for path in PROMPTS.glob(f"{grading}-*.txt") if grading in GRADINGS else ():
        made_for = GRADINGS[grading]
        place = "{rubric}" in path.read_text(encoding="utf-8")
        for rubric in made_for.choices.get("rubric", ("",)):
            options = {"prompt": path.stem.removeprefix(f"{grading}-")}
            options |= {"rubric": rubric} if rubric else {}
            if made_for(options).prompt_sha == prompt_sha:
                return place and rubric != "hidden"
    return None
