"""The alarm on judge minus truth that may end a run (``correction.stop``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from analysis.onset.estimate import stops
from analysis.records.runs import Run
from study.cell.folder import CellFolder
from study.cell.parts import read_part
from study.cell.records import CORRECTED
from study.config.schema import Study
from study.features import FEATURES, measured
from study.rewards.corrections.checks import keyword_of

COLUMNS = ("step", "prompt_id", "answer", "judge_score", CORRECTED, "truth")


class Alarm:
    """What a run has on record of judge and truth, and the step at which that says stop.

    Args:
        folder: of the cell, whose recorded steps count; they are those before a resumed one.
    """

    def __init__(self, config: Study, folder: CellFolder) -> None:
        self._config = config
        self._steps: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = {}
        """Step -> score and truth (P, G), features (P, G, K), prompt of each group (P,)."""
        for part in folder.parts("rollouts"):
            self.add(read_part(part, COLUMNS).to_pylist())

    def add(self, rollouts: Iterable[Mapping[str, Any]]) -> None:
        """The rollouts of one more step, in group order. The score is the one that was rewarded."""
        rows, size = list(rollouts), self._config.trainer.group_size
        score = CORRECTED if self._config.correction.changes else "judge_score"
        scores, truths = (
            np.array([row.get(name) for row in rows], dtype=float).reshape(-1, size)
            for name in (score, "truth")
        )
        features = measured([row["answer"] for row in rows], keyword_of(self._config))
        shaped = features.reshape(-1, size, len(FEATURES))
        prompts = np.array([row["prompt_id"] for row in rows[::size]], dtype=object)
        self._steps[rows[0]["step"]] = scores, truths, shaped, prompts

    @property
    def step(self) -> int | None:
        """The step at which the run ends, the last on record; None where it goes on."""
        if not self._steps:
            return None
        columns = zip(*self._steps.values(), strict=True)
        scores, truths, features, prompts = (np.concatenate(column) for column in columns)
        step_P = np.repeat(
            list(self._steps), [len(columns_of_step[0]) for columns_of_step in self._steps.values()]
        )
        axes = ("", "", self._config.seed, False, step_P)
        arrays = (scores, scores, truths, scores, features)
        run = Run(*axes, *arrays, FEATURES, prompt_P=prompts)
        return max(self._steps) if stops(run, self._config.trainer.steps) else None
