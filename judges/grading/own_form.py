"""A score in a form that a judge has of its own, which no prompt asks for: ``Score: {score}/10``.

Blanks may stand around the number, and emphasis anywhere. Every number of a reply that stands in
the form has to be the same one: of two nobody knows which the judge quotes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from judges.grading import base
from judges.grading.vocabulary import LONGEST
from study.config import bounds
from study.verdict import Outcome, Parsed, Reply

PLACE = "{score}"
KEY = "judge.grading.options"
_EMPHASIS = str.maketrans("", "", "*_`")
_NUMBER = r"(?<![0-9.])([0-9]{1,9}(?:\.[0-9]{1,15})?)(?![0-9]|\.[0-9])"
_WORDS = re.compile(r"\w+|[^\w\s]")
_SCALE = re.compile(r"\s?(?:/|of|out of)\s?([0-9]{1,9})")
_SHOWN_SCALE = re.compile(
    r"(?:(\w{1,24})\s?([:=])\s{0,4})?" + _NUMBER + r"(\s?(?:/|out of|of)\s?[1-9][0-9]{0,8})"
)


@dataclass(frozen=True)
class OwnForm:
    """How a judge writes its score, and the number that is the score 1."""

    form: str
    highest: float

    def parse(self, reply: Reply) -> Parsed:
        """The one number in this form, as a score."""
        text = base.readable(reply)
        if isinstance(text, Parsed):
            return text
        numbers = self._pattern().findall(text[-LONGEST:].translate(_EMPHASIS))
        if not numbers:
            return base.unparsed(f"nothing of the form {self.form!r}", text)
        scores = [float(number) / self.highest for number in numbers]
        if scores[-1] > 1:
            return base.unparsed(f"{numbers[-1]} is above {self.highest:g}", text)
        other = next((n for n, s in zip(numbers, scores, strict=True) if s != scores[-1]), None)
        if other is not None:
            return base.different(other, numbers[-1], text=text)
        return Parsed(Outcome.scored, score=scores[-1])

    def _pattern(self) -> re.Pattern[str]:
        before, _, after = self.form.translate(_EMPHASIS).partition(PLACE)
        left, right = _escaped(before), _escaped(after)
        end = r"(?![0-9])" if after.strip()[-1:].isdigit() else ""
        return re.compile(r"\s{0,9}".join([*left, _NUMBER, *right]) + end, re.IGNORECASE)


def _escaped(text: str) -> list[str]:
    return [re.escape(word) for word in _WORDS.findall(text)]


def own_form(form: Any, highest: Any) -> OwnForm | None:
    """The form that a judge's settings name, None for none. The highest number may be left out
    where it stands behind the place, as in ``{score}/10``.
    Raises UserError: no text with one place, or no highest number."""
    if form is None:
        if highest is not None:
            bounds.refuse(f"{KEY}.highest", highest, f"left out where there is no {KEY}.form")
        return None
    if not isinstance(form, str) or form.count(PLACE) != 1 or len(form.split()) > 20:
        legal = f"a short text with {PLACE} in it once, such as 'Score: {PLACE}/10'"
        bounds.refuse(f"{KEY}.form", form, legal)
    if not form.replace(PLACE, "").translate(_EMPHASIS).strip():
        bounds.refuse(f"{KEY}.form", form, f"more than {PLACE}: any number would be a score")
    if highest is None and (scale := _SCALE.match(form.partition(PLACE)[2])):
        highest = float(scale[1])
    legal = bounds.Number(above=0, high=1e9)
    if isinstance(highest, bool | str) or highest is None or not legal.accepts(highest):
        bounds.refuse(f"{KEY}.highest", highest, "the number above 0 that is the score 1")
    return OwnForm(form, float(highest))


def guessed(text: str) -> str:
    """A form in which a reply may have its score, where it names the scale, as ``8/10`` does; empty
    for none."""
    shown = list(_SHOWN_SCALE.finditer(text[-LONGEST:].translate(_EMPHASIS)))
    if not shown:
        return ""
    label, mark, _, scale = shown[-1].groups()
    return f"{label}{mark} {PLACE}{scale}" if label else f"{PLACE}{scale}"
