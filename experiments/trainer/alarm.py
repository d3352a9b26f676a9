"""The alarm on judge minus truth that may end a run (``correction.stop``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from analysis.run.early_stop import stop_at
from study.records import CORRECTED, parts, read_part
from study.schema import Study


class Alarm:
    """What a run has on record of judge and truth, and the step at which that says stop.

    Args:
        folder: of the cell, whose recorded steps count; they are those before a resumed one.
    """

    def __init__(self, config: Study, folder: Path) -> None:
        self._config = config
        self._judge: dict[int, np.ndarray] = {}
        self._truth: dict[int, np.ndarray] = {}
        for part in parts(folder / "rollouts"):
            self.add(read_part(part, ["step", "judge_score", CORRECTED, "truth"]).to_pylist())

    def add(self, rollouts: Iterable[Mapping[str, Any]]) -> None:
        """The rollouts of one more step, in group order. The score is the one that was rewarded."""
        rows = list(rollouts)
        score = CORRECTED if self._config.correction.changes else "judge_score"
        for columns, name in ((self._judge, score), (self._truth, "truth")):
            values = np.array([row.get(name) for row in rows], dtype=float)
            columns[rows[0]["step"]] = values.reshape(-1, self._config.trainer.group_size)

    @property
    def step(self) -> int | None:
        """The step at which the run ends, the last on record; None where it goes on."""
        if not self._judge:
            return None
        step_P = np.repeat(list(self._judge), [len(rows) for rows in self._judge.values()])
        judge, truth = (np.concatenate(list(c.values())) for c in (self._judge, self._truth))
        stops = stop_at(step_P, judge, truth, self._config.trainer.steps) is not None
        return max(self._judge) if stops else None
