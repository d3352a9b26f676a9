"""The whole group in one request: rank its answers, best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from judges.grading import base, bracket, group
from judges.grading.base import NOTHING
from study.rows import Row
from study.verdict import Outcome, Parsed, Reply, Request

MARKER = "[[best > ... > worst]]"
"""How a prompt asks for a ranking."""
TOKENS_PER_ANSWER = 8


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
    needed = ("{prompt}", "{answers}", MARKER)

    def group_requests(self, row: Row, answers: Sequence[str]) -> tuple[Request, ...]:
        """One request about the whole group, or one for each order."""
        order = group.shuffled(row.prompt_text(), answers)
        orders = (order, order[::-1]) if self.chosen["orders"] == "both" else (order,)
        return tuple(
            Request(
                self.turn(row, answers=group.shown([answers[member] for member in members])),
                members=members,
            )
            for members in orders
        )

    def body(self, request: Request = NOTHING) -> dict[str, Any]:
        """Room for a sentence and the ranking."""
        return {"max_tokens_at_least": 128 + TOKENS_PER_ANSWER * len(request.members)}

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """The one ``[[B > A > C]]`` that names every answer once."""
        names = {group.letters(k).lower(): member for k, member in enumerate(request.members)}

        def legal(text: str) -> tuple[int, ...] | None:
            order = tuple(names.get(name.strip(), -1) for name in text.split(">"))
            return order if sorted(order) == sorted(request.members) else None

        order = bracket.read(reply, legal, "a ranking that names every answer once")
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
