"""Does the answer say the same as a reference that is known to be right?"""

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
class Binary(base.OneRequest):
    """The reference is ``row.reference``. Options: ``prompt`` default, or a .txt file;
    ``structured`` false | true, forces the verdict alone.

    Raises:
        UserError: an unknown option, a value that it does not take, or an unfit prompt.
    """

    name = "binary"
    option_names = ("prompt", "structured")

    def __post_init__(self) -> None:
        super().__post_init__()
        base.choose(self.name, self.options, "structured", (False, True))

    @cached_property
    def _template(self) -> str:
        needed = ["{prompt}", "{reference}", "{answer}", f"[[{YES}]]", f"[[{NO}]]"]
        return base.load_prompt(self.name, self.options.get("prompt", "default"), needed, ())

    def problem(self, row: Row) -> str:
        """Why the row cannot be graded so; empty where it can."""
        return "" if (row.reference or "").strip() else "the row has no reference answer"

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        """One user turn that ends with the fenced answer."""
        content = fill(
            self._template,
            prompt=fence("prompt", row.prompt_text()),
            reference=fence("reference", row.reference or ""),
            answer=fence("answer", answer),
        )
        return [{"role": "user", "content": content.rstrip()}]

    def body(self, request: Request = NOTHING) -> dict[str, Any]:
        """Room for a sentence, or the forced verdict."""
        return bracket.binary_body(self.options.get("structured", False), [YES, NO])

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """1 for the same, 0 for another answer."""
        found = bracket.choice(reply, {YES: 1.0, NO: 0.0})
        return found if isinstance(found, Parsed) else Parsed(Outcome.scored, score=found)
