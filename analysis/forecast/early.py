"""What a judge's own first updates add to what was forecast of it before training.

A run that made k updates shows where the policy stood after 1 to k of them. The forecast of another
run of this judge moves by a share of what this lies off the replay::

    forecast_k = forecast_0 + w g (seen - replayed),    w = tau^2 / (tau^2 + g^2 sigma^2)

``g`` is how many times further a replay is at the end of training than over these updates, by the
growth of the fit alone; ``sigma^2`` is the variance of what was seen, by the draw of prompts and
answers; ``tau^2`` is what runs of one judge share of their distance from forecasts of judges left
out (`analysis.forecast.spread`). Where the first updates say nothing, w is 0 and the forecast
stays what it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.forecast.candidates import Candidates
from analysis.forecast.replay import PARTS, Follows, exposed, replay
from analysis.forecast.spread import Spread
from analysis.records.runs import tenths
from analysis.statistics.estimate import known_means


@dataclass(frozen=True)
class Updates:
    """What the first updates of a run add to the forecast of another.

    Attributes:
        seen, replayed: mean distance from the policy before training, in SDs, shape (K1,).
        weight: of the difference, w g in the formula above, shape (K1,).
    """

    seen: np.ndarray
    replayed: np.ndarray
    weight: np.ndarray

    @property
    def correction(self) -> np.ndarray:
        """What is added to the forecast, in SDs, shape (K1,); 0 where nothing was seen."""
        return np.nan_to_num(self.weight * (self.seen - self.replayed))


def updates(
    of_steps_T_K1: np.ndarray,
    count: int,
    follows: Follows,
    spread: Spread,
    judged: Candidates,
    arm: int,
    taught_K1: np.ndarray,
) -> Updates:
    """The first ``count`` updates of a run of one candidate, without what came after them.

    Args:
        of_steps_T_K1: mean of each step's rollouts, in SDs from the start; those of the first step
            had no update behind them.
        taught_K1: what the forecast before training says that the judge teaches.
    """
    pay, start = judged.pays[arm], judged.start
    share = exposed(pay.trainer)
    after = share[1 : count + 1]
    shown = replay(start, pay, follows)
    parts = np.linspace(0, 1, PARTS + 1)
    courses = np.array([np.interp(after, parts, column).mean() for column in shown.shift.T])
    drifted = follows.drift * judged.exposure[arm] / follows.exposure * after.mean()
    further = tenths(share**follows.growth)[1].mean() / (after**follows.growth).mean()
    variance = start.sampling(pay.trainer.prompts_per_step, pay.group_size) / len(after)
    sds = spread.sds(taught_K1[None], judged.sampling[arm][None])[0]
    about = spread.shared * sds**2
    noise = further**2 * variance
    total = about + noise
    weight = further * np.divide(about, total, out=np.zeros(len(total)), where=total > 0)
    return Updates(known_means(of_steps_T_K1[1 : count + 1]), courses + drifted, weight)
