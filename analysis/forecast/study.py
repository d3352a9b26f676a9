"""Candidates forecast in units: fitted on their study's runs, or by what another study kept.

`probed` takes judges' biases from probes alone: no candidate is asked about any rollout. An edit of
a text changes its behaviours and, more than it changes the truth, the score. Over all edits of a
folder of probes the pay is the regression of that change on the changes of behaviours. Rollouts
before training are paid so, beside their rule truth; of a judge's own noise there is what the
regression leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.forecast.candidates import Candidates, candidates, start_of_base
from analysis.forecast.estimate import OWN, BaseRewards, ask
from analysis.forecast.order import Order, order
from analysis.forecast.replay import Pay
from analysis.forecast.scores import Scored, scored
from analysis.forecast.start import RIDGE, Start
from analysis.forecast.units import (
    Fitted,
    Forecast,
    beside_observed,
    ended_early,
    fitted,
    forecasts,
    load,
    save,
    trained,
)
from analysis.probes.effects import pairs
from analysis.probes.profile import read, scores
from analysis.records.runs import Run, read_runs
from analysis.statistics.estimate import NAN
from study.config.schema import Trainer
from study.errors import UserError

NAME = "forecast.json"
"""What is kept of a fit, in the folder of its study."""
SHIPPED = "shipped"
FITS = Path(__file__).parent / "fits"
"""Fits that ship, POLICY.json: what the study forecast-fit kept of that policy."""
WORDS = {"length": "words"}
"""Behaviours that a table of probes calls otherwise."""


def probed(folder: Path, base_rewards: BaseRewards) -> Candidates:
    """The probed judges, as they would train from the start of that study. Raises UserError: no
    folder of probes, no judge in it that scores single texts, or a study without a truth."""
    start, trainer = start_of_base(base_rewards), base_rewards.config.trainer
    table = scores(read(folder))
    alone = table[~table["pairwise"]]
    if alone.empty:
        raise UserError(
            f"{folder} has no judge that scores single texts, but a forecast needs scores. Probe"
            " one with another grading, for example judge.grading.name=likert"
        )
    edits = pairs(alone)
    judges = tuple(dict.fromkeys(alone["judge"]))
    of_edits = [edits_of(edits[edits["judge"] == judge], alone, start) for judge in judges]
    unknown = np.full((len(judges), len(start.names)), NAN)
    return Candidates(
        arms=judges,
        start=start,
        pays=tuple(each.pay(base_rewards.truth, start, trainer) for each in of_edits),
        bias=np.array([each.bias(start) for each in of_edits]),
        push=unknown,
        judges=judges,
        families=judges,
        dose=unknown,
    )


@dataclass(frozen=True)
class Edits:
    """What a judge pays for an edit: score per SD of each behaviour, shape (K,), and the SD of its
    own noise in one score."""

    paid: np.ndarray
    noise_sd: float

    def bias(self, start: Start) -> np.ndarray:
        """As `analysis.forecast.start.bias_of`, shape (K,)."""
        weights = np.append(self.paid, start.sd[-1])
        return self.paid / float(weights @ start.correlation @ weights + self.noise_sd**2) ** 0.5

    def pay(self, truth_P_M: np.ndarray, start: Start, trainer: Trainer) -> Pay:
        """What such a judge would pay for the rollouts of a start."""
        noise = np.random.default_rng(0).normal(0, self.noise_sd, truth_P_M.shape)
        return Pay(truth_P_M + start.z[..., :-1] @ self.paid + noise, trainer)


def edits_of(edits: pd.DataFrame, texts: pd.DataFrame, start: Start) -> Edits:
    """What a judge pays for edits, by regression of the change in bias on those of behaviours.

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
        return Edits(np.full(len(names), NAN), 0.0)
    paid = np.linalg.solve(x.T @ x + RIDGE * len(y) * np.eye(len(names)), x.T @ y)
    noise = float(((y - x @ paid) ** 2).mean()) / 2  # of a difference of two scores
    return Edits(paid, noise**0.5)


