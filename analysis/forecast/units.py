"""Shifts at the end of training, forecast in units, beside what takes no theory; and scores.

The forecast is `analysis.forecast.response`: fitted on the runs of a study, it says what a judge
that was not among them would teach, from its bias on first rollouts. Where a study is forecast from
itself, each arm is forecast by the response to the others. Five simpler forecasts stand beside it,
fitted on the same runs; a sixth is none, because it has seen the arm's runs:

``one line``    exposure x (drift + one factor above 0 times the covariance)
``covariance``  one factor above 0 times E Cov(advantage, z) of the first rollouts
``bias``        one factor above 0 times the judge's bias on the behaviour itself
``drift``       the same for every judge: the mean shift of the other arms
``no change``   0
``repetition``  the mean shift of the arm's other runs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from analysis.dose.estimate import trend_p
from analysis.forecast import response
from analysis.forecast.estimate import FirstRewards
from analysis.forecast.response import FEWEST_ARMS, TRUTH, Response, Start
from analysis.records.runs import Run, shift, step_means
from analysis.statistics.estimate import NAN, NO_ESTIMATE, Estimate, around, known_mean
from analysis.statistics.intervals import student
from analysis.statistics.prediction import Prediction, Scores, mean_crps, pearson, score
from study.config.schema import Trainer
from study.errors import UserError
from study.rewards.advantages import advantages
from study.system.files import read_json, write_json

VERSION = 2
FORECAST, REPETITION = "forecast", "repetition"
ONE_LINE = "one line"
SIMPLER = (ONE_LINE, "covariance", "bias", "drift", "no change")
ORDERING = (FORECAST, ONE_LINE, "covariance", "bias")
"""Methods that put judges in an order; the others say the same of all, or have seen the runs."""
MOVES = 0.5
"""SDs from which a behaviour is said to move: the mean shift of some arm."""
HALVED = ("linear", "cosine", "cosine_with_restarts", "polynomial")
"""Schedulers whose mean learning rate is half of the first."""


def exposure(trainer: Trainer) -> float:
    """Sum of the learning rates of a training."""
    share = 0.5 if trainer.lr_scheduler in HALVED else 1.0
    return trainer.learning_rate * trainer.steps * share


@dataclass(frozen=True)
class Candidates:
    """A judges: the start, and of each its bias (A, K), push (A, K1) and exposure (A,)."""

    arms: tuple[str, ...]
    start: Start
    bias: np.ndarray
    push: np.ndarray
    exposure: np.ndarray


def start_of(first_rewards: FirstRewards) -> Start:
    """The start of a study's first rollouts. Raises UserError: no rollout has a truth."""
    if not np.isfinite(first_rewards.truth).any():
        raise UserError(
            f"study={first_rewards.study} has no rule truth, so a judge's bias against it is"
            " unknown."
        )
    return response.start_of(
        first_rewards.rollouts.features, first_rewards.truth, first_rewards.rollouts.names
    )


def candidates(first_rewards: FirstRewards) -> Candidates:
    """What the first rollouts say of every candidate. Raises UserError: no rollout has a truth."""
    features, truth, start = (
        first_rewards.rollouts.features,
        first_rewards.truth,
        start_of(first_rewards),
    )
    bias, push = [], []
    for label, paid in first_rewards.paid.items():
        advantage = np.where(np.isfinite(paid), advantages(paid, first_rewards.scale(label)), NAN)
        bias.append(response.bias_of(start, paid, truth, features))
        push.append(response.push_of(start, advantage, features, truth))
    exposures = [exposure(cell.config.trainer) for cell in first_rewards.cells.values()]
    labels = tuple(first_rewards.paid)
    return Candidates(labels, start, np.array(bias), np.array(push), np.array(exposures))


@dataclass(frozen=True)
class Trained:
    """How R finished runs came out: their arm as a row of `Candidates`, shape (R,), and shifts of
    behaviours and truth in SDs of the start, shape (R, K1)."""

    cells: tuple[str, ...]
    arm: np.ndarray
    shift: np.ndarray


def trained(recorded: Sequence[Run], judged: Candidates) -> Trained:
    """The finished runs of the candidates' arms, without those that an alarm ended early: they were
    not exposed for as long as a forecast says."""
    runs = [run for run in recorded if run.done and run.arm in judged.arms and not ended_early(run)]
    sd = np.where(judged.start.varies, judged.start.sd, NAN)
    shifts = np.array([_shifts(run, judged.start.names) for run in runs]).reshape(-1, len(sd)) / sd
    arm = np.array([judged.arms.index(run.arm) for run in runs], dtype=int)
    return Trained(tuple(run.cell for run in runs), arm, shifts)


