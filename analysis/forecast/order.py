"""Which judge to train under: the truth to expect after training, and how sure the order is.

The shift of a run is taken for normal about its forecast, with the width of its prediction
interval, and runs for independent: ``P(a > b) = Phi((m_a - m_b) / sqrt(s_a^2 + s_b^2))``. Orders
come out over pairs of runs of two judges in one training: Kendall's tau is the share of pairs in
the forecast order less that of the others, Brier's score the mean of (P - 1[a > b])^2. An order
that knows no probabilities is taken for sure.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from analysis.forecast.candidates import Candidates
from analysis.forecast.estimate import BaseRewards
from analysis.forecast.replay import Pay
from analysis.forecast.start import Start
from analysis.forecast.units import LEVEL, Fitted, Trained, estimates, forecast_of, runs_to_score
from analysis.statistics.agreement import jackknife
from analysis.statistics.estimate import NAN, NO_ESTIMATE, Estimate, columns, known_mean

FORECAST, CHANCE = "forecast", "chance"


@dataclass(frozen=True)
class Standing:
    """One judge among the candidates.

    Attributes:
        truth: after training, of one run, with its prediction interval.
        harm: truth that is expected to be lost, E max(0, before - after).
        verdicts: that one training asks for.
    """

    judge: str
    truth: Estimate
    harm: float
    verdicts: int


@dataclass(frozen=True)
class Better:
    """``chance`` that a run under ``judge`` ends with more truth than one under ``other``."""

    judge: str
    other: str
    chance: float


@dataclass(frozen=True)
class OrderScore:
    """How one method's order of the judges came out; ``tau`` with its jackknife over judges."""

    method: str
    judges: int
    pairs: int
    tau: Estimate
    brier: float


@dataclass(frozen=True)
class Order:
    """Judges from the most truth after training to the least, those without a number last."""

    standings: Sequence[Standing] = ()
    better: Sequence[Better] = ()
    scores: Sequence[OrderScore] = ()

    def numbers(self) -> dict[str, object]:
        """For JSON."""
        return {
            "order": [columns(line) for line in self.standings],
            "better": [columns(line) for line in self.better],
            "order_scores": [columns(line) for line in self.scores],
        }


def order(
    kept: Fitted, base_rewards: BaseRewards, judged: Candidates, runs: Trained, count: int = 0
) -> Order:
    """The order of all candidates, and how orders of the judges that were trained came out; with a
    ``count`` of updates that are seen of each judge's first run, on its other runs."""
    start, lines = judged.start, []
    if not start.varies[-1]:
        return Order()
    shift_A, sd_A = np.full(len(judged.arms), NAN), np.full(len(judged.arms), NAN)
    for arm, judge in enumerate(judged.arms):
        of, made = forecast_of(kept, base_rewards, judged, arm, runs, count)
        each = estimates(of, judged, arm, made)[-1]
        shift_A[arm], sd_A[arm] = each.value, (each.high - each.value) / _z()
        mean, sd = float(start.mean[-1]), float(start.sd[-1])
        ends = {
            name: mean + sd * value
            for name, value in (("value", each.value), ("low", each.low), ("high", each.high))
        }
        trainer = judged.pays[arm].trainer
        answers = trainer.steps * trainer.prompts_per_step * trainer.group_size
        lines.append(
            Standing(
                judge=judge,
                truth=replace(each, **ends),
                harm=sd * _loss(shift_A[arm], sd_A[arm]),
                verdicts=answers * _votes(base_rewards, judge),
            )
        )
    lines.sort(key=lambda line: (np.isnan(line.truth.value), -line.truth.value))
    chance_A_A = _chances(shift_A, sd_A)
    at = {judge: arm for arm, judge in enumerate(judged.arms)}
    known = [line.judge for line in lines if np.isfinite(line.truth.value)]
    better = [
        Better(judge, other, float(chance_A_A[at[judge], at[other]]))
        for judge, other in itertools.combinations(known, 2)
    ]
    return Order(lines, better, order_scores(judged, runs, chance_A_A, count))


