"""Shifts at the end of training, forecast in units from rollouts of the policy before training.

What is fitted on finished runs (`analysis.forecast.fit`) says what a judge that was not among them
would teach, by a replay of its training (`analysis.forecast.replay`). Where a study is forecast
from itself, each judge is forecast by the fit to the others: leaving out means the judge with all
its learning rates, steps and seeds, and, as a second forecast, its whole family of biases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.forecast import fit
from analysis.forecast.baselines import (
    BY_BEHAVIOUR,
    DOSE,
    ONE_LINE,
    SIMPLER,
    Simple,
    simple,
)
from analysis.forecast.candidates import Candidates
from analysis.forecast.early import updates
from analysis.forecast.estimate import BaseRewards
from analysis.forecast.fit import course, replayed
from analysis.forecast.replay import Follows
from analysis.forecast.spread import Spread, spread_of
from analysis.forecast.start import TRUTH
from analysis.records.runs import Run, step_means
from analysis.statistics.estimate import NAN, NO_ESTIMATE, Estimate, known_means
from analysis.statistics.intervals import mean_interval
from analysis.statistics.prediction import Prediction
from study.errors import UserError
from study.system.files import read_json, write_json

VERSION = 4
FORECAST, OF_FAMILY, UPDATED = "forecast", "forecast, family unseen", "forecast, updates seen"
FEWEST_ARMS = 4
LEVEL = 0.9
"""Of the prediction intervals."""
FEWEST_SUPPORT = 4.0
"""Rollouts that carry the typical prompt's weights below which the replay has left what the policy
shows before training, and no number is given; half of a prompt's rollouts where it has fewer than
twice as many."""


@dataclass(frozen=True)
class Trained:
    """How R finished runs came out: their arm as a row of `Candidates`, shape (R,), and in SDs of
    the start their `course`, shape (R, W, K1), and where each step's rollouts lay from the start,
    shape (T, K1)."""

    cells: tuple[str, ...]
    arm: np.ndarray
    course: np.ndarray
    of_steps: tuple[np.ndarray, ...] = ()

    @property
    def shift(self) -> np.ndarray:
        """From the first tenth of the steps to the last, shape (R, K1)."""
        return self.course[:, -1]


def trained(recorded: Sequence[Run], judged: Candidates) -> Trained:
    """The finished runs of the candidates' arms, without those that an alarm ended early: they were
    not exposed for as long as a forecast says."""
    runs = [run for run in recorded if run.done and run.arm in judged.arms and not ended_early(run)]
    start = judged.start
    of_steps = [(_of_steps(run, start.names) - start.mean) / start.unit for run in runs]
    courses = [course(each) for each in of_steps]
    of_runs = np.array(courses).reshape(-1, fit.WINDOWS + 1, len(start.names))
    arm = np.array([judged.arms.index(run.arm) for run in runs], dtype=int)
    cells = tuple(run.cell for run in runs)
    return Trained(cells, arm, np.where(start.varies, of_runs, NAN), tuple(of_steps))


def ended_early(run: Run) -> bool:
    """Whether a finished run made fewer steps than it was to make (``correction.stop``)."""
    return run.done and bool(run.steps[-1] < int(run.config.get("trainer.steps") or 0))


def _of_steps(run: Run, names: tuple[str, ...]) -> np.ndarray:
    """Means of behaviours and truth at each step, shape (T, K1)."""
    values = {name: run.features[..., k] for k, name in enumerate(run.names)} | {
        TRUTH: run.levels()
    }
    unknown = np.full(run.truth.shape, NAN)
    return np.array([step_means(run, values.get(name, unknown)) for name in names]).T


@dataclass(frozen=True)
class Shifts:
    """What a fit says of one candidate, in SDs.

    Attributes:
        of_run: shape (K1,); NaN with the reason in ``why_none``.
        taught, drift: what of it the judge teaches, and what every judge does, shapes (K1,).
        support: of the replay's last step.
    """

    of_run: np.ndarray
    taught: np.ndarray
    drift: np.ndarray
    support: float
    why_none: str = ""


def shifts(follows: Follows, judged: Candidates, arm: int) -> Shifts:
    """The shifts of one candidate; none where its rewards do not differ, or where it leads beyond
    what the policy shows before training."""
    start, pay = judged.start, judged.pays[arm]
    courses, support = replayed(start, pay, follows)
    taught, drift = courses[-1], follows.drift * judged.exposure[arm] / follows.exposure
    moved = taught + drift
    why_none = ""
    if not pay.differs:
        why_none = "too few scores that differ to tell its bias"
    elif support < min(FEWEST_SUPPORT, start.z.shape[1] / 2):
        why_none = "the judge leads beyond what the policy shows before training"
    known = start.varies & (not why_none)
    of_run = np.where(known, np.maximum(moved, start.floor), NAN)
    return Shifts(of_run, taught, drift, support, why_none)


@dataclass(frozen=True)
class Fitted:
    """All that is fitted on a study's runs.

    Attributes:
        follows: of `analysis.forecast.fit`.
        spread: of a run about its forecast, `analysis.forecast.spread`.
        left_out, family_left_out: the same without the judge, or its family, of an arm's name.
    """

    study: str
    policy: str
    names: tuple[str, ...]
    arms: int
    follows: Follows
    spread: Spread
    simpler: Mapping[str, Simple]
    left_out: Mapping[str, Fitted] = field(default_factory=dict)
    family_left_out: Mapping[str, Fitted] = field(default_factory=dict)


def fitted(base_rewards: BaseRewards, judged: Candidates, runs: Trained) -> Fitted:
    """Fit on a study's runs. Raises UserError: fewer than four arms have such runs."""
    present = np.unique(runs.arm)
    if len(present) < FEWEST_ARMS:
        raise UserError(
            f"study={base_rewards.study} has runs of {len(present)} arms that made all of"
            f" their steps; the fit needs {FEWEST_ARMS} arms. Type fit=STUDY, a study"
            " with more arms, such as forecast-build."
        )
    count = np.array([(runs.arm == arm).sum() for arm in present])
    of_arms = np.array([known_means(runs.course[runs.arm == arm]) for arm in present])
    pays = [judged.pays[arm] for arm in present]
    fitting = fit.fit(judged.start, pays, of_arms, count, judged.sampling[present])

    def unseen(keys: Sequence[str]) -> dict[int, tuple[Follows, np.ndarray]]:
        """Arm -> the fit without all arms of its key, and which arms those are."""
        by_key: dict[str, list[int]] = {}
        for arm in present.tolist():
            by_key.setdefault(keys[arm], []).append(arm)
        fits = {}
        for arms in by_key.values():
            if len(arms) < len(present):
                rows = np.searchsorted(present, arms).tolist()
                fits |= dict.fromkeys(arms, (fitting.without(rows), np.array(arms)))
        return fits

    by_judge, by_family = unseen(judged.judges), unseen(judged.families)
    # a judge that comes may pay for what none of these paid for
    moved = {
        arm: shifts(by_family.get(arm, each)[0], judged, arm) for arm, each in by_judge.items()
    }
    residual, taught = np.full(runs.shift.shape, NAN), np.full(runs.shift.shape, NAN)
    for run, arm in enumerate(runs.arm.tolist()):
        if arm in moved:
            residual[run] = runs.shift[run] - moved[arm].of_run
            taught[run] = moved[arm].taught

    judge_of = np.unique(judged.judges, return_inverse=True)[1]

    def build(of: Follows, without: np.ndarray) -> Fitted:
        is_in = ~np.isin(runs.arm, without)
        arms_in = runs.arm[is_in]
        spread = spread_of(
            residual[is_in], taught[is_in], judged.sampling[arms_in], judge_of[arms_in], LEVEL
        )
        return Fitted(
            study=base_rewards.study,
            policy=base_rewards.policy,
            names=judged.start.names,
            arms=len(np.unique(runs.arm[is_in])),
            follows=of,
            spread=spread,
            simpler={name: _simple(name, judged, runs, is_in) for name in (*SIMPLER, DOSE)},
        )

    nobody = np.array([], dtype=int)
    return replace(
        build(fitting.follows, nobody),
        left_out={judged.arms[arm]: build(*each) for arm, each in by_judge.items()},
        family_left_out={judged.arms[arm]: build(*each) for arm, each in by_family.items()},
    )