@dataclass(frozen=True)
class InUnits:
    """Shifts of every candidate, and, of those that were trained, how the forecasts came out.

    Attributes:
        fit: the study whose runs were fitted on.
        updates: of each judge's first run that were seen; all methods are scored on its others.
        ended_early: cells that an alarm ended early, which are in no fit and no score.
        order: judges by the truth to expect after training.
        why_none: why there is nothing; empty where there is.
    """

    fit: str = ""
    updates: int = 0
    ended_early: Sequence[str] = ()
    shifts: Sequence[Forecast] = ()
    scored: Scored = field(default_factory=Scored)
    order: Order = field(default_factory=Order)
    why_none: str = ""

    def numbers(self) -> dict[str, object]:
        """For JSON."""
        if self.why_none:
            return {"no_units": self.why_none}
        return {
            "fit": self.fit,
            "updates": self.updates,
            **({"ended_early": self.ended_early} if self.ended_early else {}),
            "shifts": [line.row() for line in self.shifts],
            **self.scored.numbers(),
            **self.order.numbers(),
        }


def in_units(
    base_rewards: BaseRewards,
    study_dir: Path,
    fit: str = "",
    probes: Path | None = None,
    updates: int = 0,
) -> InUnits:
    """Shifts of every candidate, and how those of trained ones came out.

    Args:
        fit: a study beside this one whose fit is taken as it was kept, or the name of one that
            ships; empty fits on this study's runs and keeps that as ``forecast.json``.
        probes: a folder of probes, whose judges are then the candidates.
        updates: of each judge's first run that are seen.

    Raises UserError: the fit of another study is not there, or is of other behaviours; no folder of
    probes; or a run that made no more updates than are to be seen.
    """
    try:
        judged = probed(probes, base_rewards) if probes else candidates(base_rewards)
        recorded = read_runs(study_dir)[0]
        runs = trained(recorded, judged)
        steps = min((len(each) for each in runs.of_steps), default=updates + 1)
        if updates >= steps:
            raise UserError(
                f"k={updates} updates are to be seen, but a run of study={study_dir.name} has"
                f" {steps} steps. Type k={steps - 1} or less"
            )
        kept = _fitted(base_rewards, study_dir, recorded, fit, judged)
        return InUnits(
            fit=kept.study,
            updates=updates,
            ended_early=[run.cell for run in recorded if ended_early(run)],
            shifts=beside_observed(
                forecasts(kept, base_rewards, judged, runs, updates), judged, runs, updates
            ),
            scored=scored(kept, base_rewards, judged, runs, updates),
            order=order(kept, base_rewards, judged, runs, updates),
        )
    except UserError as error:
        if probes or updates or fit not in ("", SHIPPED):
            raise
        return InUnits(why_none=str(error))


def _fitted(
    base_rewards: BaseRewards,
    study_dir: Path,
    recorded: Sequence[Run],
    fit: str,
    judged: Candidates,
) -> Fitted:
    if fit == SHIPPED:
        return _shipped(base_rewards.policy)
    # what this study kept has seen the arms that are forecast
    if fit and fit != base_rewards.study:
        return load(study_dir.parent / fit / NAME)
    if not base_rewards.of_study:  # judges that are named all take the configuration of one cell
        base_rewards = ask(study_dir, OWN, study_dir.parent / base_rewards.base)
        judged = candidates(base_rewards)
    kept = fitted(base_rewards, judged, trained(recorded, judged))
    save(study_dir / NAME, kept)
    return kept


def _shipped(policy: str) -> Fitted:
    """Raises UserError: none ships for this policy."""
    policies = sorted(path.stem for path in FITS.glob("*.json"))
    if policy not in policies:
        raise UserError(
            f"No fit ships for policy={policy}, only for {', '.join(policies)}: how far it would"
            " move is not known, and the ranks above are all there is. Type judgedrift sweep"
            f" experiment=forecast-build policy={policy}, then judgedrift forecast"
            " study=forecast-build, and fit=forecast-build here."
        )
    return load(FITS / f"{policy}.json")
