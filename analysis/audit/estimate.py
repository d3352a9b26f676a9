"""What the reference of an audit says of a study: how far each arm's judge is above it.

Where no rule knows the truth, the scores of the reference *are* the truth of the audited groups,
and every other subject of the report reads them as such. This one says on how much that rests, and
what the answers that the reference could not give may hide. docs/audits.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis.crossjudge.estimate import within_groups
from analysis.records.runs import Run
from analysis.statistics.estimate import NAN, NO_ESTIMATE, Estimate, around, known_mean
from analysis.statistics.intervals import mean_interval, student
from study.cell import audit as kept
from study.cell.audit import STRETCHES, Audit

WORST = (1.0, 0.0)
"""Scores that a missing one of the reference could have been: the first makes the gap least."""


@dataclass(frozen=True)
class Stratum:
    """One stretch of a run: the groups that were drawn from, and of those drawn the gap."""

    size: int
    gap_P: np.ndarray
    """Mean of score - reference of each drawn group that has both."""


@dataclass(frozen=True)
class ArmAudit:
    """An arm's runs and what the reference says of them; intervals are Student's t over runs, and
    of one run over its groups.

    Attributes:
        groups: that the reference was asked about, of ``of`` that were drawn from.
        answers: in those groups, ``missing`` of them without a score of the reference.
        gap: mean of score - reference over all answers of a run, all stretches by their size.
        least, most: what the gap would be if the reference had given every missing answer 1, or 0.
        truth: mean score less the gap.
        agreement: correlation of score and reference within groups.
        by_rule: mean of score - rule truth, where a rule knows the truth of the same runs.
        by_stretch: the gap of each stretch.
    """

    arm: str
    runs: int
    groups: int
    of: int
    answers: int
    missing: int
    gap: Estimate
    least: float
    most: float
    truth: Estimate
    agreement: Estimate
    by_rule: Estimate
    by_stretch: tuple[Estimate, ...]

    @property
    def has_rule(self) -> bool:
        """Whether a rule knows the truth beside the reference."""
        return self.by_rule.value == self.by_rule.value


class _OfRun(NamedTuple):
    """One run's numbers; see `ArmAudit`."""

    gap: Estimate
    least: float
    most: float
    truth: float
    agreement: float
    by_rule: float
    by_stretch: tuple[Estimate, ...]


@dataclass(frozen=True)
class StudyAudit:
    """What the audit of a study says."""

    audit: Audit
    arms: tuple[ArmAudit, ...]

    @property
    def is_truth(self) -> bool:
        """Whether the reference's scores are the truth of the study, since no rule knows it."""
        return not all(arm.has_rule for arm in self.arms)


def audit_of(runs: Sequence[Run], study_dir: Path) -> StudyAudit | None:
    """What the reference of a study's audit says of each arm of these runs; None where it was
    asked about none of their answers. Raises Damaged: the files of the audit cannot be read."""
    by_arm: dict[str, list[Run]] = {}
    for run in runs:
        if run.reference is not None:
            by_arm.setdefault(run.arm, []).append(run)
    if not by_arm:
        return None
    audit = kept.load(study_dir) or _while_trained(runs)
    return StudyAudit(audit, tuple(_of_arm(arm, group) for arm, group in by_arm.items()))


def _while_trained(runs: Sequence[Run]) -> Audit:
    """The audit that runs declared as they were trained (``truth.audit``)."""
    settings = next(run.config for run in runs if run.reference is not None)
    names = tuple(str(settings[key]) for key in settings if key.startswith("truth.audit."))
    share, seed = float(settings["truth.share"]), int(settings["truth.seed"])
    return Audit(names, (), share, seed, rules=False)


