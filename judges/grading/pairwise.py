"""Two answers at a time, in both orders; an answer's score is its mean win rate in the group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from judges.grading import base, bracket, group
from judges.grading.base import NOTHING
from judges.grading.delimiters import fence, fill
from study.rows import Row
from study.verdict import Outcome, Parsed, Reply, Request

FIRST, SECOND, TIE = "a", "b", "tie"
MARKER = "[[tie]]"
"""How a prompt offers a tie; no other grading has one."""


@dataclass(frozen=True, eq=False)
class Pairwise(base.GroupGrading):
    """Options: ``against`` all (each pair) | next (a ring: each answer and the one behind it);
    ``prompt`` default, or a .txt file; ``structured`` false | true, forces the verdict alone.

    A pair is asked about in both orders. Win 1, tie 0.5, loss 0; where the two orders disagree
    the pair is a tie, and ``reason`` counts such pairs. Equal answers tie without a request.

    Raises:
        UserError: an unknown option, a value that it does not take, or an unfit prompt.
    """

    name = "pairwise"
    option_names = ("against", "prompt", "structured")

    def __post_init__(self) -> None:
        super().__post_init__()
        base.choose(self.name, self.options, "structured", (False, True))
        _ = self.against

    @cached_property
    def against(self) -> str:
        """Whom an answer is compared with."""
        return base.choose(self.name, self.options, "against", ("all", "next"))

    @cached_property
    def _template(self) -> str:
        needed = ["{prompt}", "{answers}", "[[A]]", "[[B]]", MARKER]
        return base.load_prompt(self.name, self.options.get("prompt", "default"), needed)

    def pairs(self, count: int) -> list[tuple[int, int]]:
        """The pairs (i < j) of a group that are compared."""
        if self.against == "all":
            return [(i, j) for i in range(count) for j in range(i + 1, count)]
        ring = {tuple(sorted((i, (i + 1) % count))) for i in range(count)}
        return sorted((i, j) for i, j in ring if i != j)

    def group_requests(self, row: Row, answers: Sequence[str]) -> tuple[Request, ...]:
        """Two requests per pair of different answers."""
        return tuple(
            self._request(row, answers, members)
            for i, j in self.pairs(len(answers))
            if answers[i] != answers[j]
            for members in ((i, j), (j, i))
        )

    def _request(self, row: Row, answers: Sequence[str], members: tuple[int, int]) -> Request:
        content = fill(
            self._template,
            prompt=fence("prompt", row.prompt_text()),
            rubric=base.rubric_block(row),
            answers=group.shown([answers[member] for member in members]),
        )
        return Request([{"role": "user", "content": content.rstrip()}], members=members)

    def body(self, request: Request = NOTHING) -> dict[str, Any]:
        """Room for a sentence, or the forced verdict."""
        return bracket.binary_body(self.options.get("structured", False), ["A", "B", "tie"])

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """1 where the first shown is better, 0.5 for a tie, 0 where the second is."""
        found = bracket.choice(reply, {FIRST: 1.0, SECOND: 0.0, TIE: 0.5})
        return found if isinstance(found, Parsed) else Parsed(Outcome.scored, score=found)

    def group_combine(
        self, row: Row, answers: Sequence[str], parts: Sequence[tuple[Request, Parsed]]
    ) -> list[Parsed]:
        """The win rate of each answer over the comparisons that were obtained in both orders."""
        said = {request.members: parsed for request, parsed in parts}
        wins: list[list[float]] = [[] for _ in answers]
        turned, lost = [0] * len(answers), [0] * len(answers)
        failed: list[Parsed | None] = [None] * len(answers)
        for i, j in self.pairs(len(answers)):
            if answers[i] == answers[j]:
                first, second = 0.5, 0.5
            else:
                one, other = said[i, j], said[j, i]
                if one.score is None or other.score is None:
                    for member in (i, j):
                        lost[member] += 1
                        failed[member] = failed[member] or (one if one.score is None else other)
                    continue
                first, second = one.score, 1.0 - other.score
            if first != second:
                first = 0.5
                turned[i] += 1
                turned[j] += 1
            wins[i].append(first)
            wins[j].append(1.0 - first)
        return [_verdict(*found) for found in zip(wins, turned, lost, failed, strict=True)]


def _verdict(wins: list[float], turned: int, lost: int, failed: Parsed | None) -> Parsed:
    total = len(wins) + lost
    notes = [f"{turned} of {total} pairs turned with the order and count as ties"] if turned else []
    if failed is not None:
        notes.append(f"{lost} of {total} pairs have no verdict: {failed.reason}")
    if not wins:
        assert failed is not None, "a group has at least one pair"
        return Parsed(failed.outcome, reason="; ".join(notes))
    return Parsed(Outcome.scored, score=sum(wins) / len(wins), reason="; ".join(notes))
