"""What a judge is: the endpoint that answers or the scorer in its place, what is asked, and how the
reply is sampled.

It is part of the schema (`study.config.schema`), where it stands under ``judge``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from study.config import bounds
from study.config.endpoints import Served
from study.config.marks import judge_id, mlflow_param, run_time
from study.config.simulated import Simulated


@dataclass(frozen=True)
class Grading:
    """What is asked of the judge and how the reply is read; see ``judges.grading.GRADINGS``."""

    name: str = "likert"
    """Name of the grading, such as likert, binary or rubric_batch."""
    options: dict[str, Any] = field(default_factory=dict)
    """Settings of that grading; see docs/judges.md."""


@dataclass(frozen=True)
class Scorer:
    """A scorer of `judges.scorers`, and what it compares an answer with."""

    name: str = bounds.choice(
        "", "", "rouge-l", "chrf", "vader", "flesch", "type-token", "compression"
    )
    """See ``judges.scorers.table.SCORERS``."""
    reference: str = bounds.choice("", "", "teacher", "row")
    """What a scorer that compares takes for right: row, the reference of the task's row, or
    teacher, the answer of the teacher that the tiny policy learns from, one for each row. Empty for
    a scorer that does not compare."""


@dataclass(frozen=True)
class Judge(Served):
    """Endpoint x grading x sampling, and what a study wants to group by."""

    role = "judge"
    grading: Grading = mlflow_param(judge_id(field(default_factory=Grading)))
    simulated: Simulated | None = mlflow_param(judge_id(None))
    scorer: Scorer | None = mlflow_param(judge_id(None))
    on_failure: str = mlflow_param(
        bounds.choice("unscored", "unscored", "zero", "drop_group", "abort")
    )
    """Treatment of missing verdicts, and of missing truths in a reward that has one; ``zero`` is a
    common bug, and a treatment here."""
    max_unscored_frac: float = mlflow_param(run_time(bounds.share(0.5)))
    """Largest share of a step's verdicts that may be missing before the run stops; with
    reward=by-domain, of those that a reward uses."""

    @property
    def computed(self) -> bool:
        """Whether this project computes what it says, as a simulated judge or a scorer: there is
        no model, no price, and no other reply to the same question."""
        return self.simulated is not None or self.scorer is not None

    @property
    def needs_rows(self) -> bool:
        """Whether it must know the task's row behind a prompt: its truth, or a reference."""
        return self.simulated is not None or (
            self.scorer is not None and self.scorer.reference != ""
        )
