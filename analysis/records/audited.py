"""What a reference said of a run's audited answers, and what that says of all of its answers.

A reference, other judges or a person, is asked about whole groups that were drawn at random
(`study.cell.audit`). Its scores are the truth of those groups, and the truth of the others stays
missing: what is measured within groups is measured in a random sample of them. `truth_of_all` is
for means over all answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.records.frames import read_config
from study.cell import audit as kept
from study.cell.audit import Audit, Frame
from study.cell.folder import CellFolder


@dataclass(frozen=True)
class Reference:
    """What the reference said of a run of P groups of G answers.

    Attributes:
        score: (P, G), NaN where it said nothing.
        asked_P: the groups that it was asked about: there nothing is an answer that could not be
            had.
        truth_P: those of them whose truth no rule knows, so that its score is their truth.
        stretch_P: the stretch of the draw that each group is in.
        sizes: stretch -> groups that were drawn from.
    """

    score: np.ndarray
    asked_P: np.ndarray
    truth_P: np.ndarray
    stretch_P: np.ndarray
    sizes: Mapping[int, int]

    def where(self, here_P: np.ndarray) -> Reference:
        """The groups of which ``here_P`` is true."""
        arrays = (self.score, self.asked_P, self.truth_P, self.stretch_P)
        return Reference(*(array[here_P] for array in arrays), self.sizes)


class _Said(NamedTuple):
    """What a reference said of a run: the name under which its answers were drawn, the scores of
    rollouts that it was asked about, the steps that are cut into stretches, and how many groups of
    each stretch could be drawn, where that is on record."""

    name: str
    score_of: Mapping[str, float | None]
    steps: int
    sizes: Mapping[int, int] | None


def with_reference(
    cell: CellFolder,
    rollouts: pd.DataFrame,
    verdicts: pd.DataFrame,
    place: Callable[[np.ndarray], np.ndarray],
    truth_P_G: np.ndarray,
    frozen: bool,
) -> tuple[np.ndarray, Reference | None]:
    """A run's truth, that of audited groups among it, and what the reference said; None where it
    was asked nothing.

    Of a person count the groups up to the first that is not answered whole, of judges those up to
    which all have been asked about (`Audit.asked`). Where none counts, it is what the run's own
    ``truth.audit`` said while it was trained.

    Args:
        rollouts: rollout_id, step, group, prompt_id and answer of N rollouts.
        verdicts: of the run: rollout_id, role, judge and score.
        place: puts an (N,) into (P, G).
        frozen: whether they are answers to held-out rows.

    Raises:
        Damaged: the files of the audit cannot be read.
    """
    said = _afterwards(cell, rollouts, frozen)
    if said is None and not frozen:
        said = _while_trained(cell, rollouts, verdicts)
    if said is None:
        return truth_P_G, None
    answered_N = rollouts["rollout_id"].isin(list(said.score_of)).to_numpy()
    asked_P = (place(answered_N.astype(float)) == 1).any(axis=1)
    scores = [said.score_of.get(name) for name in rollouts["rollout_id"]]
    score = place(np.array(scores, dtype=float))
    score[~asked_P] = np.nan
    truth, own_P = by_rule_or_reference(truth_P_G, score, asked_P)
    step_P, group_P = (
        np.nanmax(place(rollouts[key].to_numpy(float)), axis=1).astype(int)
        for key in ("step", "group")
    )
    stretch_P = Frame(said.name, 0, said.steps, step_P, group_P).stretch_P
    sizes = said.sizes
    if sizes is None:
        numbers, counts = np.unique(stretch_P[np.isnan(truth_P_G).all(axis=1)], return_counts=True)
        sizes = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    return truth, Reference(score, asked_P, own_P, stretch_P, sizes)


def by_rule_or_reference(
    truth_P_G: np.ndarray, score_P_G: np.ndarray, asked_P: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The truth by rule, and the reference's score in asked groups of which no rule knows any; and
    which groups these are, (P,)."""
    own_P = asked_P & np.isnan(truth_P_G).all(axis=1)
    return np.where(own_P[:, None], score_P_G, truth_P_G), own_P


