"""Reads and writes ``study.json``: a study's factors, base config, MLflow ids and format.

It says which format the study's folder has. A change after which an older folder would be misread
raises `FORMAT`, and a study of another format is refused: there is no code that converts one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict, cast

from study.cell.cells import Cell, load_cell
from study.cell.folder import study_cells
from study.config.marks import under
from study.errors import UserError
from study.system.files import Damaged, read_json, say, write_json

FORMAT = 2
"""Version of what stands in a study's folder, and of what a cell's hash covers."""


class StudyFile(TypedDict, total=False):
    """What ``study.json`` holds."""

    format: int
    study: str
    factors: list[str]
    base: dict[str, object]
    """The flat config that every arm shares."""
    looks: list[int]
    """`study.config.schema.Sweep.looks`."""
    mlflow: dict[str, str]
    """uri, experiment_id and parent_run_id; empty without tracking."""


def write_study(study_dir: Path, described: StudyFile) -> None:
    """Write ``study.json``: name, factors, base config and MLflow ids, with the format."""
    write_json(study_dir / "study.json", {"format": FORMAT, **described}, signed=True)


def read_study(study_dir: Path, problems: list[str] | None = None) -> StudyFile:
    """What a study was started with, in ``study.json``; an empty dict where it was not. A damaged
    file is printed, or added to ``problems``, and made again from the cells: the next sweep writes
    it.
    Raises UserError: the study has another format."""
    path = study_dir / "study.json"
    try:
        described = read_json(path)
        fault = _study_fault(described)
    except Damaged as error:
        described, fault = {}, error.why
    version = described.get("format", None if fault or not described else "none")
    if version is not None and version != FORMAT:
        raise UserError(
            f"The study {study_dir.name} in {study_dir} was written by another version of"
            f" judgedrift: its format is {version!r:.40} but this version reads format {FORMAT}."
            " Use the version that wrote it, or start a new study here: type"
            f" study={study_dir.name}-2"
        )
    if not fault:
        return cast(StudyFile, described)
    again = _study_of_cells(study_dir)
    sources = "its cells" if again else "nothing, as it has no cells"
    report = f"{study_dir.name}/{path.name} is damaged: it {fault}; read from {sources} instead."
    say(report) if problems is None else problems.append(report)
    return again


def _study_fault(described: Mapping[str, object]) -> str:
    if not described:
        return ""
    factors, shared, ids = (described.get(key) for key in ("factors", "base", "mlflow"))
    if not isinstance(factors, list) or not all(isinstance(factor, str) for factor in factors):
        return "does not list the factors"
    if not isinstance(shared, dict | None):
        return "does not hold the base config"
    looks = described.get("looks", [])
    if not isinstance(looks, list) or not all(type(seeds) is int for seeds in looks):
        return "does not list the looks"
    texts = isinstance(ids, dict) and all(isinstance(value, str) for value in ids.values())
    return "" if ids is None or texts else "does not hold the ids of MLflow"


def _study_of_cells(study_dir: Path) -> StudyFile:
    """``study.json`` by the first cell that can be read."""
    for folder in study_cells(study_dir):
        try:
            cell = load_cell(folder)
            tracked = read_json(folder / "mlflow.json")
        except Damaged:
            continue
        keys = ("uri", "experiment_id", "parent_run_id")
        ids = {key: tracked[key] for key in keys} if all(key in tracked for key in keys) else {}
        factors = list(cell.config.factors)
        return {
            "format": FORMAT,
            "study": study_dir.name,
            "factors": factors,
            "base": base(cell, factors),
            "looks": _looks_of_cells(study_dir),
            "mlflow": ids,
        }
    return {}


def _looks_of_cells(study_dir: Path) -> list[int]:
    """The looks that a cell was laid with; a sweep that goes on need not declare them again."""
    for folder in study_cells(study_dir):
        with suppress(Damaged):
            if looks := load_cell(folder).config.sweep.looks:
                return looks
    return []


def looks_of(cell: Cell) -> list[int]:
    """The looks that a sweep of this cell declares, else those that its study was begun with."""
    return cell.config.sweep.looks or read_study(cell.folder.study_dir).get("looks", [])


def base(cell: Cell, factors: Sequence[str]) -> dict[str, object]:
    """The part of a cell's flat config that every arm of the study shares."""
    return {key: value for key, value in cell.identity.items() if not under(key, factors)}
