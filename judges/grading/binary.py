"""Is the answer right: by a reference that is known to be right, or by the judge alone?"""

from __future__ import annotations

from typing import Any, ClassVar

from judges.grading import base, bracket
from judges.grading.base import NOTHING
from study.verdict import Parsed, Reply, Request

YES, NO = "1", "0"


class Binary(base.OneRequest):
    """Options: ``reference`` shown | hidden, whether the judge sees ``row.reference``; ``prompt``
    (default, which compares with the reference, unaided, math, qa, code, or a .txt file), and
    ``prompts``, domain -> another prompt for its rows; ``structured`` false | true, forces the
    verdict alone.
    Raises UserError: an unknown option, a value that it does not take, or an unfit prompt."""

    name = "binary"
    choices: ClassVar = {"reference": ("shown", "hidden"), "structured": (False, True)}
    option_names = ("prompt", "prompts")
    needed = ("{prompt}", "{answer}", f"[[{YES}]]", f"[[{NO}]]")
    optional = ()

    @property
    def default_prompt(self) -> str:
        return "default" if self.shows_reference else "unaided"

    def body(self, request: Request = NOTHING) -> dict[str, Any]:
        """Room for a sentence, or the forced verdict."""
        return bracket.binary_body(self.chosen["structured"], [YES, NO])

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """1 for a right answer, 0 for any other."""
        return bracket.choice(reply, {YES: 1.0, NO: 0.0})