def ended_early(run: Run) -> bool:
    """Whether a finished run made fewer steps than it was to make (``correction.stop``)."""
    return run.done and bool(run.steps[-1] < int(run.config.get("trainer.steps") or 0))


def _shifts(run: Run, names: tuple[str, ...]) -> list[float]:
    values = {name: run.features[..., k] for k, name in enumerate(run.names)} | {TRUTH: run.truth}
    unknown = np.full(run.truth.shape, NAN)
    return [shift(step_means(run, values.get(name, unknown))) for name in names]


@dataclass(frozen=True)
class Simple:
    """A forecast without theory: level + factor x, and its spread over runs, in SDs, (K1,).

    With an ``exposure``, the mean of the runs that it was fitted on, level and x are multiplied by
    how many times it a run has.
    """

    level: np.ndarray
    factor: float
    spread: np.ndarray
    exposure: float = 0.0

    def shifts(self, x_A_K1: np.ndarray, exposure_A: np.ndarray) -> np.ndarray:
        """Forecast shifts, shape (A, K1)."""
        moved = self.level + (self.factor * x_A_K1 if self.factor else np.zeros(x_A_K1.shape))
        return moved * (exposure_A / self.exposure)[:, None] if self.exposure else moved


def simple(method: str, judged: Candidates, runs: Trained, in_fit_R: np.ndarray) -> Simple:
    """One of `SIMPLER`, fitted by least squares on the runs that ``in_fit_R`` marks."""
    moved, arms = runs.shift[in_fit_R], runs.arm[in_fit_R]
    x, exposures = _x(method, judged)[arms], judged.exposure[arms]
    mean = float(exposures.mean()) if method == ONE_LINE else 0.0
    share = (exposures / mean if mean else np.ones(len(arms)))[:, None]
    known = np.isfinite(moved) & np.isfinite(x)
    shifts, paid = np.where(known, moved, 0.0), np.where(known, share * x, 0.0)
    drifts = method in (ONE_LINE, "drift")
    times = np.where(known, share, 0.0) if drifts else np.zeros(x.shape)
    runs_squared = (times**2).sum(axis=0)

    def level_of(values_R_K1: np.ndarray) -> np.ndarray:
        total = (times * values_R_K1).sum(axis=0)
        return np.divide(total, runs_squared, out=np.zeros(len(total)), where=runs_squared > 0)

    beside = paid - times * level_of(paid)
    squares = float((beside**2).sum())
    factor = max(0.0, float((beside * shifts).sum()) / squares) if squares else 0.0
    level = np.where(drifts & (runs_squared == 0), NAN, level_of(shifts - factor * paid))
    rest = (moved - share * level - factor * paid) ** 2
    spread = np.array([known_mean(column) ** 0.5 for column in rest.T])
    return Simple(level, factor, spread, mean)


def _x(method: str, judged: Candidates) -> np.ndarray:
    if method in (ONE_LINE, "covariance"):
        return judged.push
    if method == "bias":
        return np.column_stack([judged.bias, np.full(len(judged.bias), NAN)])
    return np.zeros(judged.push.shape)


@dataclass(frozen=True)
class Fitted:
    """All that is fitted on a study's runs. ``left_out`` is the same without the arm of a name."""

    study: str
    steps: int
    names: tuple[str, ...]
    response: Response
    simpler: Mapping[str, Simple]
    left_out: Mapping[str, Fitted] = field(default_factory=dict)


def fitted(first_rewards: FirstRewards, judged: Candidates, runs: Trained) -> Fitted:
    """Fit on a study's runs. Raises UserError: fewer than four arms have such runs."""
    fitted_arms = np.unique(runs.arm)
    if len(fitted_arms) < FEWEST_ARMS:
        raise UserError(
            f"study={first_rewards.study} has runs of {len(fitted_arms)} arms that made all of"
            f" their steps; the response fit needs {FEWEST_ARMS} arms. Type fit=STUDY, a study"
            " with more arms, such as forecast-build."
        )
    exposures = judged.exposure[runs.arm]
    places = np.searchsorted(fitted_arms, runs.arm)
    whole, others = response.leave_one_arm_out(
        judged.start, judged.bias[fitted_arms], places, runs.shift, exposures
    )

    def build_fit(of: Response, in_fit_R: np.ndarray) -> Fitted:
        return Fitted(
            study=first_rewards.study,
            steps=first_rewards.steps,
            names=judged.start.names,
            response=of,
            simpler={method: simple(method, judged, runs, in_fit_R) for method in SIMPLER},
        )

    left_out = {
        judged.arms[arm]: build_fit(of, runs.arm != arm)
        for arm, of in zip(fitted_arms.tolist(), others, strict=True)
    }
    return replace(build_fit(whole, np.ones(len(runs.arm), dtype=bool)), left_out=left_out)


