"""A task's rows: the prompt, its rubric and rules, and the rule truth of an answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Criterion:
    """One rubric item; negative points mark something the answer should avoid."""

    text: str
    points: float = 1.0
    tags: Mapping[str, object] = field(default_factory=dict, hash=False)
    """What the data say of it besides, such as HealthBench's axis."""


@dataclass(frozen=True)
class Rule:
    """A constraint that a Python function checks: ``check_following(instruction, response)``.

    Attributes:
        id: ``row:place`` in the file it came from, both counted from 0.
        category: the kind of constraint, as the data name it.
        text: the constraint in words.
        source: the function. Untrusted: it runs in `study.sandbox` and nowhere else.
        points: what it is worth beside the criteria of a rubric.
    """

    id: str
    category: str
    text: str
    source: str
    points: float = 1.0


@dataclass(frozen=True)
class Truth:
    """What the rules say of one answer: the score in [0, 1] and each check behind it."""

    score: float
    checks: tuple[bool, ...] = ()
    relevance: float = 1.0
    whose: str = ""
    """Name of the model whose favourite wrong answer this is, where a task knows one."""

    @property
    def right(self) -> bool:
        """Whether every check was passed; without checks, whether the score is full."""
        return all(self.checks) if self.checks else self.score >= 1


@dataclass(frozen=True)
class Missing:
    """A missing truth: its rule failed, not the answer."""

    reason: str
    """One line that says what failed."""


RuleTruth = Truth | Missing | None
"""What is known of one answer; None where no rule can tell."""


@dataclass(frozen=True)
class Row:
    """One prompt. ``spec`` is what the rule truth needs and is never sent to any judge."""

    prompt_id: str
    messages: tuple[dict[str, str], ...]
    criteria: tuple[Criterion, ...] = ()
    spec: dict[str, Any] = field(default_factory=dict)
    split: str = "train"
    reference: str | None = None
    """A right answer to compare with, for gradings that show one to the judge."""
    rules: tuple[Rule, ...] = ()
    """What code can check. ``criteria`` are what a judge is asked about."""
    dataset: str = ""
    """The data set that it is from, where a task has several."""
    domain: str = ""
    """math, qa or code; empty where the task says none."""
    item: str = ""
    """Id of the item in its data set."""

    def prompt_text(self) -> str:
        """The prompt as one text, as judges are shown it."""
        return flatten(self.messages)


def flatten(messages: tuple[dict[str, str], ...]) -> str:
    """A lone user turn is its content; a conversation is ``role: content`` blocks."""
    if len(messages) == 1 and messages[0]["role"] == "user":
        return messages[0]["content"]
    return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in messages)


def prompt_id(text: str) -> str:
    """Content address of a prompt: 16 hex digits of BLAKE2b over its UTF-8 text."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def make_row(
    messages: tuple[dict[str, str], ...],
    criteria: tuple[Criterion, ...] = (),
    spec: dict[str, Any] | None = None,
    split: str = "train",
    reference: str | None = None,
    rules: tuple[Rule, ...] = (),
) -> Row:
    """A row whose id is the address of its own prompt text."""
    address = prompt_id(flatten(messages))
    return Row(address, messages, criteria, spec or {}, split, reference, rules)
