"""Candidates forecast in units: fitted on their study's runs, or by what another study kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analysis.arm import forecast_units
from analysis.arm.forecast import Asked, ask
from analysis.arm.forecast_units import Candidates, Fitted
from analysis.arm.response import FEWEST_ARMS
from analysis.statistics.estimate import columns
from study.errors import UserError


def in_units(asked: Asked, study_dir: Path, fit: str = "") -> dict[str, Any]:
    """Shifts of every candidate, and, of those that were trained, how the forecasts came out.

    Args:
        fit: a study beside this one whose fit is taken as it was kept; empty fits on this one's
            runs and keeps that as ``response-STEPS.json``.

    Without ``fit``, ``no_units`` says why there is nothing. Raises UserError: the fit of another
    study is not there, or is of other behaviours.
    """
    try:
        judged = forecast_units.candidates(asked)
        made = _fitted(asked, study_dir, fit, judged)
        lines = forecast_units.forecasts(made, asked, judged)
        runs = forecast_units.trained(study_dir, judged)
        scores = forecast_units.scored(made, asked, judged, runs) if len(runs.arm) else []
    except UserError as error:
        if fit:
            raise
        return {"no_units": str(error)}
    return {
        "fit": made.study,
        "shifts": [columns(line, shift="") | dict(line.simpler) for line in lines],
        "scores": [columns(line, slope="") for line in scores],
    }


def _fitted(asked: Asked, study_dir: Path, fit: str, judged: Candidates) -> Fitted:
    name = f"response-{asked.steps}.json"
    if fit:
        return forecast_units.load(study_dir.parent / fit / name)
    runs = forecast_units.trained(study_dir, judged)
    if len(set(runs.arm.tolist())) < FEWEST_ARMS:  # then the study's own judges may tell
        asked = ask(study_dir, "study", asked.steps)
        judged = forecast_units.candidates(asked)
        runs = forecast_units.trained(study_dir, judged)
    made = forecast_units.fitted(asked, judged, runs)
    forecast_units.save(study_dir / name, made)
    return made
