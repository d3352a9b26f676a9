"""Candidates forecast in units: fitted on their study's runs, or by what another study kept.

`probed` takes judges' biases from probes alone: no candidate is asked about any rollout. An edit of
a text changes its behaviours and, more than it changes the truth, the score. Over all edits of a
folder of probes the bias is the regression of that change on the changes of behaviours. What the
score's spread within groups would be follows from it and from the rule truth of first rollouts; of
a judge's own noise it has what the regression leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.forecast import units as forecast_units
from analysis.forecast.estimate import FirstRewards, ask
from analysis.forecast.response import FEWEST_ARMS, RIDGE, Start
from analysis.forecast.units import Candidates, Fitted, Forecast, MethodScore, exposure, start_of
from analysis.probes.effects import pairs
from analysis.probes.profile import read, scores
from analysis.records.runs import Run, read_runs
from analysis.statistics.estimate import NAN
from study.errors import UserError

WORDS = {"length": "words"}
"""Behaviours that a table of probes calls otherwise."""


def probed(folder: Path, first_rewards: FirstRewards) -> Candidates:
    """The probed judges, as they would train from the start of that study. Raises UserError: no
    folder of probes, no judge in it that scores single texts, or a study without a truth."""
    start = start_of(first_rewards)
    table = scores(read(folder))
    alone = table[~table["pairwise"]]
    if alone.empty:
        raise UserError(
            f"{folder} has no judge that scores single texts, but a forecast needs scores. Probe"
            " one with another grading, for example judge.grading.name=likert"
        )
    edits = pairs(alone)
    judges = tuple(dict.fromkeys(alone["judge"]))
    bias = [bias_of_edits(edits[edits["judge"] == judge], alone, start) for judge in judges]
    size = exposure(first_rewards.every[0].config.trainer)
    push = np.full((len(judges), len(start.names)), NAN)
    return Candidates(judges, start, np.array(bias), push, np.full(len(judges), size))


def bias_of_edits(edits: pd.DataFrame, texts: pd.DataFrame, start: Start) -> np.ndarray:
    """A judge's bias as in `analysis.forecast.response.bias_of`, shape (K,), from its edits.

    Args:
        edits: `analysis.probes.effects.pairs` of the judge; an edit without a known change is left
            out.
        texts: behaviours of every probe, by ``probe_id``.

    NaN where fewer edits than behaviours are known.
    """
    names = list(start.names[:-1])
    columns = [WORDS.get(name, name) for name in names]
    by_id = texts.drop_duplicates("probe_id").set_index("probe_id")[columns].astype(float)
    known_edits = edits[edits["bias_change"].notna()]
    sd = np.where(start.varies, start.sd, np.inf)[:-1]
    change = (
        by_id.loc[known_edits["probe_id"]].to_numpy() - by_id.loc[known_edits["against"]].to_numpy()
    )
    x, y = change / sd, known_edits["bias_change"].to_numpy(dtype=float)
    if len(y) <= len(names):
        return np.full(len(names), NAN)
    paid = np.linalg.solve(x.T @ x + RIDGE * len(y) * np.eye(len(names)), x.T @ y)
    noise = float(((y - x @ paid) ** 2).mean()) / 2  # of a difference of two scores
    weights = np.append(paid, start.sd[-1])
    return paid / float(weights @ start.correlation @ weights + noise) ** 0.5


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
