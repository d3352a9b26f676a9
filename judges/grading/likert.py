"""A number from 0 to 100, asked for as ``[[score]]`` and divided by 100."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from judges.grading import base, bracket
from study.rows import Row
from study.verdict import Outcome, Parsed, Reply

MARKER = "[[score]]"
"""How a prompt asks for the number."""
_NUMBER = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,15})?")


@dataclass(frozen=True, eq=False)
class Likert:
    """Options: ``prompt`` (default, strict, or a .txt file).

    Raises:
        UserError: an unknown option or prompt.
    """

    options: dict[str, Any] = field(default_factory=dict)
    name = "likert"
    version = "2"

    def __post_init__(self) -> None:
        base.check_options(self.name, self.options, ["prompt"])
        _ = self._template

    @cached_property
    def _template(self) -> str:
        prompt = self.options.get("prompt", "default")
        return base.load_prompt(self.name, prompt, ["{prompt}", "{answer}", MARKER])

    @cached_property
    def prompt_sha(self) -> str:
        """16 hex digits of SHA-256 over the prompt template."""
        return base.prompt_sha(self._template)

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        """One user turn that ends with the fenced answer."""
        return base.ask(self._template, row, answer)

    def body(self) -> dict[str, Any]:
        """Nothing beside the messages."""
        return {}

    def parse(self, reply: Reply) -> Parsed:
        """The one ``[[number]]``; the same number may stand there more than once."""
        found = bracket.read(reply, _number, "a [[score]], a number from 0 to 100")
        return found if isinstance(found, Parsed) else Parsed(Outcome.scored, score=found / 100)


def _number(said: str) -> float | None:
    legal = _NUMBER.fullmatch(said) and float(said) <= 100
    return float(said) if legal else None
