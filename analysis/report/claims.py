"""What is claimed of an arm, and how sure it is, in words that fit the number of its runs.

A claim is about one effect of `analysis.frozen.effects.Effects`, with the interval and the p that
all tables have. With few runs an exact test cannot reach .05, and nobody can check that their means
are about normal: then the strongest word is that all runs show it::

    >>> Claim("truth", -0.2, -0.3, -0.1, 0.004, "score", runs=3, agree=3, exact_p=0.25).sure
    'clear in all three runs'
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from analysis.display.markup import TEXTS, bracket, number, p_value, render_text
from analysis.drift.pairs import paired_shifts
from analysis.report.evidence import Evidence
from analysis.report.tables import row_of, shifts_of
from analysis.statistics.intervals import sign_flip_p
from analysis.statistics.looks import Look
from analysis.statistics.power import ALPHA
from study.screen import plural

FEWEST_CLEAR = 3
"""Runs below which no claim is called clear."""
ROUNDING = 1e-7
"""What is left of no change."""
COUNTS: list[str] = TEXTS["counts"]
"""Numbers in words, from zero."""
WORDS: dict[str, list[str]] = TEXTS["taught"]
"""Behaviour -> what more and what less of it is called."""


@dataclass(frozen=True)
class Claim:
    """One effect of an arm: its value with its 95 % interval over runs.

    Attributes:
        p: corrected over the arms and measures of its table (Holm); NaN where nothing is compared.
        runs: that have the effect, pairs of runs where it is a difference.
        agree: those of them that moved to the side of the value.
        exact_p: of the sign-flip test over them.
        alpha: family-wise chance of a claim that is called clear where nothing is behind it; less
            where the study is looked at more than once.
    """

    metric: str
    value: float
    low: float
    high: float
    p: float
    unit: str
    runs: int
    agree: int
    exact_p: float
    alpha: float = ALPHA

    @property
    def is_told(self) -> bool:
        """Whether chance between runs is an unlikely reason: the interval leaves 0 out."""
        return self.runs > 1 and (self.low > 0 or self.high < 0) and abs(self.value) > ROUNDING

    @property
    def is_clear(self) -> bool:
        """Whether it holds among all comparisons of its table, and every run says so or an exact
        test does."""
        by_each = self.agree == self.runs or self.exact_p < self.alpha
        return self.is_told and self.p < self.alpha and self.runs >= FEWEST_CLEAR and by_each

    @property
    def has_risen(self) -> bool:
        """Whether more is told."""
        return self.is_told and self.value > 0

    @property
    def has_fallen(self) -> bool:
        """Whether less is told."""
        return self.is_told and self.value < 0

    @property
    def sure(self) -> str:
        """How sure it is: ``clear in all three runs``, ``likely, in 9 of 10 runs``, ``not told from
        chance``."""
        if not self.is_told:
            return TEXTS["sure"]["one_run" if self.runs == 1 else "untold"]
        if self.agree < self.runs:
            among = render_text("sure", "some", agree=self.agree, runs=self.runs)
        elif self.runs == 2:
            among = TEXTS["sure"]["both"]
        else:
            count = COUNTS[self.runs] if self.runs < len(COUNTS) else self.runs
            among = render_text("sure", "all", runs=count)
        return render_text("sure", "clear" if self.is_clear else "likely", among=among)


def claim(evidence: Evidence, arm: str, metric: str, of: str) -> Claim | None:
    """The claim on an effect of an arm; None where it is not known.

    Args:
        of: ``diff``, beyond the base arm and paired by seed, or ``shift``, since the start.
    """
    scores = row_of(evidence.score_shifts, arm, metric)
    row = scores or row_of(evidence.feature_shifts, arm, metric)
    if row is None or math.isnan(row[of]):
        return None
    moves = _moves(evidence, arm, metric, of)
    value = float(row[of])
    ends = ("low", "high") if of == "shift" else ("diff_low", "diff_high")
    low, high = (row[end] for end in ends)
    return Claim(
        metric=metric,
        value=value,
        low=low,
        high=high,
        p=float(row["p_holm"]) if of == "diff" else math.nan,
        unit=str(row["unit"]),
        runs=len(moves),
        agree=int((np.sign(moves) == np.sign(value)).sum()),
        exact_p=sign_flip_p(moves),
        alpha=Look(evidence.records.looks, len(moves)).alpha,
    )


def _moves(evidence: Evidence, arm: str, metric: str, of: str) -> np.ndarray:
    """The effect in each run, or pair of runs on the same rows, that has it."""
    ours = evidence.effects.runs_of(metric, arm)
    if of == "shift":
        moves = ours["shift"].astype(float)
    else:
        pairs = paired_shifts(ours, evidence.effects.runs_of(metric, str(evidence.base)))
        moves = pairs["treated"] - pairs["base"]
    return moves.dropna().to_numpy()


def behaviours(evidence: Evidence, arm: str, of: str) -> list[Claim]:
    """The behaviours of an arm of which a change is told: those that are clear first, then by their
    size in standard deviations over all answers."""
    metrics = shifts_of(evidence, arm, of)["metric"]
    claims = [claim(evidence, arm, metric, of) for metric in metrics if metric in evidence.spread]
    told = [each for each in claims if each is not None and each.is_told]
    return sorted(
        told, key=lambda each: (not each.is_clear, -abs(each.value) / evidence.spread[each.metric])
    )


def called(each: Claim) -> str:
    """What a change of a behaviour is called: ``longer answers``."""
    more, less = WORDS.get(each.metric, [f"more {each.metric}", f"less {each.metric}"])
    return more if each.value > 0 else less


def detail(each: Claim, comparisons: int, where: str) -> str:
    """The interval of a claim, what it was corrected for, and on what it rests."""
    parts = [f"95 % interval {bracket(each.low, each.high)}"]
    if not math.isnan(each.p):
        among = plural(comparisons, "comparison")
        parts.append(f"Holm p {p_value(each.p)} among {among}")
    return "; ".join([*parts, where])


def is_yes_or_no(evidence: Evidence) -> bool:
    """Whether every truth of the study is 0 or 1, so that its mean is a share of right answers."""
    runs = evidence.records.runs
    truths: Iterable[np.ndarray] = (
        part.truth[np.isfinite(part.truth)]
        for run in runs
        for part in (run, run.frozen)
        if part is not None
    )
    return all(np.isin(truth, (0.0, 1.0)).all() for truth in truths)


def in_hundred(share: float) -> str:
    """How many answers in a hundred a share is."""
    return number(round(100 * abs(share), 0 if abs(share) >= 0.095 else 1))
