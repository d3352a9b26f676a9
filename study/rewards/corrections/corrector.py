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
from pathlib import Path

import numpy as np

from study.cell.parts import read_all
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
class Heard:
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
    def asked(self) -> np.ndarray:
        """Whether there was an answer to judge, (P, G)."""
        return self.array([rollout.was_asked for rollout in self.inputs]) > 0

    @cached_property
    def truths(self) -> np.ndarray:
        """The rule truth of what was judged, (P, G)."""
        told = self.array([rollout.truth for rollout in self.inputs])
        return np.where(self.asked, told, np.nan)

    def features(self, names: Iterable[str]) -> np.ndarray:
        """Features of the answers as a judge was shown them, (P, G, K)."""
        told = measured([rollout.answer for rollout in self.inputs], keyword_of(self.config))
        columns = told[:, [FEATURES.index(name) for name in names]]
        return columns.reshape(*self.asked.shape, -1)


def _dropout(heard: Heard, scores: np.ndarray) -> np.ndarray:
    config = heard.config
    share = config.correction.rubric_dropout
    floor = 0.0 if config.judge.grading.options.get("clip", "zero") == "zero" else -math.inf
    again: Scores = []
    for rollout, votes in zip(heard.inputs, heard.votes_N, strict=True):
        criteria, prompt = rollout.asked.criteria, rollout.row.prompt_id
        places = draws.kept(criteria, share, config.seed, heard.step, prompt)
        told = [
            rubric_score([criteria[k] for k in places], [vote.labels[k] for k in places])
            if len(vote.labels) == len(criteria)
            else vote.score  # of a judge that labels nothing
            for vote in votes
            if vote.score is not None
        ]
        known = [max(floor, score) for score in told if score is not None]
        again.append(sum(known) / len(known) if known else None)
    return heard.array(again)


def _without(heard: Heard, scores: np.ndarray) -> np.ndarray:
    correction = heard.config.correction
    parts = [correction.parts[name] for name in correction.without]
    return behaviour.without(scores, heard.features(correction.without), parts)


def _panel(heard: Heard, scores: np.ndarray) -> np.ndarray:
    others = [heard.array(scores_N) for scores_N in heard.shadows_J_N]
    return together(np.stack([scores, *others]), heard.config.correction.panel)


def _debias(heard: Heard, scores: np.ndarray) -> np.ndarray:
    return behaviour.debiased(scores, heard.features(heard.config.correction.debias))


def _penalty(heard: Heard, scores: np.ndarray) -> np.ndarray:
    weights = heard.config.correction.penalty
    return behaviour.penalised(scores, heard.features(weights), list(weights.values()))


FIRST: Mapping[str, Callable[[Heard, np.ndarray], np.ndarray]] = {
    "rubric_dropout": _dropout,
    "without": _without,
    "panel": _panel,
}
"""Setting -> what it makes of the scores (P, G), in order, before they are calibrated."""
LAST: Mapping[str, Callable[[Heard, np.ndarray], np.ndarray]] = {
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

    def __call__(self, heard: Heard) -> tuple[Scores, list[Columns]]:
        """The N scores, None where one is missing; no terms where nothing is corrected."""
        correction = heard.config.correction
        given = [mean_score(votes) for votes in heard.votes_N]
        if not correction.changes:
            return given, [{} for _ in given]
        scores, columns = self._made(FIRST, heard, heard.array(given)), {}
        if correction.calibrate:
            columns[UNCALIBRATED] = scores
            scores = self._calibrated(heard, scores)
        scores = self._made(LAST, heard, scores)
        if correction.recheck:
            again = _rechecked(heard)
            columns[RECHECKED] = again.astype(float)
            scores = np.where(again, heard.truths, scores)
        columns[CORRECTED.removeprefix(COMPONENT)] = scores
        return _plain(scores), [
            dict(zip(columns, row, strict=True))
            for row in zip(*map(_plain, columns.values()), strict=True)
        ]

    @staticmethod
    def _made(
        steps: Mapping[str, Callable[[Heard, np.ndarray], np.ndarray]],
        heard: Heard,
        scores: np.ndarray,
    ) -> np.ndarray:
        for name, change in steps.items():
            if getattr(heard.config.correction, name) not in ([], {}, 0, "none"):
                scores = np.where(heard.asked, change(heard, scores), np.nan)
        return scores

    def _calibrated(self, heard: Heard, scores: np.ndarray) -> np.ndarray:
        """The scores on the truth's scale, once there are labels enough; until then as they are."""
        wanted = heard.config.correction.calibrate
        both = np.isfinite(scores) & np.isfinite(heard.truths)
        pairs = zip(scores[both].tolist(), heard.truths[both].tolist(), strict=True)
        self.labelled = [*self.labelled, *pairs][:wanted]
        if len(self.labelled) < wanted:
            return scores
        return fitted(*np.array(self.labelled).T)(scores)


def labelled_in(cell: Path) -> list[tuple[float, float]]:
    """Scores before calibration, and the truths, of a cell's rollouts on record, in their order."""
    names = [f"{COMPONENT}{UNCALIBRATED}", "truth"]
    rows = (row for _, table in read_all(cell / "rollouts", names) for row in table.to_pylist())
    pairs = (tuple(row.get(name) for name in names) for row in rows)
    return [(score, truth) for score, truth in pairs if score is not None and truth is not None]


def _rechecked(heard: Heard) -> np.ndarray:
    """Which rollouts get the rule's word, (P, G): of those drawn, the ones whose truth is known."""
    config = heard.config
    size = heard.group_size
    drawn = [
        draws.rechecked(
            config.correction.recheck, config.seed, heard.step, rollout.row.prompt_id, place % size
        )
        for place, rollout in enumerate(heard.inputs)
    ]
    return (heard.array(drawn) > 0) & np.isfinite(heard.truths)


def _plain(values_P_G: np.ndarray) -> Scores:
    return [None if value != value else value for value in values_P_G.ravel().tolist()]
