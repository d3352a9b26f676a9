"""Candidates forecast in units: fitted on their study's runs, or by what another study kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.forecast import units as forecast_units
from analysis.forecast.estimate import FirstRewards, ask
from analysis.forecast.from_probes import probed
from analysis.forecast.response import FEWEST_ARMS
from analysis.forecast.units import Candidates, Fitted, Forecast, MethodScore
from analysis.records.runs import Run, read_runs
from study.errors import UserError


@dataclass(frozen=True)
class InUnits:
    """Shifts of every candidate, and, of those that were trained, how the forecasts came out.

    Attributes:
        fit: the study whose runs were fitted on.
        ended_early: cells that an alarm ended early, which are in no fit and no score.
        why_none: why there is nothing; empty where there is.
    """

    fit: str = ""
    ended_early: Sequence[str] = ()
    shifts: Sequence[Forecast] = ()
    scores: Sequence[MethodScore] = ()
    why_none: str = ""

    def numbers(self) -> dict[str, object]:
        """For JSON."""
        if self.why_none:
            return {"no_units": self.why_none}
        return {
            "fit": self.fit,
            **({"ended_early": self.ended_early} if self.ended_early else {}),
            "shifts": [line.row() for line in self.shifts],
            "scores": [line.row() for line in self.scores],
        }


def in_units(
    first_rewards: FirstRewards, study_dir: Path, fit: str = "", probes: Path | None = None
) -> InUnits:
    """Shifts of every candidate, and how those of trained ones came out.

    Args:
        fit: a study beside this one whose fit is taken as it was kept; empty fits on this one's
            runs and keeps that as ``response-STEPS.json``.
        probes: a folder of probes, whose judges are then the candidates.

    Raises UserError: the fit of another study is not there, or is of other behaviours; or no folder
    of probes.
    """
    try:
        judged = (
            probed(probes, first_rewards) if probes else forecast_units.candidates(first_rewards)
        )
        recorded = read_runs(study_dir)[0]
        response_fit = _fitted(first_rewards, study_dir, recorded, fit, None if probes else judged)
        lines = forecast_units.forecasts(response_fit, first_rewards, judged)
        runs = forecast_units.trained(recorded, judged)
        return InUnits(
            fit=response_fit.study,
            ended_early=[run.cell for run in recorded if forecast_units.ended_early(run)],
            shifts=lines,
            scores=forecast_units.scored(response_fit, first_rewards, judged, runs),
        )
    except UserError as error:
        if fit or probes:
            raise
        return InUnits(why_none=str(error))


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
