"""A verdict: the record of one judge call, with its request, its reply and how that was read.

A verdict that could not be obtained has an outcome that says why and no score: there is no
number that stands for "missing", so nothing downstream can mistake a failure for a bad grade.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NotRequired, TypedDict, cast

LABELS = ("met", "not_met", "unknown")
"""What a judge may say of one criterion."""
THRESHOLD = 0.5
"""A score or a truth counts as a yes from here on."""
DIFFERENT = "different verdicts in one reply"
"""In the reason of every verdict whose reply says two things of the same, so that they can be
counted."""


class Outcome(StrEnum):
    """How a judge call ended; only ``scored`` carries a number."""

    scored = "scored"
    unparsed = "unparsed"
    refused = "refused"
    truncated = "truncated"
    empty = "empty"
    timeout = "timeout"
    rate_limited = "rate_limited"
    transport = "transport"
    too_long = "too_long"
    """The question does not fit the judge's context; no later attempt could."""
    wrong_model = "wrong_model"
    """Another model answered than the one asked for, twice."""
    endpoint_down = "endpoint_down"
    aborted = "aborted"


@dataclass(frozen=True)
class Request:
    """One request of a verdict: what is sent, and what of the verdict its reply decides."""

    messages: Sequence[dict[str, str]] = ()
    criteria: tuple[int, ...] = ()
    """Places in ``row.criteria`` that are asked about; the judge is shown place + 1."""
    members: tuple[int, ...] = ()
    """Answers of a group that are asked about, in the order they are shown."""
    key: str = ""
    """Where the store keeps the replies; empty until a session asks."""


class Candidate(TypedDict):
    """A token that could stand at a place of a reply."""

    token: str
    logprob: float


class TokenLogprob(Candidate):
    """A token of a reply."""

    top_logprobs: NotRequired[list[Candidate]]


@dataclass(frozen=True)
class Reply:
    """What an endpoint answered, before anybody reads a grade in it."""

    text: str
    reasoning: str = ""
    finish_reason: str = "stop"
    logprobs: list[TokenLogprob] | None = None
    """``choices[0].logprobs.content`` of the chat-completions protocol."""
    tokens_in: int | None = None
    tokens_cached: int | None = None
    tokens_out: int | None = None
    model: str = ""
    asked: str = ""
    """What the request changed after an earlier reply without a grade; empty for the first."""


def _check(outcome: Outcome, labels: tuple[str, ...], score: float | None) -> None:
    """The invariant that a score is a finite float exactly where the outcome is ``scored``."""
    if outcome is Outcome.scored:
        if not isinstance(score, float) or not math.isfinite(score):
            raise ValueError(f"a scored verdict needs a finite float, not {score!r}")
    elif score is not None:
        raise ValueError(f"a verdict that is {outcome} has no score, but got {score!r}")
    unknown = [label for label in labels if label not in LABELS]
    if unknown:
        raise ValueError(f"labels are {', '.join(LABELS)}; got {unknown[0]!r}")


@dataclass(frozen=True)
class Parsed:
    """What a grading read in a reply.
    Raises ValueError: a score without ``scored``, ``scored`` without one, or an unknown label."""

    outcome: Outcome
    labels: tuple[str, ...] = ()
    score: float | None = None
    reason: str = ""
    """One line that says why there is no score, or what a score had to do without; else empty."""

    def __post_init__(self) -> None:
        _check(self.outcome, self.labels, self.score)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One judge call on one answer: who judged, how it ended, what it said and what it cost.
    Raises ValueError: a score without ``scored``, ``scored`` without one, or an unknown label."""

    judge_id: str
    judge: str
    revision: str = ""
    grading: str
    grading_version: str
    prompt_sha: str
    sample_index: int = 0
    outcome: Outcome
    labels: tuple[str, ...] = ()
    score: float | None = None
    reason: str = ""
    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    attempts: int = 0
    latency_s: float = 0.0
    tokens_in: int | None = None
    tokens_cached: int | None = None
    tokens_out: int | None = None
    cost_usd: float | None = None
    from_cache: bool = False
    key: str = ""
    served_model: str = ""
    """What the replies say who answered; empty where they do not."""

    def __post_init__(self) -> None:
        _check(self.outcome, self.labels, self.score)

    def as_row(self) -> VerdictRow:
        """The verdict as plain values, as the verdict tables store it."""
        row = vars(self) | {"outcome": self.outcome.value, "labels": list(self.labels)}
        return cast(VerdictRow, row)

    def row_of(self, rollout: str, *, step: int, role: str, judge: str = "") -> VerdictRow:
        """`as_row` with the rollout that it is on; ``judge`` is its name in the run, where that is
        another."""
        name = judge or self.judge
        return {**self.as_row(), "rollout_id": rollout, "step": step, "role": role, "judge": name}


class VerdictRow(TypedDict):
    """A row of the verdict tables: a `Verdict`, and whose it is."""

    judge_id: str
    judge: str
    revision: str
    grading: str
    grading_version: str
    prompt_sha: str
    sample_index: int
    outcome: str
    labels: list[str]
    score: float | None
    reason: str
    text: str
    reasoning: str
    finish_reason: str
    attempts: int
    latency_s: float
    tokens_in: int | None
    tokens_cached: int | None
    tokens_out: int | None
    cost_usd: float | None
    from_cache: bool
    key: str
    served_model: str
    rollout_id: NotRequired[str]
    step: NotRequired[int]
    role: NotRequired[str]
    """acting, shadow or replay."""


def mean_score(votes: Sequence[Verdict]) -> float | None:
    """Mean over the votes that were scored; None where none was."""
    scored = [vote.score for vote in votes if vote.score is not None]
    return sum(scored) / len(scored) if scored else None