def _x(method: str, judged: Candidates) -> np.ndarray:
    if method == DOSE:
        return judged.dose
    if method == "bias":
        return np.column_stack([judged.bias, np.full(len(judged.bias), NAN)])
    has_push = method in (ONE_LINE, BY_BEHAVIOUR, "covariance")
    return judged.push if has_push else np.zeros(judged.push.shape)


def _simple(method: str, judged: Candidates, runs: Trained, is_in_R: np.ndarray) -> Simple:
    arms = runs.arm[is_in_R]
    return simple(method, _x(method, judged)[arms], judged.exposure[arms], runs.shift[is_in_R])


def save(path: Path, kept: Fitted) -> None:
    """Write what another study can be forecast with; `load` reads it."""
    data = {
        "version": VERSION,
        "study": kept.study,
        "policy": kept.policy,
        "names": list(kept.names),
        "arms": kept.arms,
        "follows": _to_json(kept.follows),
        "spread": _to_json(kept.spread),
        "simpler": {method: _to_json(each) for method, each in kept.simpler.items()},
    }
    write_json(path, data)


def load(path: Path) -> Fitted:
    """What `save` wrote. Raises UserError: it is not there, or of another version."""
    command = f"python -m analysis.forecast study={path.parent.name}"
    if not path.is_file():
        raise UserError(
            f"{path} does not exist: no forecast was fitted on study={path.parent.name}. Type"
            f" {command}"
        )
    data = read_json(path)
    if data.get("version") != VERSION:
        raise UserError(
            f"{path} is of version {data.get('version')}, but this version is {VERSION}. Remove"
            f" it, and type {command}"
        )
    return Fitted(
        study=data["study"],
        policy=data["policy"],
        names=tuple(data["names"]),
        arms=data["arms"],
        follows=Follows(**_from_json(data["follows"])),
        spread=Spread(**_from_json(data["spread"])),
        simpler={method: Simple(**_from_json(each)) for method, each in data["simpler"].items()},
    )


