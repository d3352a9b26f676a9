"""Settings of the corrections of a judge's scores before they become rewards.

They are part of the schema (`study.config.schema`), where they stand under ``correction``;
`study.rewards.corrections` has the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from study.config import bounds

PANELS = ("mean", "median", "worst", "disagreement")


@dataclass(frozen=True)
class Part:
    """What a judge pays for one feature: ``b`` score for each ``sd`` above ``mean``."""

    b: float = 0.0
    error: float = bounds.number(0.0, low=0)
    """Standard error of ``b``; 0 where it is planted."""
    mean: float = 0.0
    sd: float = bounds.number(1.0, above=0)
    source: str = ""
    """The dose of a simulated judge, or the runs that it was fitted on."""


@dataclass(frozen=True)
class Correction:
    """Corrections of a judge's scores, in this order; by default none."""

    rubric_dropout: float = bounds.number(0.0, low=0, below=1, unit="share")
    """Share of the criteria that do not count, drawn again for each group."""
    without: list[str] = field(default_factory=list)
    """Features whose part of the judge's error is removed: score - b z."""
    fit: str = ""
    """STUDY or STUDY/CELL whose rollouts b is fitted on; empty takes a simulated judge's doses."""
    parts: dict[str, Part] = field(default_factory=dict)
    """Filled by the sweep from ``without``; not for YAML."""
    panel: str = bounds.choice("none", "none", *PANELS)
    """Combination of the scores of the acting and the shadow judges."""
    calibrate: int = bounds.number(0, low=0, high=1_000_000_000, unit="rollouts")
    """Rollouts whose truth the scores are calibrated on; 0 is none."""
    debias: list[str] = field(default_factory=list)
    """Features removed from scores: residuals of the step's regression within groups."""
    penalty: dict[str, float] = field(default_factory=dict)
    """Feature -> score subtracted for each SD above the mean of its group."""
    recheck: float = bounds.share(0.0)
    """Share of the rollouts that get the rule truth in place of the verdict."""
    stop: bool = False
    """Whether the run ends when the alarm on judge minus truth is raised."""
    alarm: str = bounds.choice("cusum-1", "cusum-1")
    """Rule of that alarm; a changed rule gets another name, and its runs another identity."""

    @property
    def changes(self) -> bool:
        """Whether any score can be changed by it."""
        lists = (self.without, self.debias, self.penalty)
        numbers = (self.rubric_dropout, self.calibrate, self.recheck)
        return any(lists) or any(numbers) or self.panel != "none"
