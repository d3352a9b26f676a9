"""The alarm on judge minus truth that may end a run (``correction.stop``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from analysis.onset.estimate import stops
from analysis.records.audited import Reference, by_rule_or_reference, mean_scores
from analysis.records.runs import Run
from study.cell.audit import AUDIT
from study.cell.folder import CellFolder
from study.cell.parts import read_part
from study.cell.records import CORRECTED
from study.config.identity import flatten
from study.config.schema import Study
from study.features import FEATURES, measured
from study.rewards.corrections.checks import keyword_of
from study.verdict import VerdictRow

COLUMNS = ("rollout_id", "step", "prompt_id", "answer", "judge_score", CORRECTED, "truth")
VOTES = ("rollout_id", "role", "judge", "score")


class _Step(NamedTuple):
    """One step: score, truth by rule and that by ``truth.audit`` (P, G), features (P, G, K), the
    prompt of each group and whether it was audited (P,)."""

    scores: np.ndarray
    truths: np.ndarray
    audits: np.ndarray
    features: np.ndarray
    prompts: np.ndarray
    asked: np.ndarray


class Alarm:
    """What a run has on record of judge and truth, and the step at which that says stop.

    Args:
        folder: of the cell, whose recorded steps count; they are those before a resumed one.
    """

    def __init__(self, config: Study, folder: CellFolder) -> None:
        self._config = config
        self._flat = flatten(dataclasses.asdict(config))
        self._steps: dict[int, _Step] = {}
        votes = {part.step: part for part in folder.parts("verdicts")} if config.truth.audit else {}
        for part in folder.parts("rollouts"):
            of_step = votes.get(part.step)
            audits = [] if of_step is None else read_part(of_step, VOTES).to_pylist()
            self.add(read_part(part, COLUMNS).to_pylist(), audits)

    def add(self, rollouts: Iterable[Mapping[str, Any]], verdicts: Iterable[VerdictRow]) -> None:
        """The rollouts of one more step, in group order, and the verdicts on them. The score is the
        one that was rewarded."""
        rows, size = list(rollouts), self._config.trainer.group_size
        score = CORRECTED if self._config.correction.changes else "judge_score"
        scores, truths = (
            np.array([row.get(name) for row in rows], dtype=float).reshape(-1, size)
            for name in (score, "truth")
        )
        votes = [vote for vote in verdicts if vote["role"] == AUDIT]
        audit_of = mean_scores(votes, len(self._config.truth.audit))
        audits = np.array([audit_of.get(row["rollout_id"]) for row in rows], dtype=float)
        asked = np.array([row["rollout_id"] in audit_of for row in rows]).reshape(-1, size)
        features = measured([row["answer"] for row in rows], keyword_of(self._config))
        prompts = np.array([row["prompt_id"] for row in rows[::size]], dtype=object)
        self._steps[rows[0]["step"]] = _Step(
            scores,
            truths,
            audits.reshape(-1, size),
            features.reshape(-1, size, len(FEATURES)),
            prompts,
            np.asarray(asked.any(axis=1)),
        )

    @property
    def step(self) -> int | None:
        """The step at which the run ends, the last on record; None where it goes on."""
        if not self._steps:
            return None
        columns = map(np.concatenate, zip(*self._steps.values(), strict=True))
        scores, truths, audits, features, prompts, asked_P = columns
        step_P = np.repeat(list(self._steps), [len(each.prompts) for each in self._steps.values()])
        reference = None
        if asked_P.any():
            truths, own_P = by_rule_or_reference(truths, audits, asked_P)
            reference = Reference(audits, asked_P, own_P, np.zeros_like(step_P), {})
        run = Run(
            cell="",
            arm="",
            seed=self._config.seed,
            done=False,
            step_P=step_P,
            reward=scores,
            advantage=scores,
            truth=truths,
            judge=scores,
            features=features,
            names=FEATURES,
            prompt_P=prompts,
            config=self._flat,
            reference=reference,
        )
        return max(self._steps) if stops(run) else None
