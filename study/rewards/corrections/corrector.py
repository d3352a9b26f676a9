"""From the verdicts of a step to the scores that its rewards are made of:
`study.config.correction`.

The trainer goes this way step by step, and whoever scores recorded rollouts again goes it too.
Verdicts stay on record as they were given; what was made of them stands beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from study.cell.folder import CellFolder
from study.cell.records import COMPONENT, CORRECTED
from study.config.schema import Study
from study.features import FEATURES, measured
from study.rewards.compose import RewardInputs
from study.rewards.corrections import behaviour, draws
from study.rewards.corrections.calibration import fitted
from study.rewards.corrections.checks import keyword_of
from study.rewards.corrections.panel import together
from study.truth.rubric import rubric_score
from study.verdict import Verdict, mean_score

Scores = list[float | None]
Columns = dict[str, float | None]
"""Terms of one rollout that are recorded beside its score."""
UNCALIBRATED, RECHECKED = "uncalibrated", "rechecked"


@dataclass(frozen=True)
class StepVerdicts:
    """The P * G rollouts of one step in group order, and what the judges said of them.

    Attributes:
        votes_N: the acting judge's, with the labels of their criteria.
        shadows_J_N: scores of the judges that look on, None where one gave none.
    """

    config: Study
    step: int
    group_size: int
    inputs: Sequence[RewardInputs]
    votes_N: Sequence[Sequence[Verdict]]
    shadows_J_N: Sequence[Scores] = ()

    def array(self, values_N: Sequence[float | None]) -> np.ndarray:
        """(P, G), NaN where there is none."""
        return np.array(values_N, dtype=float).reshape(-1, self.group_size)

    @cached_property
    def has_answer(self) -> np.ndarray:
        """Whether there was an answer to judge, (P, G)."""
        return self.array([rollout.has_answer for rollout in self.inputs]) > 0

    @cached_property
    def truths(self) -> np.ndarray:
        """The rule truth of what was judged, (P, G)."""
        truths_P_G = self.array([rollout.truth for rollout in self.inputs])
        return np.where(self.has_answer, truths_P_G, np.nan)

    def features(self, names: Iterable[str]) -> np.ndarray:
        """Features of the answers as a judge was shown them, (P, G, K)."""
        features_N_K = measured(
            [rollout.answer for rollout in self.inputs], keyword_of(self.config)
        )
        columns = features_N_K[:, [FEATURES.index(name) for name in names]]
        return columns.reshape(*self.has_answer.shape, -1)


def _dropout(verdicts: StepVerdicts, scores: np.ndarray) -> np.ndarray:
    config = verdicts.config
    share = config.correction.rubric_dropout
    floor = 0.0 if config.judge.grading.options.get("clip", "zero") == "zero" else -math.inf
    again: Scores = []
    for rollout, votes in zip(verdicts.inputs, verdicts.votes_N, strict=True):
        criteria, prompt = rollout.judged_row.criteria, rollout.row.prompt_id
        places = draws.kept(criteria, share, config.seed, verdicts.step, prompt)
        vote_scores = [
            rubric_score([criteria[k] for k in places], [vote.labels[k] for k in places])
            if len(vote.labels) == len(criteria)
            else vote.score  # of a judge that labels nothing
            for vote in votes
            if vote.score is not None
        ]
        present = [max(floor, score) for score in vote_scores if score is not None]
        again.append(sum(present) / len(present) if present else None)
    return verdicts.array(again)


def _without(verdicts: StepVerdicts, scores: np.ndarray) -> np.ndarray:
    correction = verdicts.config.correction
    parts = [correction.parts[name] for name in correction.without]
    return behaviour.without(scores, verdicts.features(correction.without), parts)


def _panel(verdicts: StepVerdicts, scores: np.ndarray) -> np.ndarray:
    others = [verdicts.array(scores_N) for scores_N in verdicts.shadows_J_N]
    return together(np.stack([scores, *others]), verdicts.config.correction.panel)


def _debias(verdicts: StepVerdicts, scores: np.ndarray) -> np.ndarray:
    return behaviour.debiased(scores, verdicts.features(verdicts.config.correction.debias))


def _penalty(verdicts: StepVerdicts, scores: np.ndarray) -> np.ndarray:
    weights = verdicts.config.correction.penalty
    return behaviour.penalised(scores, verdicts.features(weights), list(weights.values()))


FIRST: Mapping[str, Callable[[StepVerdicts, np.ndarray], np.ndarray]] = {
    "rubric_dropout": _dropout,
    "without": _without,
    "panel": _panel,
}
"""Setting -> what it makes of the scores (P, G), in order, before they are calibrated."""
LAST: Mapping[str, Callable[[StepVerdicts, np.ndarray], np.ndarray]] = {
    "debias": _debias,
    "penalty": _penalty,
}
"""The same, after it."""


@dataclass
class Corrector:
    """Callable (a step as it was heard) -> its corrected scores, and the terms that are recorded.

    Attributes:
        labelled: (score before calibration, truth) of rollouts, in the order of their steps; of a
            resumed run those of the steps before.
    """

    labelled: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, verdicts: StepVerdicts) -> tuple[Scores, list[Columns]]:
        """The N scores, None where one is missing; no terms where nothing is corrected."""
        correction = verdicts.config.correction
        mean_scores = [mean_score(votes) for votes in verdicts.votes_N]
        if not correction.changes:
            return mean_scores, [{} for _ in mean_scores]
        scores, columns = self._apply(FIRST, verdicts, verdicts.array(mean_scores)), {}
        if correction.calibrate:
            columns[UNCALIBRATED] = scores
            scores = self._calibrated(verdicts, scores)
        scores = self._apply(LAST, verdicts, scores)
        if correction.recheck:
            again = _rechecked(verdicts)
            columns[RECHECKED] = again.astype(float)
            scores = np.where(again, verdicts.truths, scores)
        columns[CORRECTED.removeprefix(COMPONENT)] = scores
        return _plain(scores), [
            dict(zip(columns, row, strict=True))
            for row in zip(*map(_plain, columns.values()), strict=True)
        ]

    @staticmethod
    def _apply(
        steps: Mapping[str, Callable[[StepVerdicts, np.ndarray], np.ndarray]],
        verdicts: StepVerdicts,
        scores: np.ndarray,
    ) -> np.ndarray:
        for name, change in steps.items():
            if getattr(verdicts.config.correction, name) not in ([], {}, 0, "none"):
                scores = np.where(verdicts.has_answer, change(verdicts, scores), np.nan)
        return scores

    def _calibrated(self, verdicts: StepVerdicts, scores: np.ndarray) -> np.ndarray:
        """The scores on the truth's scale, once there are labels enough; until then as they are."""
        label_count = verdicts.config.correction.calibrate
        both = np.isfinite(scores) & np.isfinite(verdicts.truths)
        pairs = zip(scores[both].tolist(), verdicts.truths[both].tolist(), strict=True)
        self.labelled = [*self.labelled, *pairs][:label_count]
        if len(self.labelled) < label_count:
            return scores
        scores_N, truths_N = np.array(self.labelled).T
        return fitted(scores_N, truths_N)(scores)


def labelled_in(cell: CellFolder) -> list[tuple[float, float]]:
    """Scores before calibration, and the truths, of a cell's rollouts on record, in their order."""
    names = [f"{COMPONENT}{UNCALIBRATED}", "truth"]
    rows = (row for _, table in cell.records("rollouts", names) for row in table.to_pylist())
    pairs = (tuple(row.get(name) for name in names) for row in rows)
    return [(score, truth) for score, truth in pairs if score is not None and truth is not None]


def _rechecked(verdicts: StepVerdicts) -> np.ndarray:
    """Which rollouts get the rule's word, (P, G): of those drawn, the ones whose truth is known."""
    config = verdicts.config
    size = verdicts.group_size
    is_drawn = [
        draws.rechecked(
            config.correction.recheck,
            config.seed,
            verdicts.step,
            rollout.row.prompt_id,
            place % size,
        )
        for place, rollout in enumerate(verdicts.inputs)
    ]
    return (verdicts.array(is_drawn) > 0) & np.isfinite(verdicts.truths)


def _plain(values_P_G: np.ndarray) -> Scores:
    return [None if value != value else value for value in values_P_G.ravel().tolist()]
