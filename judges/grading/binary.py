"""One yes or no about an answer: is it right, by a reference that is known to be right or by the
judge alone (`Binary`); does it follow all constraints of its row (`Verif`)?
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from judges.endpoint.dialects import Body
from judges.grading import base
from judges.grading.base import NOTHING
from judges.grading.delimiters import delimit
from study.errors import UserError
from study.rows import Row
from study.verdict import Parsed, Reply, Request

YES, NO = "1", "0"
ANALYSIS, ANALYSIS_TOKENS = "<analysis>", 512
"""What a prompt holds that asks for a comparison in words, and the room that its reply gets: a
comparison of two programs is longer than a sentence, and one that is cut off has no verdict."""


class Binary(base.OneRequest):
    """Options: ``reference`` shown | hidden, whether the judge sees ``row.reference``; ``prompt``
    (default, which compares with the reference, unaided, math, qa, code, or a .txt file), and
    ``prompts``, domain -> another prompt for its rows; ``structured`` false | true, forces the
    verdict alone. Two reproduce published faults, as treatments: ``reads`` anchored | tail |
    substring, where anything but a word for yes at the end, or anywhere, is a no, an empty reply
    too; ``swapped`` false | true, which takes answer and reference for each other.
    Raises UserError: an unknown option, a value that it does not take, or an unfit prompt."""

    name = "binary"
    choices: ClassVar = {
        "reference": ("shown", "hidden"),
        "structured": (False, True),
        "reads": ("anchored", "tail", "substring"),
        "swapped": (False, True),
    }
    option_names = ("prompt", "prompts")
    needed = ("{prompt}", "{answer}", f"[[{YES}]]", f"[[{NO}]]")
    optional = ()

    @property
    def default_prompt(self) -> str:
        """``default``, or ``unaided`` without a reference."""
        return "default" if self.shows_reference else "unaided"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chosen.get("swapped") and not self.shows_reference:
            raise UserError(
                "judge.grading.options.swapped=true swaps answer and reference, but"
                " judge.grading.options.reference=hidden shows no reference. Type"
                " judge.grading.options.reference=shown."
            )

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        """One user turn; with ``swapped`` the reference stands where the answer belongs."""
        if self.chosen.get("swapped"):
            row, answer = dataclasses.replace(row, reference=answer), row.reference or ""
        return super().messages(row, answer)

    def body(self, request: Request = NOTHING) -> Body:
        """Room for a sentence or for an analysis, as the prompts ask; or the forced verdict."""
        room = ANALYSIS_TOKENS if self.holds(ANALYSIS) else base.SENTENCE_TOKENS
        return base.binary_body(self.chosen["structured"], [YES, NO], room)

    @property
    def reply_form(self) -> str:
        """One of two words in brackets."""
        return f"[[{YES}]] or [[{NO}]] at the end"

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """1 for a right answer, 0 for any other."""
        if self.chosen.get("reads", "anchored") != "anchored":
            return base.loosely(reply, self.chosen["reads"] == "tail", ("true", "yes", "[[1]]"))
        return base.word_in_brackets(reply, {YES: 1.0, NO: 0.0})


class Verif(Binary):
    """All constraints of a row in one question, and one verdict: the reward it makes is sparse, one
    constraint missed is worth as much as all of them.

    Options: ``language`` en | zh, of the prompt; ``prompt``, a .txt file instead;
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
        """The prompt of the chosen language."""
        return self.chosen["language"]

    def problem(self, row: Row) -> str:
        """Why the row cannot be graded, by its criteria; empty if it can."""
        texts = [item.text.strip() for item in row.criteria]
        if not texts:
            return "the row has no criteria to use as constraints"
        if len(set(texts)) < len(texts):
            return "the criteria repeat"
        if any(item.points < 0 for item in row.criteria):
            return "a criterion with negative points is a fault, not a constraint"
        return ""

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        """The chat turns that show the criteria as constraints, and the answer."""
        constraints = "\n".join(f"- {item.text.strip()}" for item in row.criteria)
        return self.turn(
            row, constraints=delimit("rubric", constraints), answer=delimit("answer", answer)
        )

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """One label for the constraints as a whole, and 1 or 0."""
        verdict = super().parse(reply, request)
        label = {1.0: "met", 0.0: "not_met", None: "unknown"}[verdict.score]
        return dataclasses.replace(verdict, labels=(label,))