def save(path: Path, response_fit: Fitted) -> None:
    """Write what another study can be forecast with; `load` reads it."""
    data = {
        "version": VERSION,
        "study": response_fit.study,
        "steps": response_fit.steps,
        "names": list(response_fit.names),
        "response": _to_json(response_fit.response),
        "simpler": {method: _to_json(each) for method, each in response_fit.simpler.items()},
    }
    write_json(path, data)


def load(path: Path) -> Fitted:
    """What `save` wrote. Raises UserError: it is not there, or of another version."""
    if not path.is_file():
        name = path.parent.name
        steps = path.stem.removeprefix("response-")
        raise UserError(
            f"{path} does not exist: no forecast was fitted on study={name} with steps={steps}."
            f" Type python -m analysis.forecast study={name} steps={steps}"
        )
    data = read_json(path)
    if data.get("version") != VERSION:
        raise UserError(
            f"{path} is of version {data.get('version')}, but this version is {VERSION}. Remove"
            f" it, and type python -m analysis.forecast study={path.parent.name}"
            f" steps={data.get('steps')}"
        )
    return Fitted(
        study=data["study"],
        steps=data["steps"],
        names=tuple(data["names"]),
        response=Response(**_from_json(data["response"])),
        simpler={method: Simple(**_from_json(each)) for method, each in data["simpler"].items()},
    )


def _to_json(fit: Response | Simple) -> dict[str, object]:
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in vars(fit).items()
    }


def _from_json(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: np.array(value, dtype=float) if isinstance(value, list) else value
        for name, value in data.items()
    }


def by(response_fit: Fitted, first_rewards: FirstRewards, judge: str) -> Fitted:
    """What forecasts a judge: what was fitted on the others where it is an arm of that study."""
    return (
        response_fit.left_out.get(judge, response_fit)
        if response_fit.study == first_rewards.study
        else response_fit
    )


@dataclass(frozen=True)
class Forecast(Prediction):
    """One judge and behaviour (or the truth): its shift in the behaviour's own unit, of one run.

    Attributes:
        sds: the shift in SDs of the first rollouts.
        sd: of the behaviour, over the first rollouts.
        drift: what of the shift every judge teaches.
        simpler: method -> the shift by each of `SIMPLER`.
    """

    sds: float
    sd: float
    drift: float
    simpler: Mapping[str, float]

    def row(self) -> dict[str, object]:
        """As a row of a table."""
        return {
            "judge": self.arm,
            "feature": self.feature,
            "shift": self.predicted.value,
            "low": self.predicted.low,
            "high": self.predicted.high,
            "sds": self.sds,
            "sd": self.sd,
            "drift": self.drift,
            "simpler": self.simpler,
            **self.simpler,
        }


def forecasts(
    response_fit: Fitted, first_rewards: FirstRewards, judged: Candidates
) -> list[Forecast]:
    """Every candidate and behaviour. Raises UserError: fitted on other behaviours."""
    if response_fit.names != judged.start.names:
        raise UserError(
            f"study={response_fit.study} measured {', '.join(response_fit.names)}, and "
            f"study={first_rewards.study} {', '.join(judged.start.names)}: a forecast takes the "
            "same behaviours."
        )
    start, lines = judged.start, []
    for arm, judge in enumerate(judged.arms):
        of = by(response_fit, first_rewards, judge)
        estimates = of.response.forecast(start, judged.bias[arm], judged.exposure[arm])
        drift = of.response.drift * judged.exposure[arm] / of.response.exposure
        simpler = {m: _simply(m, each, judged, arm) for m, each in of.simpler.items()}
        for k, name in enumerate(start.names):
            sd, each = float(start.sd[k]), estimates[k]
            lines.append(
                Forecast(
                    cell="",
                    arm=judge,
                    feature=name,
                    observed=NO_ESTIMATE,
                    predicted=replace(
                        each, value=each.value * sd, low=each.low * sd, high=each.high * sd
                    ),
                    sds=each.value,
                    sd=sd,
                    drift=float(drift[k] * sd),
                    simpler={method: float(values[k] * sd) for method, values in simpler.items()},
                )
            )
    return lines


