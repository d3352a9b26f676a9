"""Two answers at a time, in both orders; an answer's score is its mean win rate in the group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from judges.grading import base, bracket, group
from judges.grading.base import NOTHING
from study.rows import Row
from study.verdict import Outcome, Parsed, Reply, Request

FIRST, SECOND, TIE = "a", "b", "tie"
MARKER = "[[tie]]"
"""How a prompt offers a tie; no other grading has one."""


class Pairwise(base.GroupGrading):
    """Options: ``against`` all (each pair) | next (a ring: each answer and the one behind it);
    ``prompt`` default, or a .txt file; ``structured`` false | true, forces the verdict alone.

    A pair is asked about in both orders. Win 1, tie 0.5, loss 0; where the two orders disagree
    the pair is a tie, and ``reason`` counts such pairs. Equal answers tie without a request.
    Raises UserError: an unknown option, a value that it does not take, or an unfit prompt."""

    name = "pairwise"
    choices: ClassVar = {"against": ("all", "next"), "structured": (False, True)}
    needed = ("{prompt}", "{answers}", "[[A]]", "[[B]]", MARKER)

    def pairs(self, count: int) -> list[tuple[int, int]]:
        """The pairs (i < j) of a group that are compared."""
        if self.chosen["against"] == "all":
            return [(i, j) for i in range(count) for j in range(i + 1, count)]
        ring = {tuple(sorted((i, (i + 1) % count))) for i in range(count)}
        return sorted((i, j) for i, j in ring if i != j)

    def group_requests(self, row: Row, answers: Sequence[str]) -> tuple[Request, ...]:
        """Two requests per pair of different answers."""
        return tuple(
            Request(
                self.turn(row, answers=group.shown([answers[member] for member in members])),
                members=members,
            )
            for i, j in self.pairs(len(answers))
            if answers[i] != answers[j]
            for members in ((i, j), (j, i))
        )

    def body(self, request: Request = NOTHING) -> dict[str, Any]:
        """Room for a sentence, or the forced verdict."""
        return bracket.binary_body(self.chosen["structured"], ["A", "B", "tie"])

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """1 where the first shown is better, 0.5 for a tie, 0 where the second is."""
        return bracket.choice(reply, {FIRST: 1.0, SECOND: 0.0, TIE: 0.5})

    def group_combine(
        self, row: Row, answers: Sequence[str], parts: Sequence[tuple[Request, Parsed]]
    ) -> list[Parsed]:
        """The win rate of each answer over the comparisons that were obtained in both orders."""
        verdicts = {request.members: parsed for request, parsed in parts}
        wins: list[list[float]] = [[] for _ in answers]
        turned, unread = [0] * len(answers), [0] * len(answers)
        failed: list[Parsed | None] = [None] * len(answers)
        for i, j in self.pairs(len(answers)):
            if answers[i] == answers[j]:
                first, second = 0.5, 0.5
            else:
                forward, back = verdicts[i, j], verdicts[j, i]
                if forward.score is None or back.score is None:
                    without = forward if forward.score is None else back
                    for member in (i, j):
                        unread[member] += 1
                        failed[member] = failed[member] or without
                    continue
                first, second = forward.score, 1.0 - back.score
            if first != second:
                first = 0.5
                turned[i] += 1
                turned[j] += 1
            wins[i].append(first)
            wins[j].append(1.0 - first)
        return list(map(_verdict, wins, turned, unread, failed))


def _verdict(wins: list[float], turned: int, lost: int, failed: Parsed | None) -> Parsed:
    total = len(wins) + lost
    notes = [f"{turned} of {total} pairs turned with the order and count as ties"] if turned else []
    if failed is not None:
        notes.append(f"{lost} of {total} pairs have no verdict: {failed.reason}")
    if not wins:
        assert failed is not None, "a group has at least one pair"
        return Parsed(failed.outcome, reason="; ".join(notes))
    return Parsed(Outcome.scored, score=sum(wins) / len(wins), reason="; ".join(notes))
