"""Settings of a reward, its penalties, and the criteria that a scaffold shows.

They are part of the schema (`study.config.schema`), where they stand under ``reward`` and
``scaffold``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from study.config import bounds
from study.config.endpoints import MANY


@dataclass(frozen=True)
class Overlong:
    """Linear penalty on the last ``buffer`` tokens of ``trainer.max_completion_length`` (DAPO):
    factor * min(0, (max - buffer - tokens) / buffer); a buffer of 0 is no penalty."""

    buffer: int = bounds.number(0, low=0, high=MANY, unit="tokens")
    """Last tokens before the limit over which the penalty grows; 0 is no penalty."""
    factor: float = bounds.number(0.5, low=0, unit="reward")
    """Penalty at the limit."""


@dataclass(frozen=True)
class Repetition:
    """Penalty -weight * share of the answer's word n-grams that had come before."""

    weight: float = bounds.number(0.0, low=0, unit="reward")
    """Penalty of an answer that repeats all of its n-grams; 0 is none."""
    ngram: int = bounds.number(3, low=1, high=MANY, unit="words")
    """Words of an n-gram."""


@dataclass(frozen=True)
class Reward:
    """How verdict, rules and truth make one number; see ``study.rewards.formulas``."""

    name: str = "judge"
    """Formula of the reward; presets: judgedrift presets reward."""
    truth_weight: float = bounds.share(0.0)
    """Weight of the rule truth in reward=judge; the judge has the rest."""
    rules: str = bounds.choice("ignore", "ignore", "run", "judge")
    """Use of a row's rules: run (in the sandbox), ignore, or judge (as criteria for the judge)."""
    rule_part: str = bounds.choice("mean", "mean", "all")
    """Score of the rules: mean, the share that passes, or all, 1 if every one passes, else 0."""
    threshold: float = bounds.number(0.5, unit="score")
    """Score above which reward=binary is 1."""
    weights: dict[str, float] = field(default_factory=dict)
    """Weights of judge, rule and truth in reward=hybrid."""
    domains: dict[str, str] = field(default_factory=dict, metadata=bounds.each("judge", "rule"))
    """Reward of each domain in reward=by-domain: judge or rule."""
    source: str = bounds.choice("judge", "judge", "rule", "judge-first", "rule-first")
    """Source of correctness in rewards of executed programs."""
    overlong: Overlong = field(default_factory=Overlong)
    repetition: Repetition = field(default_factory=Repetition)


@dataclass(frozen=True)
class Scaffold:
    """Criteria that some rollouts of a group are shown before they answer (RuscaRL)."""

    name: str = bounds.choice("none", "none", "ruscarl")
    """ruscarl shows criteria; none shows none."""
    group: str = bounds.choice("linear", "linear", "binary", "math_linear")
    """Decline of the share of criteria from the first rollout of a group to the last."""
    full_reveal: int = bounds.number(1, low=0, high=MANY, unit="rollouts")
    """Number of rollouts that see all criteria with group=binary; the others see none."""
    decay: str = bounds.choice("sigmoid", "none", "linear", "power", "sigmoid")
    """Decline of that share over the steps."""
    power: float = bounds.number(1.0, above=0, unit="exponent")
    """Exponent of the decline with decay=power."""
    x0: float = bounds.share(0.2, unit="share of the steps")
    """Share of the training at which the sigmoid is at one half."""
    k: float = bounds.number(125.0, above=0, unit="steepness")
    """Steepness of the sigmoid."""
    base_prompt: bool = False
    """Whether a rollout that sees no criteria gets a plain system prompt."""
    leak_warning: bool = True
    """Whether the prompt asks the policy not to mention the criteria."""
    keep: bool = False
    """Whether the policy is updated on the scaffolded prompt. If not, the scaffold is removed
    first, and the difference is recorded as component/scaffold_gap."""
