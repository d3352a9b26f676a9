"""How a completion becomes an answer: in the direct world, by leaving out its thinking.

A world plays completions: it says what the answer of each is, which judge and rules are then asked
about, or that there is none to ask about. `experiments.workflow.world` is the other one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from study.answers import answer_of
from study.cell.records import CallRow
from study.errors import UserError
from study.programs.rewards import OK, ExecutedProgram
from study.rows import Row

Messages = tuple[dict[str, str], ...]


class TooManyFailed(UserError):
    """Executor or sandbox failed in too many rollouts of a step; ``executed`` is what each came
    to."""

    def __init__(self, message: str, executed: Sequence[Executed]) -> None:
        super().__init__(message)
        self.executed = executed


@dataclass(frozen=True)
class Executed:
    """What one completion came to.

    Attributes:
        answer: what judge and rules are asked about; None where there is none.
        played: how the program ran; None where the completion is the answer itself.
        columns: what the rollout's record has besides.
        calls: its rows of `study.cell.records.CALL`, less rollout and step.
        why: what ended it, in one line; empty where nothing is wrong.
    """

    answer: str | None
    played: ExecutedProgram | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    calls: Sequence[CallRow] = ()
    why: str = ""

    @property
    def has_answer(self) -> bool:
        """Whether there is an answer to ask judge and rules about: also one that was cut off."""
        return self.played is None or self.played.outcome == OK


class World(Protocol):
    """One world of a cell.

    Attributes:
        answers_early: whether the answer of a completion is known before its step has ended.
        prompts: whether policies are shown something else than the row.
    """

    answers_early: bool
    prompts: bool

    @property
    def calls(self) -> int:
        """Requests sent to an executor so far."""
        ...

    def prompt_for(self, row: Row, learning: bool = True) -> Messages:
        """What the policy is shown of a row; where it is not ``learning``, what never changes."""
        ...

    def play(self, rows: Sequence[Row], texts: Sequence[str]) -> list[Executed]:
        """What N completions to N rows came to. Raises TooManyFailed."""
        ...

    def learn(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Take in the rollouts of a step, as they are recorded."""
        ...

    def metrics(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """What the rollouts of a step say of the world."""
        ...


class Direct:
    """The completion, without its thinking, is the answer."""

    answers_early: bool = True
    prompts: bool = False
    calls: int = 0

    def prompt_for(self, row: Row, learning: bool = True) -> Messages:
        """The row as it is."""
        return row.messages

    def play(self, rows: Sequence[Row], texts: Sequence[str]) -> list[Executed]:
        """Each answer; None for one that was cut off while it was thinking."""
        return [Executed(answer_of(text)) for text in texts]

    def learn(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Nothing is learned."""

    def metrics(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """None."""
        return {}
