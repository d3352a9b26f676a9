"""Candidates forecast in units: fitted on their study's runs, or by what another study kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.forecast import units as forecast_units
from analysis.forecast.estimate import Asked, ask
from analysis.forecast.from_probes import probed
from analysis.forecast.response import FEWEST_ARMS
from analysis.forecast.units import Candidates, Fitted
from analysis.records.runs import Run, read_runs
from analysis.statistics.estimate import columns
from study.errors import UserError


def in_units(
    asked: Asked, study_dir: Path, fit: str = "", probes: Path | None = None
) -> dict[str, Any]:
    """Shifts of every candidate, and, of those that were trained, how the forecasts came out.

    Args:
        fit: a study beside this one whose fit is taken as it was kept; empty fits on this one's
            runs and keeps that as ``response-STEPS.json``.
        probes: a folder of probes, whose judges are then the candidates.

    Without either, ``no_units`` says why there is nothing. Raises UserError: the fit of another
    study is not there, or is of other behaviours; or no folder of probes.
    """
    try:
        judged = probed(probes, asked) if probes else forecast_units.candidates(asked)
        recorded = read_runs(study_dir)[0]
        made = _fitted(asked, study_dir, recorded, fit, None if probes else judged)
        lines = forecast_units.forecasts(made, asked, judged)
        runs = forecast_units.trained(recorded, judged)
        scores = forecast_units.scored(made, asked, judged, runs) if len(runs.arm) else []
    except UserError as error:
        if fit or probes:
            raise
        return {"no_units": str(error)}
    early = [run.cell for run in recorded if forecast_units.ended_early(run)]
    return {
        "fit": made.study,
        **({"ended_early": early} if early else {}),
        "shifts": [columns(line, shift="") | dict(line.simpler) for line in lines],
        "scores": [columns(line, slope="") for line in scores],
    }


def _fitted(
    asked: Asked, study_dir: Path, recorded: Sequence[Run], fit: str, judged: Candidates | None
) -> Fitted:
    name = f"response-{asked.steps}.json"
    if fit and fit != asked.study:  # what this study kept has seen the arms that are forecast
        return forecast_units.load(study_dir.parent / fit / name)
    # judges that are named all take the configuration of one cell
    if judged is None or len({cell.id for cell in asked.cells.values()}) < FEWEST_ARMS:
        asked = ask(study_dir, "study", asked.steps)  # the study's own judges tell
        judged = forecast_units.candidates(asked)
    made = forecast_units.fitted(asked, judged, forecast_units.trained(recorded, judged))
    forecast_units.save(study_dir / name, made)
    return made
