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
    SEED,
    SIMPLER,
    Simple,
    simple,
)
from analysis.forecast.candidates import Candidates
from analysis.forecast.estimate import BaseRewards
from analysis.forecast.fit import course, drifts, replayed
from analysis.forecast.replay import Follows
from analysis.forecast.scores import Scored, ceiling, pooled, score
from analysis.forecast.spread import Spread, spread_of
from analysis.forecast.start import TRUTH
from analysis.records.runs import Run, step_means
from analysis.statistics.estimate import NAN, NO_ESTIMATE, Estimate
from analysis.statistics.prediction import Prediction
from study.errors import UserError
from study.system.files import read_json, write_json

VERSION = 3
FORECAST, OF_FAMILY = "forecast", "forecast, family unseen"
FEWEST_ARMS = 4
LEVEL = 0.9
"""Of the prediction intervals."""
FEWEST_SUPPORT = 2.0
"""Rollouts that carry the typical prompt's weights below which the replay has left what the policy
shows before training, and no number is given."""


@dataclass(frozen=True)
class Trained:
    """How R finished runs came out: their arm as a row of `Candidates`, shape (R,), and in SDs of
    the start their `course`, shape (R, W, K1)."""

    cells: tuple[str, ...]
    arm: np.ndarray
    course: np.ndarray

    @property
    def shift(self) -> np.ndarray:
        """From the first tenth of the steps to the last, shape (R, K1)."""
        return self.course[:, -1]


def trained(recorded: Sequence[Run], judged: Candidates) -> Trained:
    """The finished runs of the candidates' arms, without those that an alarm ended early: they were
    not exposed for as long as a forecast says."""
    runs = [run for run in recorded if run.done and run.arm in judged.arms and not ended_early(run)]
    start = judged.start
    courses = [course(_of_steps(run, start.names) / start.unit) for run in runs]
    of_runs = np.array(courses).reshape(-1, fit.WINDOWS + 1, len(start.names))
    arm = np.array([judged.arms.index(run.arm) for run in runs], dtype=int)
    cells = tuple(run.cell for run in runs)
    return Trained(cells, arm, np.where(start.varies, of_runs, NAN))


def ended_early(run: Run) -> bool:
    """Whether a finished run made fewer steps than it was to make (``correction.stop``)."""
    return run.done and bool(run.steps[-1] < int(run.config.get("trainer.steps") or 0))


def _of_steps(run: Run, names: tuple[str, ...]) -> np.ndarray:
    """Means of behaviours and truth at each step, shape (T, K1)."""
    values = {name: run.features[..., k] for k, name in enumerate(run.names)} | {TRUTH: run.truth}
    unknown = np.full(run.truth.shape, NAN)
    return np.array([step_means(run, values.get(name, unknown)) for name in names]).T


@dataclass(frozen=True)
class Shifts:
    """What a fit says of A judges.

    Attributes:
        of_run: in SDs, shape (A, K1); NaN for a judge whose rewards do not differ.
        taught: what of it is the judge's and no drift.
        support: of the replay's last step, shape (A,).
    """

    of_run: np.ndarray
    taught: np.ndarray
    support: np.ndarray


def shifts(follows: Follows, judged: Candidates, arms: Sequence[int]) -> Shifts:
    """The shifts of some candidates."""
    start, pays = judged.start, [judged.pays[arm] for arm in arms]
    replays = [replayed(start, pay, follows) for pay in pays]
    taught = np.array([each[-1] for each, _ in replays]).reshape(-1, len(start.names))
    exposures = judged.exposure[list(arms)] / follows.exposure
    drifted = drifts(exposures, pays)[:, -1:] if pays else np.zeros((0, 1))
    moved = np.maximum(taught + follows.drift * drifted, start.floor)
    differs = np.array([pay.differs for pay in pays], dtype=bool)[:, None]
    of_run = np.where(differs & start.varies, moved, NAN)
    return Shifts(of_run, taught, np.array([support for _, support in replays]))


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
    of_arms = np.array([fit.known_means(runs.course[runs.arm == arm]) for arm in present])
    fitting = fit.fit(judged.start, [judged.pays[arm] for arm in present], of_arms, count)

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
        arm: shifts(by_family.get(arm, each)[0], judged, [arm]) for arm, each in by_judge.items()
    }
    residual, taught = np.full(runs.shift.shape, NAN), np.full(runs.shift.shape, NAN)
    for run, arm in enumerate(runs.arm.tolist()):
        if arm in moved:
            residual[run] = runs.shift[run] - moved[arm].of_run[0]
            taught[run] = moved[arm].taught[0]

    def build(of: Follows, without: np.ndarray) -> Fitted:
        is_in = ~np.isin(runs.arm, without)
        judges_in = len({judged.judges[arm] for arm in runs.arm[is_in].tolist()})
        return Fitted(
            study=base_rewards.study,
            policy=base_rewards.policy,
            names=judged.start.names,
            arms=len(np.unique(runs.arm[is_in])),
            follows=of,
            spread=spread_of(residual[is_in], taught[is_in], judges_in, LEVEL),
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
            "sds": self.sds,
            "sd": self.sd,
            "drift": self.drift,
            "support": self.support,
            "simpler": self.simpler,
            **self.simpler,
        }


