"""A score in a form that a judge has of its own, which no prompt asks for: ``Score: {score}/10``.

Blanks may stand around the number, and emphasis anywhere. Every number of a reply that stands in
the form has to be the same one: of two nobody knows which the judge quotes. One at least stands
outside of quotation marks and quoted lines: what only quotes is no verdict. Where a text that the
judge is shown has the form, its number gets a backslash, so that a judge who copies it says none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from judges.grading import base
from judges.grading.vocabulary import LONGEST
from study.config import bounds
from study.verdict import Outcome, Parsed, Reply

PLACE = "{score}"
KEY = "judge.grading.options"
_EMPHASIS = str.maketrans("", "", "*_`")
_NUMBER = r"(?<![0-9.\\])([0-9]{1,9}(?:\.[0-9]{1,15})?)(?![0-9]|\.[0-9])"
_QUOTED = re.compile(
    r"""(?<![\w"])"(?=\S)[^"\n]*(?<=\S)"(?!\w)|(?<![\w'])'(?=\S)[^'\n]*(?<=\S)'(?!\w)"""
    r"""|[\u201c\u201e][^\u201c-\u201f\n]*[\u201c-\u201f]|\u2018[^\u2018\u2019\n]*\u2019"""
    r"""|\u00ab[^\u00ab\u00bb\n]*\u00bb|\u300c[^\u300c\u300d\n]*\u300d|^[ \t]{0,3}>.*""",
    re.MULTILINE,
)
_MARKS = re.compile(r"[\"'>\u00ab\u2018\u201c\u201e\u300c]")
"""What begins a quotation; a form that has one of them stands in a reply as it is written."""
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
        plain = text[-LONGEST:].translate(_EMPHASIS)
        numbers = self._pattern.findall(plain)
        if not numbers:
            return base.unparsed(f"nothing of the form {self.form!r}", text)
        if not _MARKS.search(self.form) and not self._pattern.search(_QUOTED.sub('"', plain)):
            return base.unparsed(f"{self.form!r} in a quotation only", text)
        scores = [float(number) / self.highest for number in numbers]
        if scores[-1] > 1:
            return base.unparsed(f"{numbers[-1]} is above {self.highest:g}", text)
        other = next((n for n, s in zip(numbers, scores, strict=True) if s != scores[-1]), None)
        if other is not None:
            return base.different(other, numbers[-1], text=text)
        return Parsed(Outcome.scored, score=scores[-1])

    def escaped(self, text: str) -> str:
        """A text that the judge is shown, with a backslash before each number in this form."""
        places = [place for place, char in enumerate(text) if ord(char) not in _EMPHASIS]
        plain = text.translate(_EMPHASIS)
        numbers, match = [], self._pattern.search(plain)
        while match:  # they may overlap, as in 8/10/10
            numbers.append(places[match.start(1)])
            match = self._pattern.search(plain, match.start() + 1)
        cuts = [0, *sorted(set(numbers)), len(text)]
        return "\\".join(text[start:end] for start, end in pairwise(cuts))

    @cached_property
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
