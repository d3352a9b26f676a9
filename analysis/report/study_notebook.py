"""The executed notebook of a study, for a researcher to go on from: questions, and short cells.

It is written again while nobody has changed its cells, and never afterwards.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from analysis.display.notebook import ROOT, executed, of_study
from study.cell.exchange import folder_of
from study.cli import StudyOptions
from study.system.files import clear_leftovers, write_text

SOURCE = ROOT / "notebooks" / "study.py"
PLACE = Path("report") / "study.ipynb"
_MARK = "judgedrift"
"""Key of the notebook's metadata under which the hash of its cells stands, as they were written."""


def write_notebook(study_dir: Path | str) -> Path:
    """Execute the notebook on a study and write it to `PLACE`.

    A notebook that was changed by hand stays as it is.

    Raises:
        UserError: no such folder.
        Exception: whatever a cell raised, with a note that says which; nothing is written.
    """
    import nbformat

    study_dir = folder_of(study_dir).absolute()
    StudyOptions(study_dir.name, study_dir.parent).check()
    path = study_dir / PLACE
    if not is_ours(path):
        return path
    notebook = executed(SOURCE, of_study(study_dir))
    notebook.metadata[_MARK] = {"cells": _hash(notebook.cells)}
    clear_leftovers(path.parent)
    write_text(path, nbformat.writes(notebook))
    return path


def is_ours(path: Path) -> bool:
    """Whether a notebook is as it was written, or there is none."""
    if not path.exists():
        return True
    try:
        content = json.loads(path.read_bytes())
        return content["metadata"][_MARK]["cells"] == _hash(content["cells"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _hash(cells: list[Any]) -> str:
    """Of the texts of the cells; a file keeps each as lines."""
    texts = ["".join(cell["source"]) for cell in cells]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