def forecasts(kept: Fitted, base_rewards: BaseRewards, judged: Candidates) -> list[Forecast]:
    """Every candidate and behaviour. Raises UserError: fitted on other behaviours."""
    if kept.names != judged.start.names:
        raise UserError(
            f"study={kept.study} measured {', '.join(kept.names)}, and "
            f"study={base_rewards.study} {', '.join(judged.start.names)}: a forecast takes the "
            "same behaviours."
        )
    start, lines = judged.start, []
    is_own = kept.study == base_rewards.study
    for arm, judge in enumerate(judged.arms):
        of = kept.left_out.get(judge, kept) if is_own else kept
        made = shifts(of.follows, judged, [arm])
        predicted = estimates(of, judged, made)[0]
        simpler = {m: _shift_of(m, each, judged)[arm] for m, each in of.simpler.items()}
        share = judged.exposure[arm] / of.follows.exposure
        for k, name in enumerate(start.names):
            sd, each = float(start.sd[k]), predicted[k]
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
                    drift=float(of.follows.drift[k] * share * sd),
                    support=float(made.support[0]),
                    simpler={m: float(values[k] * sd) for m, values in simpler.items()},
                )
            )
    return lines


def estimates(of: Fitted, judged: Candidates, made: Shifts) -> list[list[Estimate]]:
    """Shifts with prediction intervals of one more run, in SDs, for each of A judges and K1."""
    start, halves = judged.start, of.spread.halves(made.taught)
    rows = []
    for values, sizes, support in zip(made.of_run, halves, made.support, strict=True):
        row = []
        for value, half, low, varies in zip(values, sizes, start.floor, start.varies, strict=True):
            note = "" if varies else "it did not vary before training"
            if varies and support < FEWEST_SUPPORT:
                value, note = NAN, "the judge leads beyond what the policy shows before training"
            ends = (float(max(low, value - half)), float(value + half))
            row.append(Estimate(float(value), *ends, of.arms, "arm", level=LEVEL, note=note))
        rows.append(row)
    return rows


def scored(kept: Fitted, base_rewards: BaseRewards, judged: Candidates, runs: Trained) -> Scored:
    """What of each behaviour could be forecast, and how every method did; none without runs."""
    arms = np.unique(runs.arm)
    if not len(arms):
        return Scored()
    start, observed = judged.start, _means(runs.shift, runs.arm, arms)
    is_own = kept.study == base_rewards.study
    own = [kept.left_out.get(judged.arms[arm], kept) if is_own else kept for arm in arms]
    of_family = [kept.family_left_out.get(judged.arms[arm]) for arm in arms] if is_own else []
    ours = np.array(
        [shifts(of.follows, judged, [arm]).of_run[0] for of, arm in zip(own, arms, strict=True)]
    )
    by_method = {FORECAST: ours}
    if any(of_family):
        unseen = [
            shifts(of.follows, judged, [arm]).of_run[0] if of else np.full(len(start.names), NAN)
            for of, arm in zip(of_family, arms, strict=True)
        ]
        by_method[OF_FAMILY] = np.array(unseen)
    for name in (*SIMPLER, DOSE):
        by_method[name] = np.array(
            [
                _shift_of(name, of.simpler[name], judged)[arm]
                for of, arm in zip(own, arms, strict=True)
            ]
        )
    inside, seeds = _inside(own, judged, runs, arms), _seeds(runs, arms)
    ceilings, lines = [], []
    for k, name in enumerate(start.names):
        if not start.varies[k] or not np.isfinite(runs.shift[:, k]).any():
            continue
        top = ceiling(name, runs.shift[:, k], runs.arm, judged.exposure[runs.arm])
        ceilings.append(top)
        for method, values in by_method.items():
            share = inside[k] if method == FORECAST else NAN
            known = int(np.isfinite(runs.shift[:, k]).sum())
            lines.append(score(method, top, values[:, k], observed[:, k], ours[:, k], share, known))
        one, others = (each[:, k] for each in seeds)
        lines.append(score(SEED, top, one, others, ours[:, k], NAN, known))
    if not ceilings:
        return Scored()
    shown = [start.names.index(top.feature) for top in ceilings if top.moves]
    shown = shown or [start.names.index(top.feature) for top in ceilings]
    means = [
        pooled(method, values[:, shown], observed[:, shown], ours[:, shown])
        for method, values in by_method.items()
    ]
    return Scored(ceilings, lines, means)


def _means(shift_R_K1: np.ndarray, arm_R: np.ndarray, arms: np.ndarray) -> np.ndarray:
    return np.array([fit.known_means(shift_R_K1[arm_R == arm]) for arm in arms])


def _seeds(runs: Trained, arms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first run of each judge, which forecasts the mean of its others; NaN where it is alone,
    (A, K1)."""
    of_arms = [runs.shift[runs.arm == arm] for arm in arms]
    return np.array([of[0] for of in of_arms]), np.array(
        [fit.known_means(of[1:]) for of in of_arms]
    )


def _inside(
    own: Sequence[Fitted], judged: Candidates, runs: Trained, arms: np.ndarray
) -> np.ndarray:
    """Share of the runs in their prediction interval, shape (K1,)."""
    hits = np.full(runs.shift.shape, NAN)
    for of, arm in zip(own, arms.tolist(), strict=True):
        (row,) = estimates(of, judged, shifts(of.follows, judged, [arm]))
        low, high = np.array([[each.low, each.high] for each in row]).T
        for run in np.flatnonzero(runs.arm == arm):
            value = runs.shift[run]
            known = np.isfinite(value) & np.isfinite(low) & np.isfinite(high)
            hits[run] = np.where(known, (low <= value) & (value <= high), NAN)
    return fit.known_means(hits)


def _shift_of(method: str, each: Simple, judged: Candidates) -> np.ndarray:
    """Shifts of every candidate by a simple forecast, (A, K1)."""
    return each.shifts(_x(method, judged), judged.exposure)
