"""How the arms of a study may differ: in its declared factors, and in nothing else."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from study.cells import Cell
from study.errors import UserError
from study.identity import identifying, left_out
from study.marks import under
from study.study_file import base, read_study


def undeclared(flats: Sequence[dict[str, Any]], factors: Sequence[str]) -> dict[str, list[Any]]:
    """Keys outside the declared factors that differ between flat configs, with their values."""
    differing: dict[str, list[Any]] = {}
    for key in sorted({key for flat in flats for key in flat if not under(key, factors)}):
        values: list[Any] = []
        for flat in flats:
            if (value := flat.get(key, left_out(key))) not in values:
                values.append(value)
        if len(values) > 1:
            differing[key] = values
    return differing


def check_arms(todo: Sequence[Cell], factors: Sequence[str]) -> None:
    """Refuse arms that differ in more than the declared factors."""
    differences = undeclared([identifying(cell.data) for cell in todo], factors)
    if differences:
        raise UserError(
            f"The arms of this sweep differ in {_told(differences)}, which is not a declared "
            f"factor (declared: {', '.join(factors)}). A comparison of judges must not change "
            "anything else by the way. If it is meant, type: "
            f"'factors=[{','.join([*factors, *differences])}]' study=NEW_NAME"
        )


def check_study(study_dir: Path, todo: Sequence[Cell], factors: Sequence[str]) -> None:
    """Refuse a study folder that was started with other factors or another base config."""
    started = read_study(study_dir)
    if not started:
        return
    name = study_dir.name
    if sorted(started["factors"]) != sorted(factors):
        raise UserError(
            f"The study {name} in {study_dir} declared the factors "
            f"{', '.join(started['factors'])}; this command declares {', '.join(factors)}. "
            f"A study keeps its factors. Type another name, for example: study={name}-2"
        )
    bases = [base(cell, factors) for cell in todo]
    differences = undeclared([started.get("base", bases[0]), *bases], factors)
    if differences:
        raise UserError(
            f"The study {name} in {study_dir} was started with another config: "
            f"{_told(differences)} (first value: the study's). Its declared factors are "
            f"{', '.join(factors)}; anything else must stay. Type another name, for example: "
            f"study={name}-2"
        )


def _told(differences: dict[str, list[Any]]) -> str:
    return "; ".join(
        f"{key} = {' | '.join(map(str, values))}" for key, values in differences.items()
    )


def design(todo: Sequence[Cell]) -> tuple[int, int]:
    """Seeds of the arm that has fewest, and arms: cells that differ in more than their seed."""
    seeds: dict[str, set[int]] = defaultdict(set)
    for cell in todo:
        arm = identifying(cell.data)
        seed = arm.pop("seed", 0)
        seeds[json.dumps(arm, sort_keys=True)].add(seed)
    return min(map(len, seeds.values())), len(seeds)
