"""All constraints of a row in one question, and one binary verdict: are they all followed?

The reward it makes is sparse: one constraint missed is worth as much as all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from judges.grading import base, bracket
from judges.grading.base import NOTHING
from judges.grading.delimiters import fence, fill
from study.rows import Row
from study.verdict import Outcome, Parsed, Reply, Request

YES, NO = "1", "0"


@dataclass(frozen=True, eq=False)
class Verif(base.OneRequest):
    """Options: ``language`` en | zh, of the prompt; ``prompt``, a .txt file instead;
    ``vocabulary`` bracket; ``structured`` false | true, forces the verdict alone.

    Raises:
        UserError: an unknown option, a value that it does not take, or an unfit prompt.
    """

    name = "verif"
    option_names = ("language", "prompt", "vocabulary", "structured")

    def __post_init__(self) -> None:
        super().__post_init__()
        base.choose(self.name, self.options, "vocabulary", ("bracket",))
        base.choose(self.name, self.options, "structured", (False, True))

    @cached_property
    def _template(self) -> str:
        language = base.choose(self.name, self.options, "language", ("en", "zh"))
        needed = ["{prompt}", "{constraints}", "{answer}", f"[[{YES}]]", f"[[{NO}]]"]
        return base.load_prompt(self.name, self.options.get("prompt", language), needed, ())

    def problem(self, row: Row) -> str:
        """Why the row cannot be graded so; empty where it can."""
        texts = [item.text.strip() for item in row.criteria]
        if not texts:
            return "the row has no criteria to take for constraints"
        if len(set(texts)) < len(texts):
            return "the criteria repeat"
        if any(item.points < 0 for item in row.criteria):
            return "a criterion with negative points is a fault and no constraint to follow"
        return ""

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        """One user turn that ends with the fenced answer."""
        lines = "\n".join(f"- {item.text.strip()}" for item in row.criteria)
        content = fill(
            self._template,
            prompt=fence("prompt", row.prompt_text()),
            constraints=fence("rubric", lines),
            answer=fence("answer", answer),
        )
        return [{"role": "user", "content": content.rstrip()}]

    def body(self, request: Request = NOTHING) -> dict[str, Any]:
        """Room for a sentence, or the forced verdict."""
        return bracket.binary_body(self.options.get("structured", False), [YES, NO])

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """One label for the constraints as a whole, and 1 or 0."""
        found = bracket.choice(reply, {YES: 1.0, NO: 0.0})
        if isinstance(found, Parsed):
            return Parsed(found.outcome, ("unknown",), reason=found.reason)
        return Parsed(Outcome.scored, ("met" if found else "not_met",), found)