def _of_arm(arm: str, runs: Sequence[Run]) -> ArmAudit:
    numbers = list(map(_of_run, runs))
    references = [run.reference for run in runs if run.reference is not None]
    asked = [reference.score[reference.asked_P] for reference in references]
    return ArmAudit(
        arm=arm,
        runs=len(runs),
        groups=sum(map(len, asked)),
        of=sum(sum(reference.sizes.values()) for reference in references),
        answers=sum(scores.size for scores in asked),
        missing=sum(int(np.isnan(scores).sum()) for scores in asked),
        gap=_over_runs([each.gap for each in numbers]),
        least=known_mean(np.array([each.least for each in numbers])),
        most=known_mean(np.array([each.most for each in numbers])),
        truth=mean_interval([each.truth for each in numbers]),
        agreement=mean_interval([each.agreement for each in numbers]),
        by_rule=mean_interval([each.by_rule for each in numbers]),
        by_stretch=tuple(map(_over_runs, zip(*(each.by_stretch for each in numbers), strict=True))),
    )


def _over_runs(of_runs: Sequence[Estimate]) -> Estimate:
    """The mean over runs; of one run its own interval, which is about that run."""
    return of_runs[0] if len(of_runs) == 1 else mean_interval([each.value for each in of_runs])


def _of_run(run: Run) -> _OfRun:
    reference = run.reference
    assert reference is not None
    sizes, strata = reference.sizes, strata_of(run, run.judge - reference.score)
    gap = mean_of_run(strata, sizes)
    missing = reference.asked_P[:, None] & np.isnan(reference.score)
    filled = (np.where(missing, score, reference.score) for score in WORST)
    least, most = (
        mean_of_run(strata_of(run, run.judge - scores), sizes).value for scores in filled
    )
    ruled_P = np.isfinite(run.truth).any(axis=1) & ~reference.truth_P
    has_rule = ruled_P[reference.asked_P].any()
    return _OfRun(
        gap=gap,
        least=least,
        most=most,
        truth=known_mean(run.judge) - gap.value,
        agreement=within_groups(run.judge, reference.score),
        by_rule=known_mean((run.judge - run.truth)[ruled_P]) if has_rule else NAN,
        by_stretch=tuple(
            weighted_mean([strata[stretch]]) if stretch in strata else NO_ESTIMATE
            for stretch in range(STRETCHES)
        ),
    )


def strata_of(run: Run, gap_P_G: np.ndarray) -> dict[int, Stratum]:
    """Stretch -> what was drawn of it, where a drawn group has a gap."""
    reference = run.reference
    assert reference is not None
    strata = {}
    for stretch, size in reference.sizes.items():
        here = (reference.stretch_P == stretch) & reference.asked_P
        gap_P = np.array([known_mean(gap) for gap in gap_P_G[here]])
        gap_P = gap_P[np.isfinite(gap_P)]
        if len(gap_P):
            strata[stretch] = Stratum(size, gap_P)
    return strata


def mean_of_run(strata: Mapping[int, Stratum], sizes: Mapping[int, int]) -> Estimate:
    """The mean over all groups of a run. Where a stretch has no answered group yet, as early in a
    person's order, which takes about the same share of each, all are taken for one stretch."""
    if strata and len(strata) < len(sizes):
        gap_P = np.concatenate([each.gap_P for each in strata.values()])
        return weighted_mean([Stratum(sum(sizes.values()), gap_P)])
    return weighted_mean(list(strata.values()))


def weighted_mean(strata: Sequence[Stratum]) -> Estimate:
    """The mean over all groups that were drawn from, with a 95 % interval over draws.

    Stratified sampling without replacement: sum W_h mean_h, with the variance
    sum W_h^2 (1 - n_h / N_h) s_h^2 / n_h (Cochran, Sampling Techniques, 5.3 and 5.6) and as many
    degrees of freedom as groups less stretches.
    """
    if not strata:
        return NO_ESTIMATE
    total = sum(each.size for each in strata)
    mean = variance = 0.0
    for each in strata:
        weight, drawn = each.size / total, len(each.gap_P)
        mean += weight * float(each.gap_P.mean())
        squares = float(each.gap_P.var(ddof=1)) if drawn > 1 else NAN
        left = 1 - drawn / each.size
        variance += weight**2 * left * squares / drawn if left > 0 else 0.0
    groups = sum(len(each.gap_P) for each in strata)
    free = groups - len(strata)
    half = student(free) * variance**0.5 if free > 0 else NAN
    note = "" if half == half else "one group of a stretch, no interval"
    return around(mean, half, groups, "group", note)
