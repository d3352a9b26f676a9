"""Candidates before training: what each judge would pay for, push, and is biased by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.forecast.estimate import BaseRewards
from analysis.forecast.replay import Pay, exposure
from analysis.forecast.start import Start, advantage_push, bias_of, start_of
from analysis.records.runs import tenths
from analysis.statistics.estimate import FLAT, NAN
from study.config.schema import Judge
from study.errors import UserError


@dataclass(frozen=True)
class Candidates:
    """A judges before training.

    Attributes:
        pays: what the training of each would pay for the rollouts of ``start``.
        bias, push: of each, shapes (A, K) and (A, K1).
        judges, families: of each, by which they are left out.
        dose: that was planted in a simulated judge, in score per SD, shape (A, K1); else NaN.
    """

    arms: tuple[str, ...]
    start: Start
    pays: tuple[Pay, ...]
    bias: np.ndarray
    push: np.ndarray
    judges: tuple[str, ...]
    families: tuple[str, ...]
    dose: np.ndarray

    @property
    def exposure(self) -> np.ndarray:
        """Sum of the learning rates of each training, shape (A,)."""
        return np.array([exposure(pay.trainer) for pay in self.pays])

    @property
    def sampling(self) -> np.ndarray:
        """Variance of one run's shift by the draw of prompts and answers alone, in SDs, shape
        (A, K1)."""
        variances = [
            self.start.sampling(pay.trainer.prompts_per_step, pay.group_size)
            * (2 / len(tenths(np.arange(pay.trainer.steps))[0]))
            for pay in self.pays
        ]
        return np.array(variances).reshape(-1, len(self.start.names))


def candidates(base_rewards: BaseRewards) -> Candidates:
    """What the rollouts before training say of every candidate. Raises UserError: none has a
    truth."""
    rollouts, truth = base_rewards.rollouts, base_rewards.truth
    start = start_of_base(base_rewards)
    pays, bias, push, judges = [], [], [], []
    for label, paid in base_rewards.paid.items():
        trainer = base_rewards.trainer(label)
        pay = Pay(paid, trainer)
        pays.append(pay)
        bias.append(bias_of(start, paid, truth))
        push.append(pushed(start, pay))
        judges.append(base_rewards.candidates[label].judge)
    doses = [_doses(judge, start.names) for judge in judges]
    return Candidates(
        arms=tuple(base_rewards.paid),
        start=start,
        pays=tuple(pays),
        bias=np.array(bias).reshape(-1, len(rollouts.names)),
        push=np.array(push).reshape(-1, len(start.names)),
        judges=tuple(repr(replace(judge, name="")) for judge in judges),
        families=tuple(map(family, judges)),
        dose=np.array(doses).reshape(-1, len(start.names)),
    )


def start_of_base(base_rewards: BaseRewards) -> Start:
    """The start of a study. Raises UserError: no rollout has a truth."""
    if not np.isfinite(base_rewards.truth).any():
        raise UserError(
            f"No rule knows the truth of the rollouts of study={base_rewards.base}, and no judges"
            " audit them, so a judge's bias is unknown. Name a reference, for example: judgedrift"
            f" audit study={base_rewards.base} by=qwen3-32b"
        )
    rollouts = base_rewards.rollouts
    return start_of(rollouts.features, base_rewards.truth, rollouts.names)


def pushed(start: Start, pay: Pay) -> np.ndarray:
    """E Cov(A, z) / rms(A) in groups as they are trained, shape (K1,)."""
    size = pay.group_size
    whole = pay.rewards.shape[1] // size * size
    paid = pay.rewards[:, :whole].reshape(-1, size)
    z = start.z[:, :whole].reshape(-1, size, start.z.shape[-1])
    push, square = advantage_push(z, paid, pay.trainer.scale_rewards)
    return push / max(square**0.5, FLAT)


def family(judge: Judge) -> str:
    """Judges that are neighbours: those that pay for the same behaviours, and those of one family
    of models."""
    if judge.simulated is None:
        return judge.family
    return "+".join(sorted(name for name, dose in judge.simulated.doses.items() if dose)) or "none"


def _doses(judge: Judge, names: Sequence[str]) -> list[float]:
    if judge.simulated is None:
        return [NAN] * len(names)
    return [float(judge.simulated.doses.get(name, 0.0)) for name in names]
