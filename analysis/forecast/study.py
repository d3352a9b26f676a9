"""Candidates forecast in units: fitted on their study's runs, or by what another study kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.forecast import units as forecast_units
from analysis.forecast.estimate import FirstRewards, ask
from analysis.forecast.from_probes import probed
from analysis.forecast.response import FEWEST_ARMS
from analysis.forecast.units import Candidates, Fitted
from analysis.records.runs import Run, read_runs
from analysis.statistics.estimate import columns
from study.errors import UserError


def in_units(
    first_rewards: FirstRewards, study_dir: Path, fit: str = "", probes: Path | None = None
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
        judged = (
            probed(probes, first_rewards) if probes else forecast_units.candidates(first_rewards)
        )
        recorded = read_runs(study_dir)[0]
        response_fit = _fitted(first_rewards, study_dir, recorded, fit, None if probes else judged)
        lines = forecast_units.forecasts(response_fit, first_rewards, judged)
        runs = forecast_units.trained(recorded, judged)
        scores = (
            forecast_units.scored(response_fit, first_rewards, judged, runs)
            if len(runs.arm)
            else []
        )
    except UserError as error:
        if fit or probes:
            raise
        return {"no_units": str(error)}
    early = [run.cell for run in recorded if forecast_units.ended_early(run)]
    return {
        "fit": response_fit.study,
        **({"ended_early": early} if early else {}),
        "shifts": [columns(line, shift="") | dict(line.simpler) for line in lines],
        "scores": [columns(line, slope="") for line in scores],
    }


def _fitted(
    first_rewards: FirstRewards,
    study_dir: Path,
    recorded: Sequence[Run],
    fit: str,
    judged: Candidates | None,
) -> Fitted:
    name = f"response-{first_rewards.steps}.json"
    # what this study kept has seen the arms that are forecast
    if fit and fit != first_rewards.study:
        return forecast_units.load(study_dir.parent / fit / name)
    # judges that are named all take the configuration of one cell
    if judged is None or len({cell.id for cell in first_rewards.cells.values()}) < FEWEST_ARMS:
        first_rewards = ask(study_dir, "study", first_rewards.steps)  # the study's own judges tell
        judged = forecast_units.candidates(first_rewards)
    response_fit = forecast_units.fitted(
        first_rewards, judged, forecast_units.trained(recorded, judged)
    )
    forecast_units.save(study_dir / name, response_fit)
    return response_fit