def _to_json(fit: Follows | Spread | Simple) -> dict[str, object]:
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in vars(fit).items()
    }


def _from_json(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: np.array(value, dtype=float) if isinstance(value, list) else value
        for name, value in data.items()
    }


@dataclass(frozen=True)
class Forecast(Prediction):
    """One judge and behaviour (or the truth): its shift in the behaviour's own unit, of one run.

    Attributes:
        sds: the shift in SDs of the rollouts before training.
        sd: of the behaviour, over these rollouts.
        drift: what of the shift every judge teaches.
        support: rollouts that carry the weights at the end, for the typical prompt.
        simpler: method -> the shift by each of `SIMPLER`.
    """

    sds: float
    sd: float
    drift: float
    support: float
    simpler: Mapping[str, float]

    def row(self) -> dict[str, object]:
        """As a row of a table."""
        return {
            "judge": self.arm,
            "feature": self.feature,
            "shift": self.predicted.value,
            "low": self.predicted.low,
            "high": self.predicted.high,
            "observed": self.observed.value,
            "sds": self.sds,
            "sd": self.sd,
            "drift": self.drift,
            "support": self.support,
            "simpler": self.simpler,
        }


def forecasts(
    kept: Fitted,
    base_rewards: BaseRewards,
    judged: Candidates,
    runs: Trained | None = None,
    count: int = 0,
) -> list[Forecast]:
    """Every candidate and behaviour; with a ``count`` of updates, by those of its first run too.
    Raises UserError: fitted on another policy, or other behaviours."""
    if kept.policy != base_rewards.policy:
        raise UserError(
            f"study={kept.study} trained policy={kept.policy}, and study={base_rewards.study}"
            f" policy={base_rewards.policy}: how far it would move is not known."
        )
    if kept.names != judged.start.names:
        raise UserError(
            f"study={kept.study} measured {', '.join(kept.names)}, and "
            f"study={base_rewards.study} {', '.join(judged.start.names)}: a forecast takes the "
            "same behaviours."
        )
    start, lines = judged.start, []
    for arm, judge in enumerate(judged.arms):
        of, made = forecast_of(kept, base_rewards, judged, arm, runs, count)
        made_of = estimates(of, judged, arm, made)
        simpler = {name: shift_of(name, of.simpler[name], judged)[arm] for name in SIMPLER}
        for k, (name, each) in enumerate(zip(start.names, made_of, strict=True)):
            sd = float(start.sd[k])
            ends = {"value": each.value * sd, "low": each.low * sd, "high": each.high * sd}
            lines.append(
                Forecast(
                    cell="",
                    arm=judge,
                    feature=name,
                    observed=NO_ESTIMATE,
                    predicted=replace(each, **ends),
                    sds=each.value,
                    sd=sd,
                    drift=float(made.drift[k] * sd),
                    support=made.support,
                    simpler={m: float(values[k] * sd) for m, values in simpler.items()},
                )
            )
    return lines


