"""A number from 0 to 100, asked for as ``[[score]]`` and divided by 100; or one in a form that the
judge has of its own, such as ``Score: 7/10``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from judges.endpoint.dialects import Body
from judges.grading import base
from judges.grading.base import NOTHING
from judges.grading.delimiters import delimit, inside
from judges.grading.own_form import OwnForm, own_form
from study.config import bounds
from study.errors import UserError
from study.rows import Row
from study.verdict import Outcome, Parsed, Reply, Request

MARKER = "[[score]]"
"""How a prompt asks for the number."""
STEP = 10
"""Between the numbers that a forced reply can hold."""
_NUMBER = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,15})?")


class Likert(base.OneRequest):
    """Options: ``prompt`` (default, strict, or a .txt file); ``prompts``, domain -> another prompt
    for its rows; ``reference`` hidden | shown, whether the judge sees ``row.reference``;
    ``rubric`` shown | hidden, whether it sees ``row.criteria``; ``ensemble``, a list of further
    prompts that each answer is judged by as well, where the score is the mean over all of them;
    ``structured`` false | true, forces the number alone, in steps of `STEP`; ``form``, how the
    judge writes its score whatever it is asked for, as in `judges.grading.own_form`, and
    ``highest``, the number that is the score 1 there.
    Raises UserError: an unknown option or prompt, or a form that is none."""

    name = "likert"
    choices: ClassVar = {
        "reference": ("hidden", "shown"),
        "rubric": ("shown", "hidden"),
        "structured": (False, True),
    }
    option_names = ("prompt", "prompts", "ensemble", "form", "highest")
    needed = ("{prompt}", "{answer}")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._ensemble
        _ = self._form

    def load_prompt(self, family: str, prompt: Any, option: str = "prompt") -> str:
        """As of any grading; it asks for a ``[[score]]`` where the judge has no form of its own."""
        template = super().load_prompt(family, prompt, option)
        if MARKER not in template and self._form is None:
            raise UserError(
                f"The prompt {prompt} of the grading {family} does not hold {MARKER}. It needs"
                f" {', '.join((*self.needed, MARKER))}; judges/prompts/{family}-*.txt show where to"
                " put them. A judge that writes its score in another form needs"
                " judge.grading.options.form."
            )
        return template

    @cached_property
    def _form(self) -> OwnForm | None:
        return own_form(self.options.get("form"), self.options.get("highest"))

    @cached_property
    def _ensemble(self) -> list[str]:
        """The templates of the further prompts. Raises UserError: as `load_prompt`, or no list."""
        prompts = self.options.get("ensemble") or []
        if not isinstance(prompts, list | tuple):
            bounds.refuse("judge.grading.options.ensemble", prompts, "a list, such as [strict]")
        return [self.load_prompt(self.name, prompt, "ensemble") for prompt in prompts]

    @cached_property
    def prompt_sha(self) -> str:
        """That of the one prompt, or 16 hex digits over those of all."""
        own = super().prompt_sha
        if not self._ensemble:
            return own
        return hashlib.sha256("\0".join([own, *self._ensemble]).encode()).hexdigest()[:16]

    def requests(self, row: Row, answer: str) -> tuple[Request, ...]:
        """A request for each prompt; none where the row has a problem."""
        first, delimited = super().requests(row, answer), delimit("answer", answer)
        others = [Request(self.filled(text, row, answer=delimited)) for text in self._ensemble]
        return (*first, *others) if first else ()

    def filled(self, template: str, row: Row, **texts: str) -> list[dict[str, str]]:
        """As of any grading; what the texts have of the judge's own form is escaped."""
        turns = super().filled(template, row, **texts)
        if (form := self._form) is None:
            return turns
        return [turn | {"content": inside(turn["content"], form.escaped)} for turn in turns]

    def combine(self, row: Row, parts: Sequence[tuple[Request, Parsed]]) -> Parsed:
        """The mean over the prompts; the first failure where one has no score, for a mean over
        fewer prompts would be another measure."""
        grades = [parsed for _, parsed in parts]
        scores = [parsed.score for parsed in grades if parsed.score is not None]
        if len(grades) < 2 or len(scores) < len(grades):
            failed = [pair for pair in parts if pair[1].score is None]
            return super().combine(row, failed or parts)
        return Parsed(Outcome.scored, score=sum(scores) / len(scores))

    @property
    def reply_form(self) -> str:
        """A number in brackets, or in the judge's own form."""
        if self._form is not None:
            return f"{self._form.form}, a score up to {self._form.highest:g}"
        return "a number from 0 to 100 in double square brackets at the end, such as [[80]]"

    def body(self, request: Request = NOTHING) -> Body:
        """The form of a reply, where it is forced."""
        if not self.chosen["structured"] or self._form is not None:
            return {}
        return {"structured_outputs": {"choice": [f"[[{n}]]" for n in range(0, 101, STEP)]}}

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        """The one ``[[number]]``, or number in the judge's own form; the same number may stand
        there more than once."""
        if self._form is not None:
            return self._form.parse(reply)
        return base.score_in_brackets(reply, _score, "a [[score]], a number from 0 to 100")


def _score(text: str) -> float | None:
    return float(text) / 100 if _NUMBER.fullmatch(text) and float(text) <= 100 else None