def _afterwards(cell: CellFolder, rollouts: pd.DataFrame, frozen: bool) -> _Said | None:
    """What the audit of the study says of a run; None where it counts no answer of it."""
    audit = kept.load(cell.study_dir)
    name = kept.held_out(cell.name) if frozen else cell.name
    if audit is None or name not in audit.sizes:
        return None
    if audit.by_person:
        score_of = _of_person(cell.study_dir, name, audit, rollouts)
    else:
        score_of = _of_judges(cell.study_dir, name, audit)
    counted = audit.groups if audit.by_person else audit.groups[: audit.asked]
    drawn = {(each.step, each.group) for each in counted if each.cell == name}
    columns = (rollouts[key].tolist() for key in ("rollout_id", "step", "group"))
    counted_of = {
        rollout: score_of[rollout]
        for rollout, *at in zip(*columns, strict=True)
        if tuple(at) in drawn and rollout in score_of
    }
    if not counted_of:
        return None
    return _Said(name, counted_of, audit.steps[name], audit.sizes[name])


def _while_trained(
    cell: CellFolder, rollouts: pd.DataFrame, verdicts: pd.DataFrame
) -> _Said | None:
    """What the judges of a run's own ``truth.audit`` said; None where they were asked nothing."""
    audits = verdicts[verdicts["role"].eq(kept.AUDIT)]
    if audits.empty:
        return None
    config = read_config(cell, [])
    judges = len(config.get("truth", {}).get("audit") or ())
    score_of = mean_scores(audits.to_dict("records"), judges)
    # a run that its alarm may have ended is compared by the tenths of the steps that it made
    steps = int(rollouts["step"].max())
    if not config["correction"]["stop"]:
        steps = max(steps, int(config["trainer"]["steps"]))
    return _Said(cell.name, score_of, steps, None)


def _of_judges(study_dir: Path, cell: str, audit: Audit) -> dict[str, float | None]:
    """Rollout -> `mean_scores` of the judges that were asked after the run."""
    columns = ["rollout_id", "judge", "score"]
    tables = kept.cell_of(study_dir, cell).records("verdicts", columns)
    votes = (vote for _, table in tables for vote in table.to_pylist())
    return mean_scores(votes, len(audit.reference))


def mean_scores(votes: Iterable[Mapping[str, Any]], judges: int) -> dict[str, float | None]:
    """Rollout -> mean of the judges' scores, each that of its votes; None where one gave none.

    Args:
        votes: rollout_id, judge and score of each; a score of None or NaN is none.
        judges: that were asked.
    """
    scores_of: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for vote in votes:
        score, scores = vote["score"], scores_of[vote["rollout_id"]][vote["judge"]]
        if score is not None and score == score:
            scores.append(score)
    return {
        rollout: float(np.mean([np.mean(scores) for scores in by_judge.values()]))
        if len(by_judge) == judges and all(by_judge.values())
        else None
        for rollout, by_judge in scores_of.items()
    }


def _of_person(
    study_dir: Path, cell: str, audit: Audit, rollouts: pd.DataFrame
) -> dict[str, float | None]:
    """Rollout -> the person's score, of the groups that count."""
    answers = kept.load_answers(study_dir)
    whole = kept.answered_groups(audit, kept.load_questions(study_dir), answers)
    columns = (rollouts[name] for name in ("rollout_id", "step", "group", "prompt_id", "answer"))
    names = {
        rollout: kept.question_of(audit, prompt_id, answer if isinstance(answer, str) else "")
        for rollout, step, group, prompt_id, answer in zip(*columns, strict=True)
        if (cell, step, group) in whole
    }
    return {rollout: answers[name] for rollout, name in names.items() if name in answers}


def truth_of_all(
    judge_P_G: np.ndarray, truth_P_G: np.ndarray, reference: Reference, *, by_group: bool
) -> np.ndarray:
    """What the truth of every answer comes to in a mean over answers, (P, G).

    In each stretch it is score - d, where d is the mean of score - truth of the audited answers
    (the difference estimator: Särndal, Swensson and Wretman, Model Assisted Survey Sampling, 6.3).
    Where a rule knows the truth, that stands. NaN without a score, and in a stretch without an
    audited answer.

    Args:
        by_group: also take off (I / p) (score - truth - d), where I is 1 for an audited answer and
            p the share of those: the mean stays the same, and varies over groups as it does over
            draws.
    """
    gap = judge_P_G - truth_P_G
    by_rule_P = ~reference.truth_P & np.isfinite(truth_P_G).any(axis=1)
    out = np.where(by_rule_P[:, None], truth_P_G, np.nan)
    for stretch in np.unique(reference.stretch_P):
        here = (reference.stretch_P == stretch) & ~by_rule_P
        known = np.isfinite(gap[here]) & reference.truth_P[here, None]
        if not known.any():
            continue
        mean = gap[here][known].mean()
        out[here] = judge_P_G[here] - mean
        if by_group:
            share = known.sum() / np.isfinite(judge_P_G[here]).sum()
            out[here] -= np.where(known, gap[here] - mean, 0.0) / share
    return out
