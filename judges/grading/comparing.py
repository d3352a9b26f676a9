"""The gradings of a whole group: `Pairwise` shows two answers at a time, in both orders, and an
answer's score is its mean win rate; `Listwise` has the group ranked in one request, best first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from judges.endpoint.dialects import Body
from judges.grading import base
from judges.grading.base import NOTHING
from judges.grading.delimiters import delimit
from study.rows import Row
from study.verdict import Outcome, Parsed, Reply, Request

FIRST, SECOND, TIE = "a", "b", "tie"
TIE_MARKER = "[[tie]]"
"""How a prompt offers a tie; no other grading has one."""
RANKING_MARKER = "[[best > ... > worst]]"
"""How a prompt asks for a ranking."""
TOKENS_PER_ANSWER = 8


def letters(place: int) -> str:
    """The name of the place-th shown answer: A to Z, then AA, AB, as the columns of a sheet."""
    name = ""
    place += 1
    while place:
        place, rest = divmod(place - 1, 26)
        name = chr(ord("A") + rest) + name
    return name


def kind(place: int) -> str:
    """The kind of delimiters around the place-th shown answer."""
    return f"answer{letters(place).lower()}"


def shown(answers: Sequence[str]) -> str:
    """The answers, each behind its name and between its own delimiter lines."""
    return "\n\n".join(
        f"Answer {letters(place)}:\n{delimit(kind(place), answer)}"
        for place, answer in enumerate(answers)
    )


def shuffled(prompt: str, answers: Sequence[str]) -> tuple[int, ...]:
    """An order that the texts decide alone: whoever comes first in the group gains nothing."""

    def address(member: int) -> tuple[bytes, int]:
        content = f"{prompt}\0{answers[member]}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(content, digest_size=16, person=b"judge-shuffle").digest(), member

    return tuple(sorted(range(len(answers)), key=address))


class Pairwise(base.GroupGrading):
    """Options: ``against`` all (each pair) | next (a ring: each answer and the one behind it);
    ``prompt`` default, or a .txt file; ``structured`` false | true, forces the verdict alone.

    A pair is asked about in both orders. Win 1, tie 0.5, loss 0; where the two orders disagree
    the pair is a tie, and ``reason`` counts such pairs. Equal answers tie without a request.
    Raises UserError: an unknown option, a value that it does not take, or an unfit prompt."""

    name = "pairwise"
    choices: ClassVar = {"against": ("all", "next"), "structured": (False, True)}
    needed = ("{prompt}", "{answers}", "[[A]]", "[[B]]", TIE_MARKER)

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
                self.turn(row, answers=shown([answers[member] for member in members])),
                members=members,
            )
            for i, j in self.pairs(len(answers))
            if answers[i] != answers[j]
            for members in ((i, j), (j, i))
        )

    def body(self, request: Request = NOTHING) -> Body:
        """Room for a sentence, or the forced verdict."""
        return base.binary_body(self.chosen["structured"], ["A", "B", "tie"])

    @property
    def reply_form(self) -> str:
        """One of three words in brackets."""
        return f"[[{FIRST}]], [[{SECOND}]] or [[{TIE}]] at the end"

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """1 where the first shown is better, 0.5 for a tie, 0 where the second is."""
        return base.word_in_brackets(reply, {FIRST: 1.0, SECOND: 0.0, TIE: 0.5})

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


@dataclass(frozen=True)
class Ranking(Parsed):
    """A ranking that was read; its own score is 1 and means nothing beside that."""

    order: tuple[int, ...] = ()
    """Members of the group, best first."""


class Listwise(base.GroupGrading):
    """Options: ``prompt`` default, or a .txt file; ``orders`` one | both. The answers are shown in
    an order that follows from their texts, with ``both`` also in the reverse order, so that no
    place in the list gains anything. An answer of rank r among n scores (n - r) / (n - 1), with
    ``both`` the mean over the two; equal answers share the mean of their scores.
    Raises UserError: an unknown option, a value that it does not take, or an unfit prompt."""

    name = "listwise"
    choices: ClassVar = {"orders": ("one", "both")}
    needed = ("{prompt}", "{answers}", RANKING_MARKER)

    def group_requests(self, row: Row, answers: Sequence[str]) -> tuple[Request, ...]:
        """One request about the whole group, or one for each order."""
        order = shuffled(row.prompt_text(), answers)
        orders = (order, order[::-1]) if self.chosen["orders"] == "both" else (order,)
        return tuple(
            Request(
                self.turn(row, answers=shown([answers[member] for member in members])),
                members=members,
            )
            for members in orders
        )

    def body(self, request: Request = NOTHING) -> Body:
        """Room for a sentence and the ranking."""
        return {"max_tokens_at_least": 128 + TOKENS_PER_ANSWER * len(request.members)}

    @property
    def reply_form(self) -> str:
        """A ranking in brackets."""
        return "a ranking of all answers in double square brackets, such as [[B > A > C]]"

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """The one ``[[B > A > C]]`` that names every answer once."""
        names = {letters(k).lower(): member for k, member in enumerate(request.members)}

        def legal(text: str) -> tuple[int, ...] | None:
            order = tuple(names.get(name.strip(), -1) for name in text.split(">"))
            return order if sorted(order) == sorted(request.members) else None

        order = base.in_brackets(reply, legal, "a ranking that names every answer once")
        if isinstance(order, Parsed):
            return order
        return Ranking(Outcome.scored, score=1.0, order=order)

    def group_combine(
        self, row: Row, answers: Sequence[str], parts: Sequence[tuple[Request, Parsed]]
    ) -> list[Parsed]:
        """The rank of each answer as a score; the first failure for all where there is one, for
        one order alone would favour places in the list."""
        last = len(answers) - 1
        by_text: dict[str, list[float]] = {}
        for _, parsed in parts:
            if not isinstance(parsed, Ranking):
                return [parsed] * len(answers)
            for rank, member in enumerate(parsed.order):
                by_text.setdefault(answers[member], []).append((last - rank) / last)
        return [
            Parsed(Outcome.scored, score=sum(by_text[text]) / len(by_text[text]))
            for text in answers
        ]
