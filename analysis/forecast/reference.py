"""The truth of rollouts before training where no rule knows it: what a study's reference says.

An audit asks about a share of the groups, and a forecast rests on few; so the judges that audit the
study are asked about all of these. What a person said of a share is not enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from judges.ask.identity import judge_id
from judges.ask.replies import open_store
from judges.ask.session import Session
from study.cell import audit as kept
from study.config.compose import load_presets
from study.config.schema import Judge, Study
from study.errors import UserError
from study.rows import Row
from study.tasks import oracle
from study.verdict import Verdict, mean_score


def reference_of(study_dir: Path, config: Study) -> list[Judge]:
    """The judges that audit a study; none where nobody or a person does.
    Raises UserError: its audit asked one with settings that its preset does not have."""
    audit = kept.load(study_dir)
    if audit is None:
        return config.auditors
    if audit.by_person:
        return []
    judges = [load_presets(name)[0] for name in audit.reference]
    if tuple(map(judge_id, judges)) != audit.reference_ids:
        raise UserError(
            f"The audit of {study_dir.name} asked {', '.join(audit.reference)} with settings that"
            " the preset does not have, so that it cannot be asked about the rollouts before"
            " training. Write these settings into a preset of that name in ./conf/judge."
        )
    return judges


def votes_of(
    judges: Sequence[Judge],
    items_N: Sequence[tuple[Row, str] | None],
    group_size: int,
    config: Study,
    runs_dir: Path,
) -> list[list[list[Verdict]]]:
    """Each judge's votes on each of N answers in groups. Raises UserError: one cannot be asked."""
    truth_of = oracle(config.task)
    if any(judge.simulated is not None for judge in judges):  # they say at once what they say
        pairs = [item for item in items_N if item is not None]
        truth_of.truths([row for row, _ in pairs], [answer for _, answer in pairs])
    votes_J_N = []
    with open_store(runs_dir, config.store) as store:
        for judge in judges:
            with Session(judge, store, truth_of) as session:
                session.check()
                votes_J_N.append(session.ask_many(items_N, group_size))
                session.stop_if_refused()
    return votes_J_N


def with_reference(
    truth_P_M: np.ndarray,
    items_P_M: list[list[tuple[Row, str] | None]],
    study_dir: Path,
    config: Study,
) -> np.ndarray:
    """The truth of M rollouts of each of P prompts, that of groups without one by the reference:
    the mean of its judges, NaN where one gave no score.

    Args:
        items_P_M: row and answer of each; None for a program without an answer.

    Raises:
        UserError: as `reference_of`, or a judge cannot be asked.
    """
    unknown_P = np.asarray(np.isnan(truth_P_M).all(axis=1))
    judges = reference_of(study_dir, config) if unknown_P.any() else []
    if not judges:
        return truth_P_M
    items = [
        item
        for unknown, group in zip(unknown_P, items_P_M, strict=True)
        if unknown
        for item in group
    ]
    votes_J_N = votes_of(judges, items, truth_P_M.shape[1], config, study_dir.parent)
    scores_J_N = [[mean_score(votes) for votes in votes_N] for votes_N in votes_J_N]
    out = truth_P_M.copy()
    mean_N = np.array(scores_J_N, dtype=float).mean(axis=0)
    out[unknown_P] = mean_N.reshape(-1, truth_P_M.shape[1])
    return out
