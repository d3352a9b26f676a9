"""All constraints of a row in one question, and one binary verdict: are they all followed?

The reward it makes is sparse: one constraint missed is worth as much as all of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from judges.grading.base import NOTHING
from judges.grading.binary import NO, YES, Binary
from judges.grading.delimiters import delimit
from study.rows import Row
from study.verdict import Parsed, Reply, Request


class Verif(Binary):
    """Options: ``language`` en | zh, of the prompt; ``prompt``, a .txt file instead;
    ``vocabulary`` bracket; ``structured`` false | true, forces the verdict alone.
    Raises UserError: an unknown option, a value that it does not take, or an unfit prompt."""

    name = "verif"
    choices: ClassVar = {
        "language": ("en", "zh"),
        "vocabulary": ("bracket",),
        "structured": (False, True),
    }
    option_names = ("prompt",)
    needed = ("{prompt}", "{constraints}", "{answer}", f"[[{YES}]]", f"[[{NO}]]")

    @property
    def default_prompt(self) -> str:
        return self.chosen["language"]

    def problem(self, row: Row) -> str:
        texts = [item.text.strip() for item in row.criteria]
        if not texts:
            return "the row has no criteria to take for constraints"
        if len(set(texts)) < len(texts):
            return "the criteria repeat"
        if any(item.points < 0 for item in row.criteria):
            return "a criterion with negative points is a fault and no constraint to follow"
        return ""

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        constraints = "\n".join(f"- {item.text.strip()}" for item in row.criteria)
        return self.turn(
            row, constraints=delimit("rubric", constraints), answer=delimit("answer", answer)
        )

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """One label for the constraints as a whole, and 1 or 0."""
        verdict = super().parse(reply, request)
        label = {1.0: "met", 0.0: "not_met", None: "unknown"}[verdict.score]
        return replace(verdict, labels=(label,))
