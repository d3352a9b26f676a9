"""A number from 0 to 100, asked for as ``[[score]]`` and divided by 100."""

from __future__ import annotations

import re
from typing import ClassVar

from judges.grading import base, bracket
from judges.grading.base import NOTHING
from study.verdict import Parsed, Reply, Request

MARKER = "[[score]]"
"""How a prompt asks for the number."""
_NUMBER = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,15})?")


class Likert(base.OneRequest):
    """Options: ``prompt`` (default, strict, or a .txt file); ``prompts``, domain -> another prompt
    for its rows; ``reference`` hidden | shown, whether the judge sees ``row.reference``;
    ``rubric`` shown | hidden, whether it sees ``row.criteria``.
    Raises UserError: an unknown option or prompt."""

    name = "likert"
    choices: ClassVar = {"reference": ("hidden", "shown"), "rubric": ("shown", "hidden")}
    option_names = ("prompt", "prompts")
    needed = ("{prompt}", "{answer}", MARKER)

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """The one ``[[number]]``; the same number may stand there more than once."""
        return bracket.scored(reply, _score, "a [[score]], a number from 0 to 100")


def _score(text: str) -> float | None:
    return float(text) / 100 if _NUMBER.fullmatch(text) and float(text) <= 100 else None
