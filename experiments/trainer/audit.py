"""Truth while a run is trained, where no rule knows it: judges are asked about drawn groups.

``truth.audit`` names them, `study.cell.audit` draws the groups before the first step. What they say
is recorded as verdicts of the role ``audit``; it is in no reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.records.audited import mean_scores
from study.cell.audit import AUDIT, drawn_of
from study.cell.records import rollout_id
from study.config.schema import Study
from study.rewards.compose import RewardInputs
from study.rows import Row
from study.verdict import Verdict, VerdictRow

if TYPE_CHECKING:
    from judges.ask.session import Session


def audits(
    config: Study, step: int, inputs_N: Sequence[RewardInputs], auditors: Sequence[Session]
) -> list[VerdictRow]:
    """What each auditor says of the step's drawn groups, but of those whose truth a rule knows.
    Raises EndpointRefused."""
    size, drawn = config.trainer.group_size, drawn_of(config)
    items: list[tuple[Row, str] | None] = []
    for group, start in enumerate(range(0, len(inputs_N), size)):
        members = inputs_N[start : start + size]
        asks = (step, group) in drawn and all(each.truth is None for each in members)
        items += [(each.row, each.answer) if asks and each.has_answer else None for each in members]
    rows: list[VerdictRow] = []
    for session in auditors if any(items) else ():
        votes_N = session.ask_many(items, size)
        session.stop_if_refused()
        rows += verdict_rows(step, AUDIT, session, votes_N)
    return rows


def audit_metrics(
    rollouts: Sequence[Mapping[str, Any]], verdicts: Sequence[VerdictRow]
) -> dict[str, float]:
    """Means over the audited rollouts of a step that have both: truth, and judge minus truth; none
    where there are none."""
    votes = [vote for vote in verdicts if vote["role"] == AUDIT]
    truth_of = mean_scores(votes, len({vote["judge"] for vote in votes}))
    pairs = [
        (row["judge_score"], truth)
        for row in rollouts
        if (truth := truth_of.get(row["rollout_id"])) is not None and row["judge_score"] is not None
    ]
    if not pairs:
        return {}
    return {
        "truth/audited": sum(truth for _, truth in pairs) / len(pairs),
        "bias/judge_minus_truth": sum(score - truth for score, truth in pairs) / len(pairs),
    }


def verdict_rows(
    step: int, role: str, session: Session, votes_N: Sequence[Sequence[Verdict]]
) -> list[VerdictRow]:
    """One judge's votes on each of N rollouts, as they are recorded."""
    judge = session.judge.name
    return [
        verdict.row_of(rollout_id(step, index), step=step, role=role, judge=judge)
        for index, votes in enumerate(votes_N)
        for verdict in votes
    ]
