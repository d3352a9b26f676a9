"""What ``correction.without`` takes out of a judge's scores, settled when a cell is planned."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import analysis
from judges.simulated.bias import effective
from study.cell import exchange, places
from study.config import bounds
from study.config.correction import Part
from study.config.schema import Judge, Study, freeze
from study.config.simulated import DOMAINS
from study.errors import UserError
from study.features import FEATURES

ADDS = ("likert", "soft_choice", "rubric_batch", "rubric_chunk", "rubric_item")
"""Gradings under which the dose of a simulated judge is added to the score."""


def parts_of(config: Study) -> dict[str, Part]:
    """Feature -> what the judge of this cell pays for it: planted, or fitted by ``correction.fit``.
    Raises UserError: it is neither known nor to be had."""
    correction = config.correction
    for place, name in enumerate(correction.without):
        bounds.check(f"correction.without.{place}", name, bounds.Choice(FEATURES))
    if not correction.without:
        return {}
    if not correction.fit:
        return {name: _planted(config.judge, name) for name in correction.without}
    study, _, cell = correction.fit.partition("/")
    for name in (study, *([cell] if cell else [])):
        bounds.check("correction.fit", name, bounds.Name(), "quickstart")
    folder = (places.local(config.runs_dir) / study).absolute()
    exchange.fetch(folder)
    if not (folder / "study.json").is_file():
        there = sorted(path.parent.name for path in folder.parent.glob("*/study.json"))
        raise UserError(
            f"correction.fit={correction.fit} is not a study in {folder.parent}. Its studies:"
            f" {', '.join(there) or 'none'}. Type correction.fit=STUDY or correction.fit=STUDY/CELL"
        )
    judge = json.dumps(dataclasses.asdict(config.judge), sort_keys=True)
    return _fitted(folder, judge, tuple(correction.without), cell)


@functools.cache
def _fitted(folder: Path, judge_json: str, names: tuple[str, ...], cell: str) -> dict[str, Part]:
    """`analysis.fitted_parts`, once for all cells of a sweep that have the judge."""
    return analysis.fitted_parts(folder, freeze(Judge, json.loads(judge_json)), names, cell)


def _planted(judge: Judge, name: str) -> Part:
    settings = judge.simulated
    typed = f"correction.without=[{name}]"
    if settings is None:
        raise UserError(
            f"{typed} removes the bias of judge={judge.name} for {name}, but that judge has no"
            " planted one. Type correction.fit=STUDY, a study with known truth whose rollouts"
            " this judge scored."
        )
    if judge.grading.name not in ADDS:
        raise UserError(
            f"{typed} removes the dose of judge={judge.name}, but judge.grading.name="
            f"{judge.grading.name} adds no dose to a score. Type correction.fit=STUDY, or one of"
            f" judge.grading.name={','.join(ADDS)}"
        )
    if varied := [each for each in DOMAINS if name in getattr(settings.domains, each).doses]:
        raise UserError(
            f"{typed} removes one dose, but judge={judge.name} has another in"
            f" {', '.join(varied)}. Type correction.fit=STUDY"
        )
    mean, sd = effective(settings)["reference"][name]
    return Part(settings.doses.get(name, 0.0), 0.0, mean, sd, f"dose of {judge.name}")
