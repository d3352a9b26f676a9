"""``study.json``: what a study was started with, made again from its cells where it is damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from study import cells
from study.cells import Cell, identifying
from study.files import Damaged, read_json, say
from study.marks import under


def read_study(study_dir: Path, problems: list[str] | None = None) -> dict[str, Any]:
    """What a study was started with, in ``study.json``; an empty dict where it was not.

    Where that is damaged it is said, and made again from the cells: the next sweep writes it.

    Args:
        problems: takes what was damaged, instead of its being said.
    """
    path = study_dir / "study.json"
    try:
        found = read_json(path)
        why = _study_fault(found)
    except Damaged as error:
        found, why = {}, error.why
    if not why:
        return found
    again = _study_of_cells(study_dir)
    sources = "its cells" if again else "nothing, as no cell is there"
    what = f"{study_dir.name}/{path.name} is damaged: it {why}; read from {sources} instead."
    say(what) if problems is None else problems.append(what)
    return again


def _study_fault(found: dict[str, Any]) -> str:
    factors, shared, mlflow = (found.get(key) for key in ("factors", "base", "mlflow"))
    if not found:
        return ""
    if not isinstance(factors, list) or not all(isinstance(one, str) for one in factors):
        return "does not list the factors"
    if not isinstance(shared if shared is not None else {}, dict):
        return "does not hold the base config"
    ids = mlflow if mlflow is not None else {}
    if not isinstance(ids, dict) or not all(isinstance(one, str) for one in ids.values()):
        return "does not hold the ids of MLflow"
    return ""


def _study_of_cells(study_dir: Path) -> dict[str, Any]:
    """``study.json`` by the first cell that can be read."""
    for folder in cells.study_cells(study_dir):
        try:
            cell = cells.load_cell(folder)
            kept = read_json(folder / "mlflow.json")
        except Damaged:
            continue
        keys = ("uri", "experiment_id", "parent_run_id")
        ids = {key: kept[key] for key in keys} if all(key in kept for key in keys) else {}
        factors = list(cell.config.factors)
        return {
            "study": study_dir.name,
            "factors": factors,
            "base": base(cell, factors),
            "mlflow": ids,
        }
    return {}


def base(cell: Cell, factors: Sequence[str]) -> dict[str, Any]:
    """The part of a cell's flat config that every arm of the study shares."""
    return {key: value for key, value in identifying(cell.data).items() if not under(key, factors)}
