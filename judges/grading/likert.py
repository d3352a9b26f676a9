"""A number from 0 to 100, asked for as ``[[score]]`` and divided by 100."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from judges.grading import base, bracket
from judges.grading.base import NOTHING
from study.rows import Row
from study.verdict import Outcome, Parsed, Reply, Request

MARKER = "[[score]]"
"""How a prompt asks for the number."""
_NUMBER = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,15})?")


@dataclass(frozen=True, eq=False)
class Likert(base.OneRequest):
    """Options: ``prompt`` (default, strict, or a .txt file).

    Raises:
        UserError: an unknown option or prompt.
    """

    name = "likert"

    @cached_property
    def _template(self) -> str:
        prompt = self.options.get("prompt", "default")
        return base.load_prompt(self.name, prompt, ["{prompt}", "{answer}", MARKER])

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        """One user turn that ends with the fenced answer."""
        return base.ask(self._template, row, answer)

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """The one ``[[number]]``; the same number may stand there more than once."""
        found = bracket.read(reply, _number, "a [[score]], a number from 0 to 100")
        return found if isinstance(found, Parsed) else Parsed(Outcome.scored, score=found / 100)


def _number(said: str) -> float | None:
    legal = _NUMBER.fullmatch(said) and float(said) <= 100
    return float(said) if legal else None