def forecast_of(
    kept: Fitted,
    base_rewards: BaseRewards,
    judged: Candidates,
    arm: int,
    runs: Trained | None = None,
    count: int = 0,
) -> tuple[Fitted, Shifts]:
    """The shifts of a candidate and the fit they are by, with what a ``count`` of updates of its
    first run adds."""
    of = fit_of(kept, base_rewards, judged.arms[arm])
    made = shifts(of.follows, judged, arm)
    if runs is not None and count and (runs.arm == arm).any():
        made = updated(of, judged, arm, made, runs, count)
    return of, made


def runs_to_score(runs: Trained, arm: int, count: int) -> np.ndarray:
    """Places of the runs of an arm, but for the first one where updates of it are seen, (S,)."""
    return np.flatnonzero(runs.arm == arm)[bool(count) :]


def beside_observed(
    lines: Sequence[Forecast], judged: Candidates, runs: Trained, count: int = 0
) -> list[Forecast]:
    """The forecasts with the mean shift of the runs of each judge that was trained, but for the one
    whose updates are seen."""
    arm_of = {arm: place for place, arm in enumerate(judged.arms)}
    made = []
    for line in lines:
        at = runs_to_score(runs, arm_of[line.arm], count)
        values = runs.shift[at, judged.start.names.index(line.feature)]
        made.append(replace(line, observed=mean_interval((values * line.sd).tolist())))
    return made


def fit_of(kept: Fitted, base_rewards: BaseRewards, judge: str) -> Fitted:
    """What forecasts a judge: what was fitted without it, where it is an arm of that study."""
    is_own = kept.study == base_rewards.study
    return kept.left_out.get(judge, kept) if is_own else kept


def estimates(of: Fitted, judged: Candidates, arm: int, made: Shifts) -> list[Estimate]:
    """Shifts with prediction intervals of one more run, in SDs, for each of K1."""
    start = judged.start
    sampling = judged.sampling[arm]
    halves = of.spread.halves(made.taught[None], sampling[None])[0]
    # a run's first tenth may lie above the mean that nothing falls below
    floor = start.floor - of.spread.widths * np.sqrt(sampling / 2)
    lows = np.where(np.isfinite(made.of_run), np.maximum(made.of_run - halves, floor), NAN)
    ends = np.array([made.of_run, lows, made.of_run + halves]).T.tolist()
    return [
        Estimate(
            *each, of.arms, "arm", level=LEVEL,
            note=made.why_none if varies else "it did not vary before training",
        )
        for each, varies in zip(ends, start.varies, strict=True)
    ]  # fmt: skip


def updated(
    of: Fitted, judged: Candidates, arm: int, made: Shifts, runs: Trained, count: int
) -> Shifts:
    """The shifts with what the first updates of the candidate's first run add."""
    of_steps = runs.of_steps[int(np.flatnonzero(runs.arm == arm)[0])]
    first = updates(of_steps, count, of.follows, of.spread, judged, arm, made.taught)
    return replace(made, of_run=np.maximum(made.of_run + first.correction, judged.start.floor))


def shift_of(method: str, each: Simple, judged: Candidates) -> np.ndarray:
    """Shifts of every candidate by a simple forecast, (A, K1)."""
    return each.shifts(_x(method, judged), judged.exposure)