@dataclass(frozen=True)
class MethodScore:
    """How one method's forecasts of a behaviour came out over runs, in SDs.

    Attributes:
        scores: over runs.
        rho, p: rank correlation of forecast and mean observed shift over arms, permutation p; of
            the methods in `ORDERING`.
        crps: `analysis.statistics.prediction.mean_crps`.
        moves: whether the mean shift of some arm is `MOVES` SDs or more.
    """

    method: str
    feature: str
    scores: Scores
    rho: float
    p: float
    crps: float
    moves: bool

    def row(self) -> dict[str, str | float]:
        """As a row of a table."""
        scores, slope = self.scores, self.scores.slope
        return {
            "method": self.method,
            "feature": self.feature,
            "arms": scores.arms,
            "runs": scores.count,
            "rho": self.rho,
            "p": self.p,
            "r2": scores.r2,
            "slope": slope.value,
            "low": slope.low,
            "high": slope.high,
            "inside": scores.inside,
            "crps": self.crps,
            "moves": self.moves,
        }


def scored(
    response_fit: Fitted, first_rewards: FirstRewards, judged: Candidates, runs: Trained
) -> list[MethodScore]:
    """Every method and behaviour over the finished runs; none where no run is finished."""
    estimates_by_method: dict[str, list[list[Estimate]]] = {
        m: [] for m in (FORECAST, *SIMPLER, REPETITION)
    }
    for run, arm in enumerate(runs.arm):
        of = by(response_fit, first_rewards, judged.arms[arm])
        bias, size = judged.bias[arm], judged.exposure[arm]
        estimates_by_method[FORECAST].append(of.response.forecast(judged.start, bias, size))
        free = max(1, of.response.arms - 1)
        for method, each in of.simpler.items():
            values = _simply(method, each, judged, arm)
            estimates_by_method[method].append(_with_spread(values, each.spread, free))
        sisters = (runs.arm == arm) & (np.arange(len(runs.arm)) != run)
        repeated = np.array([known_mean(column) for column in runs.shift[sisters].T])
        estimates_by_method[REPETITION].append(
            _with_spread(repeated, np.full(len(repeated), NAN), 1)
        )
    lines = []
    for k, name in enumerate(judged.start.names):
        observed = runs.shift[:, k]
        if judged.start.varies[k] and np.isfinite(observed).any():
            means = [known_mean(observed[runs.arm == arm]) for arm in np.unique(runs.arm)]
            moves = bool(np.nanmax(np.abs(means)) >= MOVES)
            lines += [
                _score(
                    method,
                    [
                        Prediction(cell, judged.arms[arm], name, Estimate(value), row[k])
                        for cell, arm, value, row in zip(
                            runs.cells, runs.arm, observed.tolist(), rows, strict=True
                        )
                    ],
                    judged.arms,
                    moves,
                )
                for method, rows in estimates_by_method.items()
            ]
    return lines


def _simply(method: str, fit: Simple, judged: Candidates, arm: int) -> np.ndarray:
    """Shifts of one candidate by one of `SIMPLER`, (K1,)."""
    return fit.shifts(_x(method, judged)[[arm]], judged.exposure[[arm]])[0]


def _with_spread(values: np.ndarray, spread: np.ndarray, free: int) -> list[Estimate]:
    halves = student(free) * spread
    return [
        around(float(value), float(half), free + 1, "arm")
        for value, half in zip(values, halves, strict=True)
    ]


def _score(
    method: str, predictions: list[Prediction], arms: Sequence[str], moves: bool
) -> MethodScore:
    rho, p = _order(predictions, arms) if method in ORDERING else (NAN, NAN)
    return MethodScore(
        method=method,
        feature=predictions[0].feature,
        scores=score(predictions),
        rho=rho,
        p=p,
        crps=mean_crps(predictions),
        moves=moves,
    )


def _order(predictions: list[Prediction], arms: Sequence[str]) -> tuple[float, float]:
    """Rank correlation over arms of the mean shifts that were forecast and observed, and its p."""
    pairs_of = {
        arm: np.array(
            [
                pair
                for each in predictions
                if each.arm == arm
                if np.isfinite(pair := (each.predicted.value, each.observed.value)).all()
            ]
        )
        for arm in arms
    }
    means = [list(map(known_mean, pairs.T)) for pairs in pairs_of.values() if len(pairs)]
    places = stats.rankdata(np.array(means).reshape(-1, 2), axis=0)
    return pearson(*places.T), trend_p(*places.T)