def order_scores(
    judged: Candidates, runs: Trained, chance_A_A: np.ndarray, count: int = 0
) -> list[OrderScore]:
    """How the forecast's order came out beside others; none where no two judges were trained alike.

    Args:
        chance_A_A: that a run under the first ends with more truth than one under the second; NaN
            is unknown, and such pairs are in no score.
    """
    observed_R = runs.shift[:, -1]
    shown = [
        place for arm in np.unique(runs.arm) for place in runs_to_score(runs, arm, count).tolist()
    ]
    known = [place for place in sorted(shown) if np.isfinite(observed_R[place])]
    pairs = [
        (one, two)
        for one, two in itertools.combinations(known, 2)
        for a, b in [(int(runs.arm[one]), int(runs.arm[two]))]
        if judged.judges[a] != judged.judges[b]
        and judged.pays[a].trainer == judged.pays[b].trainer
        and np.isfinite(chance_A_A[a, b])
        and observed_R[one] != observed_R[two]
    ]
    if not pairs:
        return []
    one_N, two_N = np.array(pairs).T
    a_N, b_N = runs.arm[one_N], runs.arm[two_N]
    is_above = observed_R[one_N] > observed_R[two_N]
    names = np.array(judged.judges)
    judge_N_2 = np.stack([names[a_N], names[b_N]], axis=1)
    return [
        _score(method, chance[a_N, b_N], is_above, judge_N_2)
        for method, chance in {FORECAST: chance_A_A, **_simple_orders(judged)}.items()
    ]


def _score(
    method: str, chance_N: np.ndarray, is_above_N: np.ndarray, judge_N_2: np.ndarray
) -> OrderScore:
    agree_N = np.sign(chance_N - 0.5) * np.where(is_above_N, 1.0, -1.0)
    judges = np.unique(judge_N_2)
    whole = float(agree_N.mean())
    without = [known_mean(agree_N[(judge_N_2 != judge).all(axis=1)]) for judge in judges]
    is_told = bool((agree_N != 0).any())
    tau = jackknife(whole, without, len(judges), "few judges") if is_told else NO_ESTIMATE
    return OrderScore(
        method=method,
        judges=len(judges),
        pairs=len(chance_N),
        tau=replace(tau, unit="judge"),
        brier=float(((chance_N - is_above_N) ** 2).mean()),
    )


def _simple_orders(judged: Candidates) -> Mapping[str, np.ndarray]:
    """Method -> chances that the first judge of two is the better one, shape (A, A)."""
    picked = np.array([best_of_group(judged.start, pay) for pay in judged.pays])
    size = -np.sqrt((np.nan_to_num(judged.bias) ** 2).sum(axis=1))
    return {
        "best of group": _sure(picked),
        "least bias": _sure(size),
        CHANCE: np.full((len(picked), len(picked)), 0.5),
    }


def best_of_group(start: Start, pay: Pay) -> float:
    """Mean truth, in SDs from the start, of the rollout that the judge pays the most in each group
    of the training's size; those that it pays alike count as their mean."""
    size = pay.group_size
    whole = pay.rewards.shape[1] // size * size
    paid = pay.rewards[:, :whole].reshape(-1, size)
    truth = start.z[:, :whole, -1].reshape(-1, size)
    most = np.fmax.reduce(paid, axis=1)
    picked = (paid == most[:, None]) & np.isfinite(truth)
    of_group = np.where(picked, truth, 0.0).sum(axis=1) / np.maximum(picked.sum(axis=1), 1)
    return known_mean(np.where(picked.any(axis=1), of_group, NAN))


def _votes(base_rewards: BaseRewards, judge: str) -> int:
    """Verdicts that a candidate is asked for on each answer; of a probed one, which is asked for
    none here, one."""
    candidate = base_rewards.candidates.get(judge)
    return 1 if candidate is None else candidate.judge.sampling.votes


def _chances(shift_A: np.ndarray, sd_A: np.ndarray) -> np.ndarray:
    apart = shift_A[:, None] - shift_A
    return np.asarray(stats.norm.cdf(apart / np.hypot(sd_A[:, None], sd_A)))


def _sure(value_A: np.ndarray) -> np.ndarray:
    return 0.5 + 0.5 * np.sign(value_A[:, None] - value_A)


def _loss(shift: float, sd: float) -> float:
    """E max(0, -x) of a normal x."""
    at = shift / sd
    return float(sd * stats.norm.pdf(at) - shift * stats.norm.cdf(-at))


def _z() -> float:
    return float(stats.norm.ppf((1 + LEVEL) / 2))
