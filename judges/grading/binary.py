"""Does the answer say the same as a reference that is known to be right?"""

from __future__ import annotations

from typing import Any, ClassVar

from judges.grading import base, bracket
from judges.grading.base import NOTHING
from judges.grading.delimiters import delimit
from study.rows import Row
from study.verdict import Parsed, Reply, Request

YES, NO = "1", "0"


class Binary(base.OneRequest):
    """The reference is ``row.reference``. Options: ``prompt`` default, or a .txt file;
    ``structured`` false | true, forces the verdict alone.
    Raises UserError: an unknown option, a value that it does not take, or an unfit prompt."""

    name = "binary"
    choices: ClassVar = {"structured": (False, True)}
    needed = ("{prompt}", "{reference}", "{answer}", f"[[{YES}]]", f"[[{NO}]]")
    optional = ()

    def problem(self, row: Row) -> str:
        return "" if (row.reference or "").strip() else "the row has no reference answer"

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        reference = delimit("reference", row.reference or "")
        return self.turn(row, reference=reference, answer=delimit("answer", answer))

    def body(self, request: Request = NOTHING) -> dict[str, Any]:
        """Room for a sentence, or the forced verdict."""
        return bracket.binary_body(self.chosen["structured"], [YES, NO])

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """1 for the same, 0 for another answer."""
        return bracket.choice(reply, {YES: 1.0, NO: 0.0})
